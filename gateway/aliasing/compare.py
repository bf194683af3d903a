"""Whether a canary does better or worse than what it tries to replace, and whether it is so bad that it must end.

Errors are what the alias failed at: engine failures and the gateway's own 5xx, never a 4xx nor a client that left. The
caller decides that. Requests count as independent; those of one conversation are not quite, so that few long
conversations look surer than they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from gateway.aliasing.statistics import (
    Buckets,
    Interval,
    even_interval,
    quantile,
    quantile_interval,
    rate_difference,
    wilson,
)


class Verdict(StrEnum):
    """The canary's, next to the stable track. ``SAME``: no difference is shown, which does not show that none is."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    NOT_ENOUGH = "not enough data"


@dataclass(frozen=True, slots=True)
class TrackCounts:
    """What one track has done: requests that an engine was to answer, how many of them were errors, and the
    histograms of the seconds to the first token and for each further one. Raises ``ValueError``.
    """

    requests: int
    errors: int
    ttft: Buckets
    tpot: Buckets

    def __post_init__(self) -> None:
        if not 0 <= self.errors <= self.requests:
            raise ValueError("errors are some of the requests")

    def __add__(self, other: TrackCounts) -> TrackCounts:
        """The same track at two instances. Raises ``ValueError`` if the bounds of their histograms differ."""
        return TrackCounts(
            self.requests + other.requests, self.errors + other.errors, self.ttft + other.ttft, self.tpot + other.tpot
        )


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure of one track from ``samples`` observations (``None``: there are none), and its own interval.

    A quantile's value is read off inside its bucket; its interval ends at bounds, and both tracks' hold together.
    """

    samples: int
    value: float | None
    interval: Interval


@dataclass(frozen=True, slots=True)
class Row:
    """One measure of both tracks. ``difference`` is canary minus stable and ``interval`` its own, at the confidence
    of the comparison; below ``minimum`` samples of either track neither is given.
    """

    measure: str
    unit: str
    minimum: int
    stable: Estimate
    canary: Estimate
    difference: float | None
    interval: Interval | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was compared, and a row for each measure. Each row alone is right with ``confidence``, not all at once."""

    stable: TrackCounts
    canary: TrackCounts
    confidence: float
    rows: tuple[Row, ...]

    def row(self, measure: str) -> Row:
        """The row of one measure. Raises ``KeyError``."""
        return {row.measure: row for row in self.rows}[measure]


@dataclass(frozen=True, slots=True)
class Margins:
    """How much worse a canary may be before it is ended.

    ``error_rate`` is a difference of rates (0.01: one point), ``ttft_p95`` a ratio. The confidence is that of a guard
    who looks often: a look at equal tracks is wrong once in 2,000 by either measure, and, as Newcombe's interval is
    not exact, once in 600 for error rates of a canary with 30 requests. Looks at a growing sample err together, and
    the margins make errors rarer: fifty looks at equal tracks stay well below one wrong end in twenty.
    """

    error_rate: float = 0.01
    ttft_p95: float = 1.5
    confidence: float = 0.999


class _Measure(NamedTuple):
    """``minimum`` is of samples of each track: fewer say nothing, or lack a value far enough out (86 for a p95)."""

    name: str
    unit: str
    minimum: int
    make: Callable[[TrackCounts, TrackCounts, float], tuple[Estimate, Estimate, Interval]]


def compare(stable: TrackCounts, canary: TrackCounts, confidence: float = 0.95) -> Comparison:
    """Both tracks, measure by measure.

    Error rates: Newcombe's interval of their difference. Quantiles: each track's order-statistics interval, widened
    to the buckets' bounds, at the root of the confidence, so that both hold together; the difference lies between
    their farthest ends. A quantile that moves within its bucket stays ``SAME``.
    """
    rows = tuple(_row(measure, stable, canary, confidence) for measure in _MEASURES)
    return Comparison(stable, canary, confidence, rows)


