"""Intervals next to published figures, to exact sums, and at the edges of what histograms know."""

from __future__ import annotations

import math
from math import comb

import pytest

from gateway.aliasing.statistics import (
    Buckets,
    Interval,
    even_interval,
    quantile,
    quantile_interval,
    rank_interval,
    rate_difference,
    wilson,
)


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilsons_interval_is_the_published_one(hits, total, low, high):
    """Newcombe, Statistics in Medicine 17 (1998) 857-872, table I, method 3."""
    assert wilson(hits, total, 0.95) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("one", "other", "low", "high"),
    [
        ((48, 80), (56, 70), 0.0524, 0.3339),
        ((3, 10), (9, 10), 0.1705, 0.8090),
        ((2, 7), (6, 7), 0.0582, 0.8062),
        ((0, 29), (5, 56), -0.0381, 0.1926),
        ((0, 20), (10, 10), 0.6791, 1.0),
        ((0, 20), (0, 10), -0.1611, 0.2775),
        ((0, 10), (10, 10), 0.6075, 1.0),
    ],
)
def test_the_difference_of_rates_is_the_published_one(one, other, low, high):
    """Newcombe, Statistics in Medicine 17 (1998) 873-890, table II, method 10 (there first minus second)."""
    assert rate_difference(*one, *other, 0.95) == pytest.approx((low, high), abs=5e-5)
    assert rate_difference(*other, *one, 0.95) == pytest.approx((-high, -low), abs=5e-5)


def exact_ranks(total: int, fraction: float, confidence: float) -> tuple[int, int]:
    tail = (1 - confidence) / 2
    chances = [comb(total, k) * fraction**k * (1 - fraction) ** (total - k) for k in range(total + 1)]
    below = [math.fsum(chances[: k + 1]) for k in range(total + 1)]
    lower = max((k + 1 for k in range(total) if below[k] <= tail), default=0)
    return lower, min((k + 1 for k in range(total) if below[k] >= 1 - tail), default=total + 1)


@pytest.mark.parametrize("total", [0, 1, 2, 7, 58, 59, 100, 400])
@pytest.mark.parametrize("fraction", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
def test_the_ranks_are_those_of_the_whole_sum(total, fraction, confidence):
    assert rank_interval(total, fraction, confidence) == exact_ranks(total, fraction, confidence)


def test_the_ranks_of_a_large_sample_are_near_those_of_the_normal_law():
    lower, upper = rank_interval(4_000_000, 0.5, 0.95)
    assert (lower, upper) == pytest.approx((2_000_000 - 1_960, 2_000_001 + 1_960), abs=2)


BOUNDS = (0.1, 0.25, 0.5)


def test_the_interval_of_a_quantile_ends_at_bounds_of_buckets():
    assert quantile_interval(Buckets(BOUNDS, (0, 1_000, 0, 0)), 0.95, 0.95) == Interval(0.1, 0.25)
    assert quantile_interval(Buckets(BOUNDS, (500, 500, 0, 0)), 0.5, 0.95) == Interval(0.0, 0.25)
    assert quantile_interval(Buckets(BOUNDS, (0, 900, 80, 20)), 0.95, 0.95) == Interval(0.25, 0.5)


def test_the_interval_is_open_where_no_value_is_far_enough_out():
    assert quantile_interval(Buckets(BOUNDS, (0, 0, 0, 0)), 0.95, 0.95) == Interval(0.0, math.inf)
    assert quantile_interval(Buckets(BOUNDS, (0, 70, 0, 0)), 0.95, 0.95) == Interval(0.1, math.inf)
    assert quantile_interval(Buckets(BOUNDS, (0, 72, 0, 0)), 0.95, 0.95) == Interval(0.1, 0.25)
    assert quantile_interval(Buckets(BOUNDS, (0, 0, 0, 100)), 0.95, 0.95) == Interval(0.5, math.inf)


def test_an_even_interval_is_read_off_inside_the_buckets_of_the_same_ranks():
    assert rank_interval(1_000, 0.5, 0.95) == (469, 532)
    assert even_interval(Buckets((1.0,), (1_000, 0)), 0.5, 0.95) == pytest.approx((0.468, 0.532))
    assert even_interval(Buckets((1.0, 2.0), (500, 500, 0)), 0.5, 0.95) == pytest.approx((0.936, 1.064))
    assert even_interval(Buckets((1.0,), (0, 1_000)), 0.5, 0.95) == Interval(1.0, math.inf)
    assert even_interval(Buckets((1.0,), (5, 0)), 0.5, 0.95) == Interval(0.0, math.inf)


@pytest.mark.parametrize(
    ("counts", "fraction", "value"),
    [
        ((0, 0, 0, 0), 0.5, None),
        ((100, 0, 0, 0), 0.5, 0.05),
        ((0, 100, 0, 0), 0.95, 0.2425),
        ((50, 50, 0, 0), 0.5, 0.1),
        ((0, 0, 0, 100), 0.95, 0.5),
        ((1, 0, 0, 0), 0.5, 0.05),
    ],
)
def test_a_quantile_is_read_off_its_bucket(counts, fraction, value):
    assert quantile(Buckets(BOUNDS, counts), fraction) == pytest.approx(value)


def test_histograms_add_up_if_their_bounds_are_the_same():
    assert Buckets((1.0,), (1, 2)) + Buckets((1.0,), (3, 4)) == Buckets((1.0,), (4, 6))
    with pytest.raises(ValueError, match="different bounds"):
        Buckets((1.0,), (1, 2)) + Buckets((2.0,), (3, 4))


@pytest.mark.parametrize("counts", [(1,), (1, 2, 3), (1, -1)])
def test_a_histogram_without_a_count_for_each_bucket_is_none(counts):
    with pytest.raises(ValueError, match="one count more"):
        Buckets((1.0,), counts)
