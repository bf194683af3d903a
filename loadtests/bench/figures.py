"""From samples to figures: what one request costs, medians, spreads, ratios and goals. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

from loadtests.bench.runner import Sample
from loadtests.bench.scenarios import SCENARIOS
from loadtests.bench.stats import cpu_per_chunk, middle, minus, ratio, spread
from loadtests.bench.targets import BASELINE

GATEWAY = "gateway"
DIRECT = "direct"
ROUND_ROBIN = "vllm-router-rr"


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run says; also used for medians and for relative spreads. None: does not apply."""

    rate: float | None = None
    """Requests per second."""
    cpu_us: float | None = None
    """CPU microseconds, user and system, of the target's process tree per request."""
    p50_ms: float | None = None
    p99_ms: float | None = None
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None
    chunk_us: float | None = None
    """CPU microseconds per streamed chunk, less what the request itself costs."""
    chunk_raw_us: float | None = None
    """CPU microseconds of the whole streamed run, per chunk."""
    added_ms: float | None = None
    """Median latency less that of the direct run next to it."""
    rss_mb: float | None = None
    busy: float | None = None
    """Share of one core that the target used: near 1 the target was the limit, otherwise the load was."""


NAMES = tuple(field.name for field in fields(Figures))


@dataclass(frozen=True, slots=True)
class Row:
    """One scenario on one target, over all repeats."""

    scenario: str
    target: str
    runs: tuple[Figures, ...]
    median: Figures
    spread: Figures
    """(largest - smallest) / median of each figure."""
    requests: int
    errors: int
    first_errors: tuple[str, ...]


Book = Mapping[tuple[str, str], Row]
"""Rows by scenario and target."""


def book(samples: Sequence[Sample]) -> dict[tuple[str, str], Row]:
    """All rows, in the order of the scenarios, so that `stream` finds the figures of `chat`."""
    rows: dict[tuple[str, str], Row] = {}
    grouped: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        grouped.setdefault((sample.scenario, sample.target), []).append(sample)
    order = [scenario.name for scenario in SCENARIOS]
    for key in sorted(grouped, key=lambda key: order.index(key[0])):
        chat = rows.get(("chat", key[1]))
        rows[key] = row(grouped[key], grouped.get((key[0], DIRECT), []), chat.median.cpu_us if chat else None)
    return rows


def row(samples: Sequence[Sample], direct: Sequence[Sample], chat_cpu_us: float | None) -> Row:
    """The row of one scenario and target. `direct` are the direct runs of the same scenario, by repeat."""
    bases = [sample.outcome.p50 for sample in direct] or [None] * len(samples)
    runs = tuple(figures(each, base, chat_cpu_us) for each, base in zip(samples, bases, strict=True))
    return Row(
        scenario=samples[0].scenario,
        target=samples[0].target,
        runs=runs,
        median=combine(runs, middle),
        spread=combine(runs, spread),
        requests=sum(sample.outcome.requests for sample in samples),
        errors=sum(sample.outcome.errors for sample in samples),
        first_errors=tuple(why for sample in samples for why in sample.outcome.first_errors)[:5],
    )


def combine(runs: Sequence[Figures], how: Callable[[Sequence[float | None]], float | None]) -> Figures:
    return Figures(**{name: how([getattr(run, name) for run in runs]) for name in NAMES})


def figures(sample: Sample, direct_p50: float | None, chat_cpu_us: float | None) -> Figures:
    """The figures of one run."""
    done = sample.outcome
    cpu_us = sample.cpu_seconds * 1e6
    added = minus(milliseconds(done.p50), milliseconds(direct_p50))
    return Figures(
        rate=ratio(done.requests, done.seconds),
        cpu_us=ratio(cpu_us, done.requests),
        p50_ms=milliseconds(done.p50),
        p99_ms=milliseconds(done.p99),
        ttft_p50_ms=milliseconds(done.ttft_p50),
        ttft_p99_ms=milliseconds(done.ttft_p99),
        chunk_us=cpu_per_chunk(cpu_us, done.requests, done.chunks, chat_cpu_us),
        chunk_raw_us=ratio(cpu_us, done.chunks),
        added_ms=None if sample.target == DIRECT else added,
        rss_mb=sample.rss_bytes / 1e6,
        busy=ratio(sample.cpu_seconds, done.seconds),
    )


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def value(rows: Book, scenario: str, target: str, name: str) -> float | None:
    """A median figure; None when it was not measured."""
    found = rows.get((scenario, target))
    return None if found is None else getattr(found.median, name)


def ratios(rows: Book) -> dict[str, dict[str, float]]:
    """The gateway's median figures divided by the baseline's, by scenario; what either lacks is left out."""
    found: dict[str, dict[str, float]] = {}
    for scenario in SCENARIOS:
        pairs = {
            name: ratio(value(rows, scenario.name, GATEWAY, name), value(rows, scenario.name, BASELINE, name))
            for name in NAMES
        }
        if present := {name: share for name, share in pairs.items() if share is not None}:
            found[scenario.name] = present
    return found


@dataclass(frozen=True, slots=True)
class Goal:
    """What the gateway has to reach."""

    what: str
    limit: float
    measure: Callable[[Book], float | None]


def against(scenario: str, name: str, other: str, other_scenario: str | None = None) -> Callable[[Book], float | None]:
    """The gateway's figure divided by that of another target, or of another scenario."""
    return lambda rows: ratio(
        value(rows, scenario, GATEWAY, name), value(rows, other_scenario or scenario, other, name)
    )


GOALS: tuple[Goal, ...] = (
    Goal("CPU per request / vllm-router's default policy", 0.8, against("chat", "cpu_us", BASELINE)),
    Goal("CPU per request / vllm-router's round robin", 1.0, against("chat", "cpu_us", ROUND_ROBIN)),
    Goal("CPU per streamed chunk / vllm-router's default policy", 1.0, against("stream", "chunk_us", BASELINE)),
    Goal("added latency at one client, p50, ms", 0.5, lambda rows: value(rows, "chat-1", GATEWAY, "added_ms")),
    Goal("CPU of a refused request / an accepted one", 0.25, against("refused", "cpu_us", GATEWAY, "chat")),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal that could be judged."""

    what: str
    limit: float
    measured: float
    met: bool


def verdicts(rows: Book) -> list[Verdict]:
    """The goals whose figures were measured."""
    judged = [(goal, goal.measure(rows)) for goal in GOALS]
    return [
        Verdict(goal.what, goal.limit, measured, measured <= goal.limit)
        for goal, measured in judged
        if measured is not None
    ]
