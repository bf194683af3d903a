"""From what was measured to figures. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from loadtests.bench.stats import percentile, ratio
from loadtests.fleet.report import LATE
from loadtests.routing.client import Answered
from loadtests.routing.engines import Counters

STARVED = 0.1
"""Share of a run that engines or target may wait for a core before its times are the host's."""

STALL = 0.1
"""Seconds for which the engines may stand still before times are theirs, not the target's."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a scenario on a target, without its lead. ``engines`` is what each did meanwhile.

    ``seconds`` is for how long requests were sent. ``starved`` is the share of the time that engines or target waited
    for a core of the host; ``None``: not known. ``stall`` is the longest of the engines' process, in seconds.
    """

    answered: Sequence[Answered]
    engines: Sequence[Counters]
    starved: float | None = None
    stall: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Times:
    """Percentiles, in seconds; ``None`` where nothing was measured."""

    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """A row: all runs of a scenario on a target together.

    ``hit_rate`` is the share of prompt tokens that the engines' caches held, ``most`` that of all prompt tokens which
    went to the replica that got the most.
    """

    requests: int
    errors: int
    ttft: Times
    total: Times
    hit_rate: float | None
    most: float | None
    preemptions: int
    late_p99: float | None
    starved: float | None
    """Of the worst run, as is ``stall``."""
    stall: float
    goodput: float | None = None
    """Requests a second whose first token came within the limit, and that had no error."""

    @property
    def trusted(self) -> bool:
        """Whether the host let them be figures of the target."""
        late = self.late_p99 is not None and self.late_p99 > LATE
        return not (late or (self.starved is not None and self.starved > STARVED) or self.stall > STALL)


def times(values: Iterable[float]) -> Times:
    ordered = sorted(values)
    return Times(percentile(ordered, 0.5), percentile(ordered, 0.9), percentile(ordered, 0.99))


def figures(runs: Sequence[Run], limit: float | None = None) -> Figures:
    """Runs are put together, not averaged: a percentile of percentiles would be none.

    ``limit`` is the longest time to a first token, in seconds, that counts as goodput; without one there is none.
    """
    answered = [each for run in runs for each in run.answered]
    good = [each for each in answered if not each.error]
    fleet = [engine for run in runs for engine in run.engines]
    queries = _sum(fleet, lambda engine: engine.queries)
    return Figures(
        requests=len(answered),
        errors=len(answered) - len(good),
        ttft=times(each.ttft for each in good if each.ttft is not None),
        total=times(each.total for each in good),
        hit_rate=ratio(_sum(fleet, lambda engine: engine.hits), queries),
        most=ratio(sum(max((engine.queries for engine in run.engines), default=0) for run in runs), queries),
        preemptions=_sum(fleet, lambda engine: engine.preemptions),
        late_p99=percentile(sorted(each.late for each in answered), 0.99),
        starved=max((run.starved for run in runs if run.starved is not None), default=None),
        stall=max((run.stall for run in runs), default=0.0),
        goodput=None if limit is None else ratio(_within(good, limit), sum(run.seconds for run in runs)),
    )


def _within(good: Sequence[Answered], limit: float) -> int:
    return sum(each.ttft is not None and each.ttft <= limit for each in good)


def _sum(fleet: Sequence[Counters], of: Callable[[Counters], int]) -> int:
    return sum(of(engine) for engine in fleet)


def first_errors(runs: Sequence[Run], count: int) -> list[str]:
    """Different ones, in the order of their coming."""
    return list(dict.fromkeys(each.error for run in runs for each in run.answered if each.error))[:count]
