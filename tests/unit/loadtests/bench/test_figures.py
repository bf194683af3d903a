import orjson
import pytest
from rich.console import Console

from loadtests.bench import figures, report
from loadtests.bench.load import Outcome
from loadtests.bench.procs import layout
from loadtests.bench.runner import Bench, Plan, Sample


def sample(
    scenario: str, target: str, cpu_us: float, p50_ms: float = 1.0, *, chunks: int = 0, errors: tuple[str, ...] = ()
) -> Sample:
    """A run of 1000 requests in one second that cost `cpu_us` each."""
    outcome = Outcome(
        requests=1000,
        seconds=1.0,
        chunks=chunks,
        bodies=750_000,
        p50=p50_ms / 1000,
        p99=p50_ms / 500,
        ttft_p50=0.002 if chunks else None,
        ttft_p99=0.004 if chunks else None,
        errors=len(errors),
        first_errors=errors,
    )
    return Sample(scenario, target, outcome, cpu_us * 1000 / 1e6, 50_000_000)


def samples() -> list[Sample]:
    return [
        sample("stream", "gateway", 5_100.0, chunks=200_000),
        sample("stream", "vllm-router", 5_200.0, chunks=200_000),
        sample("chat", "direct", 10.0, 1.0),
        *[sample("chat", "gateway", cpu) for cpu in (90.0, 100.0, 130.0)],
        *[sample("chat", "vllm-router", 200.0) for _ in range(3)],
        sample("chat", "vllm-router-rr", 80.0),
        sample("chat-1", "direct", 10.0, 0.05),
        sample("chat-1", "gateway", 150.0, 0.35),
        sample("refused", "gateway", 20.0),
    ]


def without_direct_of_chat() -> list[Sample]:
    return [each for each in samples() if (each.scenario, each.target) != ("chat", "direct")]


def test_medians_spreads_and_what_is_derived_from_them() -> None:
    rows = figures.book(without_direct_of_chat())
    chat = rows["chat", "gateway"]
    assert chat.median.cpu_us == pytest.approx(100.0)
    assert chat.spread.cpu_us == pytest.approx(0.4)
    assert chat.median.rate == pytest.approx(1000.0)
    assert chat.median.rss_mb == pytest.approx(50.0)
    assert chat.median.busy == pytest.approx(0.1)
    assert chat.median.added_ms is None, "nothing to subtract: direct was not measured"
    assert chat.requests == 3000
    stream = rows["stream", "gateway"].median
    assert stream.chunk_us == pytest.approx((5_100.0 - 100.0) * 1000 / 200_000)
    assert stream.chunk_raw_us == pytest.approx(25.5)
    assert stream.ttft_p50_ms == pytest.approx(2.0)
    assert rows["chat-1", "gateway"].median.added_ms == pytest.approx(0.3)
    assert rows["chat-1", "direct"].median.added_ms is None


def test_ratios_divide_by_the_default_router_and_leave_out_what_was_not_measured() -> None:
    shares = figures.ratios(figures.book(without_direct_of_chat()))
    assert shares["chat"]["cpu_us"] == pytest.approx(0.5)
    assert shares["stream"]["chunk_us"] == pytest.approx(25.0 / 25.0)
    assert "chunk_us" not in shares["chat"]
    assert "chat-1" not in shares
    assert figures.ratios({}) == {}


def test_goals_are_judged_only_where_their_figures_exist() -> None:
    judged = {verdict.what: verdict for verdict in figures.verdicts(figures.book(without_direct_of_chat()))}
    assert len(judged) == len(figures.GOALS)
    assert judged["CPU per request / vllm-router's default policy"].met
    assert not judged["CPU per request / vllm-router's round robin"].met
    assert judged["CPU per request / vllm-router's round robin"].measured == pytest.approx(1.25)
    assert judged["added latency at one client, p50, ms"].measured == pytest.approx(0.3)
    assert judged["CPU of a refused request / an accepted one"].measured == pytest.approx(0.2)
    assert figures.verdicts({}) == []


def test_the_report_shows_figures_absent_targets_and_errors() -> None:
    runs = [sample("chat", "direct", 10.0), sample("chat", "gateway", 1234.56, errors=("status 500 instead of 200",))]
    result = Bench(tuple(runs), {"smg": "pip: no such version"}, layout({0}), load_before=2.5)
    rows = figures.book(runs)
    console = Console(width=report.PLAIN_WIDTH, force_terminal=False)
    with console.capture() as capture:
        report.render(result, rows, console)
    text = capture.get()
    assert "1,234.6" in text
    assert "smg was not run: pip: no such version" in text
    assert "ERROR chat, gateway: status 500 instead of 200" in text
    assert "one core only" in text
    assert "busy before the start (load average 2.50)" in text
    assert "…" not in text, "a figure was cut off"


def test_the_document_is_json_and_counts_errors() -> None:
    runs = [sample("chat", "gateway", 100.0, errors=("a", "b"))]
    result = Bench(tuple(runs), {}, layout({0, 1}), load_before=0.1)
    document = orjson.loads(orjson.dumps(report.document(result, figures.book(runs), Plan())))
    assert document["errors"] == 2
    assert document["results"][0]["median"]["cpu_us"] == pytest.approx(100.0)
    assert document["host"]["pinning"] == {"target": [0], "engine": [1], "load": [1]}
