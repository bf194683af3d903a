from collections.abc import Sequence

import orjson

from loadtests.routing import report
from loadtests.routing.client import Answered
from loadtests.routing.engines import Counters
from loadtests.routing.figures import Run, figures
from loadtests.routing.runner import Measured, Wish
from loadtests.routing.scenarios import SCENARIOS
from loadtests.routing.targets import TARGETS

GOOD = Run(
    [Answered(0.5, 0.1234, 1.5), Answered(1.0, 0.2, 2.5)], [Counters(1000, 250, 3)] * 4, starved=0.01, seconds=10.0
)


def measured(runs: Sequence[Run] = (GOOD,), *, scenario: int = 0, target: int = 0, failed: str = "") -> Measured:
    return Measured(SCENARIOS[scenario], TARGETS[target], runs, failed)


def test_columns_stand_under_each_other_whatever_the_lengths() -> None:
    slow = figures([Run([Answered(0.0, 12345.678, 99999.0)], [])])
    lines = report.table([("a", figures([GOOD])), ("a-long-name", slow)])
    assert len({len(line) for line in lines}) == 1
    assert lines[1].split()[:7] == ["a", "123", "200", "200", "1,500", "2,500", "2,500"]
    assert lines[1].split()[7:] == ["-", "25.0", "25.0", "12", "1.0", "0", "2", "0"]
    assert "12,345,678" in lines[2]


def test_each_scenario_has_a_table_with_a_line_for_each_target() -> None:
    lines = report.lines([measured(), measured(target=1), measured(scenario=1)])
    assert [line.partition(":")[0] for line in lines if ": " in line] == ["retrieval", "chat"]
    assert [line.split()[0] for line in lines if line.startswith(("estimate", "least"))] == [
        "estimate",
        "least-in-flight",
        "estimate",
    ]


def test_a_host_that_was_too_busy_is_said() -> None:
    late = Run([Answered(0.0, 0.1, 1.0, late=0.2)], [])
    starved = Run([Answered(0.0, 0.1, 1.0)], [], starved=0.4)
    assert report.doubts([measured()]) == []
    assert "200 ms late" in report.doubts([measured([late])])[0]
    assert "40% of a run" in report.doubts([measured([GOOD, starved])])[0]
    still = Run([Answered(0.0, 0.1, 1.0)], [], stall=0.3)
    assert "stood still for 300 ms" in report.doubts([measured([still])])[0]


def test_errors_and_failed_targets_are_said_and_make_the_result_unsound() -> None:
    wrong = measured([Run([Answered(0.0, None, 1.0, "refused")], [])])
    lost = measured(target=1, failed="its last words")
    assert report.doubts([wrong, lost]) == [
        "ERROR: retrieval, estimate: refused",
        "FAILED: retrieval, least-in-flight: its last words",
    ]
    assert report.sound([measured()])
    assert not report.sound([measured(), wrong])
    assert not report.sound([measured(), lost])
    assert not report.sound([measured([Run([], [])])])


def test_the_document_holds_every_request() -> None:
    document = orjson.loads(orjson.dumps(report.document([measured()], Wish(seconds=10.0, repeat=1, seed=3))))
    assert document["wish"] == {"seconds": 10.0, "repeat": 1, "seed": 3, "again": 0, "lead": 5.0}
    (row,) = document["results"]
    assert (row["kind"], row["limit"], row["goodput"], row["trusted"]) == ("ours", 1.0, 0.2, True)
    assert document["beside"] == []
    assert row["runs"][0]["seconds"] == 10.0
    assert (row["scenario"], row["target"], row["hit_rate"]) == ("retrieval", "estimate", 0.25)
    assert row["runs"][0]["requests"] == [[0.5, 0.1234, 1.5, ""], [1.0, 0.2, 2.5, ""]]
    assert row["runs"][0]["engines"][0] == {"queries": 1000, "hits": 250, "preemptions": 3}


def test_goodput_is_by_the_limit_of_the_scenario_which_is_stated() -> None:
    runs = [Run([Answered(0.0, ttft, 1.0) for ttft in (0.1, 0.4, 0.6, 0.9)], [], seconds=2.0)]
    lines = report.lines([measured(runs), measured(runs, scenario=1)])
    assert [line for line in lines if "goodput is within" in line] == [
        f"retrieval: {SCENARIOS[0].summary}; goodput is within 1 s",
        f"chat: {SCENARIOS[1].summary}; goodput is within 0.5 s",
    ]
    assert [line.split()[7] for line in lines if line.startswith("estimate")] == ["2.0", "1.0"]


def test_ours_beside_the_others_stands_below_the_tables_and_in_the_document() -> None:
    oracle = next(number for number, target in enumerate(TARGETS) if target.name == "oracle")
    both = [measured(), measured([Run([Answered(0.0, 0.1, 1.0)], [])], target=oracle)]
    assert "retrieval: estimate has 2.00 times the p90 TTFT of oracle (to be below 1.25, MISSED)" in report.lines(both)
    (beside,) = orjson.loads(orjson.dumps(report.document(both, Wish())))["beside"]
    assert (beside["scenario"], beside["other"], beside["ratio"], beside["holds"]) == (
        "retrieval",
        "oracle",
        2.0,
        False,
    )
