"""From runs to figures, verdicts and words. Pure."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from loadtests.bench.stats import middle, percentile, ratio
from loadtests.fleet.coldstart import Side, Wish
from loadtests.fleet.load import Sample
from loadtests.fleet.scale import Phase, Run

RATIO_LIMIT = 1.2
"""p99 of the time to first token with additions, over that without."""

CORE_LIMIT = 0.10
"""Share of a core that looking after the large fleet may take."""

BUSY = 0.1
"""Share of the measured time that the gateway may wait for a core before its figures are the host's."""

LATE = 0.05
"""Seconds by which the load may send its latest hundredth too late before its figures are the host's."""

_ERRORS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Verdict:
    """One bound, and what was measured; ``None``: nothing was."""

    what: str
    limit: float
    measured: float | None

    @property
    def met(self) -> bool:
        return self.measured is not None and self.measured <= self.limit


@dataclass(frozen=True, slots=True)
class Times:
    """Times to first token of one run, in seconds, and how late the latest hundredth was sent."""

    requests: int
    p50: float | None
    p90: float | None
    p99: float | None
    errors: int
    late_p99: float | None


def times(samples: Sequence[Sample]) -> Times:
    """The figures of one run's requests. Those without a first token are errors, not times."""
    known = sorted(sample.ttft for sample in samples if sample.ttft is not None)
    return Times(
        requests=len(samples),
        p50=percentile(known, 0.5),
        p90=percentile(known, 0.9),
        p99=percentile(known, 0.99),
        errors=sum(bool(sample.error) for sample in samples),
        late_p99=percentile(sorted(sample.late for sample in samples), 0.99),
    )


def p99_ratio(with_additions: Sequence[Times], without: Sequence[Times]) -> float | None:
    """Of the medians over the repeats: one noisy minute must not decide."""
    return ratio(middle([each.p99 for each in with_additions]), middle([each.p99 for each in without]))


@dataclass(frozen=True, slots=True)
class ColdStart:
    """All repeats of both runs."""

    wish: Wish
    with_additions: Sequence[Side]
    without: Sequence[Side]

    def verdicts(self) -> list[Verdict]:
        """The bounds of a release."""
        sides = (*self.with_additions, *self.without)
        measured = p99_ratio([times(s.samples) for s in self.with_additions], [times(s.samples) for s in self.without])
        errors = [sample.error for side in sides for sample in side.samples if sample.error]
        lost = sum(added.ready is None for side in self.with_additions for added in side.added[:1])
        return [
            Verdict("p99 time to first token, with additions over without", RATIO_LIMIT, measured),
            Verdict("users' requests that met a cold replica", 0, float(sum(side.cold for side in sides))),
            Verdict("errors", 0, float(len(errors))),
            Verdict("runs in which even the first replica added was not ready at the end", 0, float(lost)),
        ]


def coldstart_lines(result: ColdStart) -> list[str]:
    """The figures as text."""
    lines = ["time to first token, ms                requests     p50     p90     p99  errors  sent late p99"]
    for name, sides in (("without additions", result.without), ("with additions", result.with_additions)):
        for side in sides:
            one = times(side.samples)
            figures = "".join(f"{milliseconds(each):>8}" for each in (one.p50, one.p90, one.p99))
            lines.append(f"{name:<38}{one.requests:>9}{figures}{one.errors:>8}{milliseconds(one.late_p99):>15}")
    lines += ["", "replica added at, s   ready at   start to ready   users' requests   of them cold   warmup requests"]
    for side in result.with_additions:
        for added in side.added:
            ready = "-" if added.ready is None else f"{added.ready:.1f}"
            took = "not ready" if added.ready is None else f"{added.ready - added.started:.1f} s"
            counts = f"{added.user:>18}{added.user_cold:>15}{added.warmup:>18}"
            lines.append(f"{added.started:>19.1f}{ready:>11}{took:>17}{counts}")
    if any((times(side.samples).late_p99 or 0.0) > LATE for side in (*result.without, *result.with_additions)):
        lines += ["", "the host was too busy to send in time: times to first token are not to be trusted"]
    shown = [sample for side in result.with_additions for sample in side.samples if sample.error][:_ERRORS_SHOWN]
    lines += [f"ERROR at {sample.at:.1f} s: {sample.error}" for sample in shown]
    return [*lines, "", *verdict_lines(result.verdicts())]


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f}"