def abort_reason(comparison: Comparison, margins: Margins = Margins()) -> str | None:
    """Why the canary must end, in words; ``None``: nothing says so with the confidence of the margins.

    For the time to the first token two things must hold: the row says ``WORSE`` whatever lies inside the buckets, and
    the ratio is beyond its margin if values lie evenly in them. Bounds of buckets alone would hide a p95 three times
    as long where bounds lie that far apart.
    """
    stable, canary = comparison.stable, comparison.canary
    errors = _row(_ERROR_RATE, stable, canary, margins.confidence)
    if errors.interval is not None and errors.interval.low > margins.error_rate:
        return (
            f"error rate {_points(errors.canary.value)} % of {canary.requests} requests against "
            f"{_points(errors.stable.value)} % of {stable.requests}: worse by at least "
            f"{_points(errors.interval.low)} points, {_points(margins.error_rate)} are allowed"
        )
    if _row(_TTFT_P95, stable, canary, margins.confidence).verdict is not Verdict.WORSE:
        return None
    each = math.sqrt(margins.confidence)
    least, most = even_interval(canary.ttft, 0.95, each).low, even_interval(stable.ttft, 0.95, each).high
    if least < margins.ttft_p95 * most:
        return None
    return (
        f"p95 of the time to the first token at least {least:.3g} s in {canary.ttft.total} answers against "
        f"at most {most:.3g} s in {stable.ttft.total}: {margins.ttft_p95:g} times as long is allowed"
    )


def _row(measure: _Measure, stable: TrackCounts, canary: TrackCounts, confidence: float) -> Row:
    one, two, interval = measure.make(stable, canary, confidence)
    if min(one.samples, two.samples) < measure.minimum or one.value is None or two.value is None:
        return Row(measure.name, measure.unit, measure.minimum, one, two, None, None, Verdict.NOT_ENOUGH)
    return Row(
        measure.name, measure.unit, measure.minimum, one, two, two.value - one.value, interval, _verdict(interval)
    )


def _verdict(interval: Interval) -> Verdict:
    # Both kinds of intervals have a width, so that an end at 0 is on one side only. See ``quantile_interval`` for why
    # quantiles whose buckets touch differ; the ends of a rate's interval are never 0 but by rounding.
    if interval.low >= 0:
        return Verdict.WORSE
    return Verdict.BETTER if interval.high <= 0 else Verdict.SAME


def _error_rates(stable: TrackCounts, canary: TrackCounts, confidence: float) -> tuple[Estimate, Estimate, Interval]:
    one, two = _error_rate(stable, confidence), _error_rate(canary, confidence)
    if one.value is None or two.value is None:
        return one, two, _ANYTHING
    return one, two, rate_difference(stable.errors, stable.requests, canary.errors, canary.requests, confidence)


def _error_rate(track: TrackCounts, confidence: float) -> Estimate:
    if not track.requests:
        return Estimate(0, None, _ANYTHING)
    return Estimate(track.requests, track.errors / track.requests, wilson(track.errors, track.requests, confidence))


def _quantile_measure(name: str, read: Callable[[TrackCounts], Buckets], fraction: float, minimum: int) -> _Measure:
    def estimate(buckets: Buckets, confidence: float) -> Estimate:
        interval = quantile_interval(buckets, fraction, math.sqrt(confidence))
        return Estimate(buckets.total, quantile(buckets, fraction), interval)

    def make(stable: TrackCounts, canary: TrackCounts, confidence: float) -> tuple[Estimate, Estimate, Interval]:
        one, two = estimate(read(stable), confidence), estimate(read(canary), confidence)
        ends = Interval(two.interval.low - one.interval.high, two.interval.high - one.interval.low)
        return one, two, ends

    return _Measure(name, "s", minimum, make)


def _points(rate: float | None) -> str:
    return f"{100 * (rate or 0.0):.2f}"


_ANYTHING = Interval(-math.inf, math.inf)
_ERROR_RATE = _Measure("error rate", "", 30, _error_rates)
_TTFT_P95 = _quantile_measure("TTFT p95", lambda track: track.ttft, 0.95, 100)
_MEASURES = (
    _ERROR_RATE,
    _quantile_measure("TTFT p50", lambda track: track.ttft, 0.5, 30),
    _TTFT_P95,
    _quantile_measure("TPOT p50", lambda track: track.tpot, 0.5, 30),
    _quantile_measure("TPOT p95", lambda track: track.tpot, 0.95, 100),
)
