"""What each scenario shall show, as limits on its figures. Pure."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from loadtests.bench.stats import ratio
from loadtests.overload.figures import Row, cost_within, fair_shares, recovery, wished
from loadtests.overload.result import Run

GOODPUT = 0.9
"""Least goodput under overload, of the capacity that was measured."""

RECOVERY = 10.0
"""Seconds after overload in which times to first token shall be normal again."""

NORMAL = 1.5
"""Times to first token are normal up to this multiple of those before the overload."""

SHARE = 0.9
"""Least that a tenant shall get of its fair share, in tokens: the rest is what a window of finite length cuts off."""

FILLED = 5.0
"""Seconds from the beginning of a flood after which shares count.

The first ones find free places, whoever sends them: a queue is fair between those who wait, and in the beginning nobody
does.
"""

TURNS = 6
"""Requests that may go before one that is due, beside those of its fair share.

Deficit round robin serves a flow within three rounds of what an ideal fair queue would (Stiliadis and Varma 1998,
latency of at most 3F/r); with two tenants and requests of equal size, a round is two requests.
"""

CLASSES = 2.0
"""Most that bulk load may lengthen the 99th percentile of interactive requests."""

_AT_MOST, _AT_LEAST = "<=", ">="
_COMPARE: Mapping[str, Callable[[float, float], bool]] = MappingProxyType(
    {_AT_MOST: operator.le, _AT_LEAST: operator.ge}
)


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure and its limit; ``value`` is ``None`` when nothing was measured, which meets nothing."""

    text: str
    value: float | None
    relation: str
    limit: float | None
    unit: str = ""

    @property
    def met(self) -> bool:
        return self.value is not None and self.limit is not None and _COMPARE[self.relation](self.value, self.limit)


def goals(run: Run) -> list[Goal]:
    """Those of the scenario that was run."""
    return _GOALS[run.scenario.name](run)


def _overload(run: Run) -> list[Goal]:
    _, during, after = run.spans
    row = _row(run.rows, "overload", "all")
    normal = _row(run.rows, "before", "all").ttft.p90
    back = recovery(run.attempts, during.end, (normal or 0.0) * NORMAL, after.end)
    goodput = ratio(row.goodput, run.capacity.tokens)
    spoken = [
        Goal("goodput under overload, of capacity", goodput, _AT_LEAST, GOODPUT),
        Goal(f"p90 TTFT back within {NORMAL:g} times the one before, after", back, _AT_MOST, RECOVERY, "s"),
    ]
    unspoken = sum(each.unspoken for each in run.rows)
    return [*spoken, Goal("refusals without Retry-After", float(unspoken), _AT_MOST, 0.0)]


def _tenants(run: Run) -> list[Goal]:
    both, alone = _row(run.rows, "both", "b"), run.reference
    lost = both.gave_up + both.wrong + sum(both.refused.values())
    turns = TURNS / run.capacity.requests if run.capacity.requests else None
    waits = [
        Goal(
            f"{name} TTFT of b, beside that alone with half the replicas plus {TURNS} turns",
            getattr(both.ttft, name),
            _AT_MOST,
            _plus(getattr(alone.ttft, name) if alone else None, turns),
            "s",
        )
        for name in ("p50", "p99")
    ]
    return [Goal("requests of b that were not served", float(lost), _AT_MOST, 0.0), *waits, *_shares(run)]


def _shares(run: Run) -> list[Goal]:
    """Each tenant's tokens, prompts included, over its max-min fair part of all that were served, once all wait."""
    span = run.spans[-1]
    begin, names = span.begin + FILLED, [stream.caller for stream in span.phase.streams]
    of = {name: [each for each in run.attempts if each.request.caller == name] for name in names}
    got = {name: sum(cost_within(each, begin, span.end) for each in of[name]) for name in names}
    demands = {name: sum(map(wished, (each for each in of[name] if begin <= each.at < span.end))) for name in names}
    weights = {name: run.scenario.callers[name].weight for name in names}
    fair = fair_shares(demands, weights, sum(got.values()))
    return [
        Goal(f"tokens of {name}, of its fair share", ratio(got[name], fair[name]), _AT_LEAST, SHARE) for name in names
    ]


def _classes(run: Run) -> list[Goal]:
    alone, beside = (_row(run.rows, phase, "interactive").ttft.p99 for phase in ("alone", "with bulk"))
    return [Goal("p99 TTFT of interactive with bulk, over that alone", ratio(beside, alone), _AT_MOST, CLASSES)]


def _plus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _row(rows: Sequence[Row], phase: str, caller: str) -> Row:
    return next(row for row in rows if (row.phase, row.caller) == (phase, caller))


_GOALS: Mapping[str, Callable[[Run], list[Goal]]] = MappingProxyType(
    {
        "overload": _overload,
        "tenants": _tenants,
        "weights": _shares,
        "long-prompts": _shares,
        "classes": _classes,
    }
)
