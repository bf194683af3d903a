from dataclasses import replace

import orjson
import pytest

from loadtests.fleet import report
from loadtests.fleet.coldstart import Added, Side, Wish
from loadtests.fleet.load import Sample
from loadtests.fleet.looks import Spread
from loadtests.fleet.report import ColdStart, Verdict, times
from loadtests.fleet.scale import Phase, Run

QUIET, NONE = Spread(300, 4, 1.5), Spread(0, 0, 0.0)


def samples(*ttfts, error=""):
    return [Sample(float(at), ttft, error) for at, ttft in enumerate(ttfts)]


def side(*ttfts, cold=0, ready=25.0, error=""):
    added = [Added(port=8001, started=10.0, ready=ready, user=3, user_cold=cold, warmup=20)]
    return Side(samples(*ttfts, error=error), added, cold)


def phase(cpu=1.5, looks=QUIET, canaries=NONE, waited=0.0):
    return Phase(30.0, cpu, waited, {"metrics": 300}, looks, canaries)


def run(replicas=256, cpu=1.5, **fields):
    steady = phase(cpu, **fields)
    return Run(replicas, 128, phase(9.0), phase(0.2), steady, 100_000_000, 0.05)


def test_times_are_nearest_ranks_and_what_has_no_first_token_is_an_error():
    one = times([*samples(*(number / 1000 for number in range(1, 101))), Sample(0.0, None, "gone", 0.2)])
    assert (one.p50, one.p90, one.p99) == (0.05, 0.09, 0.099)
    assert (one.requests, one.errors) == (101, 1)
    assert times([]) == report.Times(0, None, None, None, 0, None)


def test_the_ratio_is_of_the_medians_over_the_repeats():
    assert report.p99_ratio([times(samples(each)) for each in (0.1, 9.0, 0.12)], [times(samples(0.1))]) == 1.2
    assert report.p99_ratio([times([])], [times(samples(0.1))]) is None
    assert report.p99_ratio([times(samples(0.1))], []) is None


def broken(result: ColdStart) -> list[str]:
    return [verdict.what for verdict in result.verdicts() if not verdict.met]


def test_a_good_run_meets_every_bound():
    assert broken(ColdStart(Wish(), [side(0.12)], [side(0.1)])) == []


@pytest.mark.parametrize(
    ("with_additions", "what"),
    [
        (side(0.13), "p99"),
        (side(None), "p99"),
        (side(0.1, cold=1), "met a cold replica"),
        (side(0.1, error="gone"), "errors"),
        (side(0.1, ready=None), "was not ready"),
    ],
)
def test_each_bound_can_be_broken(with_additions, what):
    found = broken(ColdStart(Wish(), [with_additions], [side(0.1)]))
    assert len(found) == 1
    assert what in found[0]


def test_what_was_not_measured_is_not_met():
    assert not Verdict("x", 1.0, None).met
    assert Verdict("x", 0.0, 0.0).met
    assert not Verdict("x", 0.0, 1.0).met


def test_a_host_that_is_too_busy_is_said():
    late = [replace(each, late=0.2) for each in samples(0.1)]
    assert "not to be trusted" in "\n".join(report.coldstart_lines(ColdStart(Wish(), [Side(late, [], 0)], [side(0.1)])))
    assert "trusted" not in "\n".join(report.coldstart_lines(ColdStart(Wish(), [side(0.1)], [side(0.1)])))
    assert "not to be trusted" in "\n".join(report.scale_lines([run(waited=5.0)]))
    assert "trusted" not in "\n".join(report.scale_lines([run(waited=1.0)]))


def test_cpu_is_a_share_of_a_core_and_microseconds_for_each_replica():
    steady = phase(1.5)
    assert steady.core_share == 0.05
    assert steady.per_replica_us(256) == pytest.approx(195.3, abs=0.1)
    assert steady.per_request_us == pytest.approx(5000)
    assert report.marginal_us(run(3, 0.03), run(253, 1.53)) == pytest.approx(200)


def judged(one: Run) -> list[str]:
    return [verdict.what for verdict in report.scale_verdicts(one) if not verdict.met]


def test_the_large_fleet_is_judged_by_its_cpu_and_by_herds():
    assert judged(run()) == []
    assert ["share of a core" in what for what in judged(run(cpu=3.1))] == [True]
    herd = Spread(300, 200, 1.5)
    assert ["looks within 50 ms, later" in what for what in judged(run(looks=herd))] == [True]
    assert ["canaries within 50 ms, later" in what for what in judged(run(canaries=herd))] == [True]
    after = replace(run(), settling=phase(looks=herd))
    assert ["just after the start" in what for what in judged(after)] == [True]


def test_a_herd_while_replicas_are_first_met_is_not_judged():
    assert judged(replace(run(), start=phase(looks=Spread(300, 200, 1.5)))) == []


def test_documents_are_json_with_every_figure():
    scale = orjson.loads(orjson.dumps(report.scale_document([run(3), run()])))
    assert scale["runs"][1]["core_share"] == 0.05
    assert scale["verdicts"][0] == {"what": scale["verdicts"][0]["what"], "limit": 0.1, "measured": 0.05, "met": True}
    cold = orjson.loads(orjson.dumps(report.coldstart_document(ColdStart(Wish(), [side(0.1)], [side(None)]))))
    assert cold["with_additions"][0]["samples"] == [[0.0, 0.1, ""]]
    assert cold["without_additions"][0]["samples"] == [[0.0, None, ""]]
    assert cold["with_additions"][0]["added"][0]["ready"] == 25.0


def test_tables_have_a_row_for_each_run_and_replica():
    lines = report.scale_lines([run(3), run()])
    assert len({len(line) for line in lines[:3]}) == 1, "columns stand under each other"
    assert lines[1].split()[0] == "3"
    assert any("each further replica" in line for line in lines)
    text = "\n".join(report.coldstart_lines(ColdStart(Wish(), [side(0.1, ready=None)], [side(0.1)])))
    assert "not ready" in text
    assert "MISSED" in text