def verdict_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """One line for each bound."""
    return [
        f"{'met   ' if verdict.met else 'MISSED'} {verdict.what}: {shown(verdict.measured)}, at most {verdict.limit:g}"
        for verdict in verdicts
    ]


def shown(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:.4g}"


def scale_verdicts(large: Run) -> list[Verdict]:
    """The bounds of a release for the large fleet."""
    return [
        Verdict(
            f"share of a core that looking after {large.replicas} replicas takes", CORE_LIMIT, large.steady.core_share
        ),
        *(
            Verdict(f"most {what} within 50 ms, {when}", spread.limit, spread.most)
            for when, phase in (("just after the start", large.settling), ("later", large.steady))
            for what, spread in (("looks", phase.looks), ("canaries", phase.canaries))
        ),
    ]


_TITLES = (
    *("replicas", "ready after, s", "CPU until then, s", "core %", "us/replica/s", "us/request", "looks/replica/s"),
    *("most in 50 ms", "if even", "played core %", "RSS MB"),
)


def cells(run: Run) -> tuple[str, ...]:
    """One row of the table."""
    steady = run.steady
    return (
        f"{run.replicas}",
        f"{run.start.seconds:.1f}",
        f"{run.start.cpu_seconds:.1f}",
        f"{steady.core_share * 100:.2f}",
        f"{steady.per_replica_us(run.replicas):.0f}",
        f"{steady.per_request_us:.0f}",
        f"{steady.looks.count / steady.seconds / run.replicas:.2f}",
        f"{steady.looks.most}",
        f"{steady.looks.even:.1f}",
        f"{run.played_share * 100:.1f}",
        f"{run.rss_bytes / 1e6:.0f}",
    )


def scale_lines(runs: Sequence[Run]) -> list[str]:
    """The figures as text; the last run is the one that is judged."""
    table = [_TITLES, *(cells(run) for run in runs)]
    widths = [max(len(row[column]) for row in table) for column in range(len(_TITLES))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    for run in runs:
        lines += [f"{run.replicas} replicas: {phase_line(name, each)}" for name, each in phases(run)]
    if len(runs) > 1:
        lines.append(f"each further replica: {marginal_us(runs[0], runs[-1]):.0f} us of CPU a second")
    lines += [
        f"{run.replicas} replicas: the gateway waited for a core for {run.steady.waited_seconds:.1f} s of "
        f"{run.steady.seconds:.0f} s: what it used, and how its looks came, is not to be trusted"
        for run in runs
        if run.steady.waited_seconds > BUSY * run.steady.seconds
    ]
    return [*lines, "", *verdict_lines(scale_verdicts(runs[-1]))]


def marginal_us(small: Run, large: Run) -> float:
    """CPU microseconds a second for each replica more: without what the gateway needs for itself."""
    more = large.steady.core_share - small.steady.core_share
    return more / max(large.replicas - small.replicas, 1) * 1e6


def phases(run: Run) -> tuple[tuple[str, Phase], ...]:
    return ("until all were ready", run.start), ("just after", run.settling), ("measured", run.steady)


def phase_line(name: str, phase: Phase) -> str:
    """What came in one phase."""
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(phase.counts.items()))
    return f"{name} ({phase.seconds:.0f} s): {counts}"


def host() -> Mapping[str, object]:
    """What a reader of the figures has to know of the machine."""
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }


def coldstart_document(result: ColdStart) -> dict[str, object]:
    """The whole result as JSON values."""
    return {
        "host": dict(host()),
        "wish": asdict(result.wish),
        "with_additions": [side_document(side) for side in result.with_additions],
        "without_additions": [side_document(side) for side in result.without],
        "verdicts": [asdict(verdict) | {"met": verdict.met} for verdict in result.verdicts()],
    }


def side_document(side: Side) -> dict[str, object]:
    return {
        "times": asdict(times(side.samples)),
        "cold": side.cold,
        "added": [asdict(added) for added in side.added],
        "samples": [[round(s.at, 3), s.ttft if s.ttft is None else round(s.ttft, 4), s.error] for s in side.samples],
    }


def scale_document(runs: Sequence[Run]) -> dict[str, object]:
    """The whole result as JSON values."""
    return {
        "host": dict(host()),
        "runs": [
            asdict(run)
            | {"core_share": run.steady.core_share, "us_per_replica_second": run.steady.per_replica_us(run.replicas)}
            for run in runs
        ],
        "verdicts": [asdict(verdict) | {"met": verdict.met} for verdict in scale_verdicts(runs[-1])],
    }
