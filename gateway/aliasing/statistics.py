"""Confidence intervals for rates and for quantiles that are known from histogram buckets only. Pure.

Observations count as independent. Confidence is two-sided: 0.95 leaves 2.5 % on either side.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist
from typing import NamedTuple


class Interval(NamedTuple):
    """From ``low`` to ``high``, which may be infinite."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram. ``counts[i]`` are the values above ``bounds[i - 1]`` and at most ``bounds[i]``.

    Bounds rise and are positive, no value is negative, and one count more than bounds is for values above the last.
    Raises ``ValueError``.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.bounds) + 1 or min(self.counts) < 0:
            raise ValueError("a histogram has one count more than bounds, none below 0")

    def __add__(self, other: Buckets) -> Buckets:
        """Both together. Raises ``ValueError`` if their bounds are not the same."""
        if self.bounds != other.bounds:
            raise ValueError("histograms with different bounds cannot be added")
        return Buckets(self.bounds, tuple(map(sum, zip(self.counts, other.counts, strict=True))))

    @property
    def total(self) -> int:
        """How many values were observed."""
        return sum(self.counts)

    def edges(self, index: int) -> Interval:
        """The bounds of one bucket."""
        low = self.bounds[index - 1] if index else 0.0
        return Interval(low, self.bounds[index] if index < len(self.bounds) else math.inf)


def wilson(hits: int, total: int, confidence: float) -> Interval:
    """The interval of a rate. Source: Wilson, J. Am. Stat. Assoc. 22 (1927) 209-212."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate, spread = hits / total, z * z / total
    middle = rate + spread / 2
    half = z * math.sqrt(rate * (1 - rate) / total + spread / (4 * total))
    return Interval(max(0.0, (middle - half) / (1 + spread)), min(1.0, (middle + half) / (1 + spread)))


def rate_difference(hits: int, total: int, other_hits: int, other_total: int, confidence: float) -> Interval:
    """The interval of the second rate minus the first.

    Source: Newcombe, Statistics in Medicine 17 (1998) 873-890, method 10 (square-and-add of Wilson's limits). It
    holds for small samples and for rates of 0 and 1, where the usual normal interval has no width.
    """
    one, two = wilson(hits, total, confidence), wilson(other_hits, other_total, confidence)
    first, second = hits / total, other_hits / other_total
    return Interval(
        max(-1.0, second - first - math.sqrt((second - two.low) ** 2 + (one.high - first) ** 2)),
        min(1.0, second - first + math.sqrt((two.high - second) ** 2 + (first - one.low) ** 2)),
    )


def quantile(buckets: Buckets, fraction: float) -> float | None:
    """The quantile, read off its bucket as if the values lay evenly in it (``None``: there are none).

    Of the last bucket only the lower bound is known, and that is returned.
    """
    return _even(buckets, fraction * buckets.total) if buckets.total else None


def quantile_interval(buckets: Buckets, fraction: float, confidence: float) -> Interval:
    """The interval of a quantile, widened to the bounds of the buckets that its ends lie in.

    Source: order statistics, Hahn and Meeker, Statistical Intervals (1991) 5.2; nothing is assumed of the values'
    distribution. The quantile is above ``low`` and at most ``high``.
    """
    lower, upper = rank_interval(buckets.total, fraction, confidence)
    low = buckets.edges(_bucket_of(buckets, lower)).low if lower else 0.0
    return Interval(low, buckets.edges(_bucket_of(buckets, upper)).high if upper <= buckets.total else math.inf)


def even_interval(buckets: Buckets, fraction: float, confidence: float) -> Interval:
    """The interval of a quantile as ``quantile`` reads it: narrower than a bucket, if values lie evenly in theirs.

    It is made of the same ranks. Whether they do or not, it is wrong about two histograms of the same distribution no
    oftener than its confidence says: both are read the same way.
    """
    lower, upper = rank_interval(buckets.total, fraction, confidence)
    return Interval(
        _even(buckets, lower - 1) if lower else 0.0,
        _even(buckets, upper, math.inf) if upper <= buckets.total else math.inf,
    )


def rank_interval(total: int, fraction: float, confidence: float) -> tuple[int, int]:
    """The ranks (from 1) of the values that enclose the quantile; 0 or ``total + 1``: no value is far enough out.

    How many of ``total`` values are at most the quantile is binomial. The ranks are the innermost ones that leave at
    most half of ``1 - confidence`` on either side.
    """
    tail = (1 - confidence) / 2
    spread = math.sqrt(total * fraction * (1 - fraction))
    # What lies further out has a probability below 1e-15: the sum may start there.
    count = max(0, math.floor(total * fraction - 10 * spread - 10))
    chance = math.exp(
        math.lgamma(total + 1)
        - math.lgamma(count + 1)
        - math.lgamma(total - count + 1)
        + count * math.log(fraction)
        + (total - count) * math.log1p(-fraction)
    )
    lower, below = 0, chance
    while below < 1 - tail and count < total:
        if below <= tail:
            lower = count + 1
        chance *= (total - count) / (count + 1) * fraction / (1 - fraction)
        count += 1
        below += chance
    return lower, count + 1


def _even(buckets: Buckets, rank: float, beyond: float | None = None) -> float:
    """The value below which ``rank`` values lie; ``beyond`` is for one in the last bucket (``None``: its bound)."""
    index = _bucket_of(buckets, max(1, math.ceil(rank)))
    low, high = buckets.edges(index)
    if math.isinf(high):
        return low if beyond is None else beyond
    inside = rank - sum(buckets.counts[:index])
    return low + (high - low) * min(1.0, max(0.0, inside / buckets.counts[index]))


def _bucket_of(buckets: Buckets, rank: int) -> int:
    """The bucket of the value with this rank, from 1."""
    return bisect_left(tuple(accumulate(buckets.counts)), rank)
