"""When errors take a replica out, for how long, and how many at once."""

from __future__ import annotations

import math

import pytest

from gateway.fleet.breaker import Breaker, ejection_time, jittered, may_eject
from gateway.policy.fleet import Breaker as BreakerPolicy

POLICY = BreakerPolicy(consecutive=5, error_rate=0.5, requests=20, window=30, eject=5, eject_most=300)


@pytest.fixture
def breaker():
    return Breaker(POLICY)


def feed(breaker, outcomes, now=100.0):
    """One outcome for each letter: ``x`` failed, anything else succeeded."""
    for outcome in outcomes:
        (breaker.fail if outcome == "x" else breaker.succeed)(now)


def test_a_replica_that_answers_stays(breaker):
    assert breaker.open(0.0, POLICY) is None
    feed(breaker, "." * 100)
    assert breaker.open(100.0, POLICY) is None


def test_failures_in_a_row_open_it(breaker):
    feed(breaker, "...xxxx")
    assert breaker.open(100.0, POLICY) is None
    feed(breaker, "x")
    assert breaker.open(100.0, POLICY) == "5 failures in a row"


def test_one_success_ends_the_row(breaker):
    feed(breaker, "xxxx.xxxx")
    assert breaker.open(100.0, POLICY) is None


def test_a_row_has_no_age(breaker):
    for hour in range(5):
        breaker.fail(3600.0 * hour)
    assert breaker.open(1e6, POLICY) == "5 failures in a row"


def test_a_share_of_failures_opens_it(breaker):
    feed(breaker, ".x" * 9)
    assert breaker.open(100.0, POLICY) is None  # too few to prove anything
    feed(breaker, "x.x")
    assert breaker.open(100.0, POLICY) == "52 % of 21 requests failed"


def test_a_smaller_share_does_not(breaker):
    feed(breaker, "..x" * 50)
    assert breaker.open(100.0, POLICY) is None


def test_what_is_older_than_the_window_does_not_count(breaker):
    feed(breaker, "x.x.x.x.x.x.x.x.x.x.", 100.0)
    assert breaker.open(114.0, POLICY) is not None
    assert breaker.open(129.9, POLICY) is not None
    assert breaker.open(130.0, POLICY) is None


def test_both_halves_of_the_window_count(breaker):
    feed(breaker, "x." * 5, 100.0)
    feed(breaker, "x." * 5, 116.0)
    assert breaker.open(117.0, POLICY) == "50 % of 20 requests failed"
    assert breaker.open(131.0, POLICY) is None


def test_after_a_long_silence_neither_half_counts(breaker):
    feed(breaker, "x." * 10, 100.0)
    feed(breaker, "x." * 10, 116.0)
    assert breaker.open(200.0, POLICY) is None


def test_it_forgets_when_told(breaker):
    feed(breaker, "x" * 40)
    breaker.reset()
    assert breaker.open(100.0, POLICY) is None
    feed(breaker, "xxxx")
    assert breaker.open(100.0, POLICY) is None


def test_another_policy_holds_at_once(breaker):
    feed(breaker, "xx.", 100.0)
    assert breaker.open(100.0, BreakerPolicy(requests=3)) == "67 % of 3 requests failed"
    assert breaker.open(102.0, BreakerPolicy(requests=3, window=2)) is None


def test_a_clock_that_is_set_back_loses_nothing_and_keeps_nothing_for_ever(breaker):
    feed(breaker, "x.x.x.x.x.x.x.x.x.x.", 1e6)
    for now in (100.0, 101.0, 99.0):
        assert breaker.open(now, POLICY) == "50 % of 20 requests failed"
    assert breaker.open(130.0, POLICY) is None


def test_ejections_double_up_to_a_bound():
    times = [ejection_time(number, POLICY, lambda: 0.5) for number in range(1, 10)]
    assert times == [5, 10, 20, 40, 80, 160, 300, 300, 300]


@pytest.mark.parametrize("ejections", [-1, 0, 1, 7, 10**9])
@pytest.mark.parametrize(("random", "factor"), [(0.0, 0.8), (1.0, 1.2)])
def test_ejections_are_spread_at_the_bound_too(ejections, random, factor):
    middle = ejection_time(ejections, POLICY, lambda: 0.5)
    assert ejection_time(ejections, POLICY, lambda: random) == pytest.approx(factor * middle)
    assert 5 <= middle <= 300


@pytest.mark.parametrize(
    ("pool", "share", "most"),
    [
        (0, 0.5, 0),
        (1, 0.5, 0),
        (1, 1.0, 0),
        (2, 0.5, 1),
        (2, 0.1, 1),
        (3, 0.5, 1),
        (4, 0.5, 2),
        (5, 0.5, 2),
        (3, 1.0, 2),
        (100, 0.29, 29),
        (256, 0.5, 128),
        (4, 0.0, 0),
    ],
)
def test_a_pool_keeps_its_share_and_never_loses_its_last(pool, share, most):
    out = 0
    while may_eject(out, pool, share):
        out += 1
    assert out == most


def test_a_pool_that_has_shrunk_loses_no_more():
    assert not may_eject(3, 4, 0.5)
    assert not may_eject(3, 2, 1.0)


@pytest.mark.parametrize(("random", "seconds"), [(0.0, 9.0), (0.5, 10.0), (1.0, 11.0)])
def test_loops_are_spread(random, seconds):
    assert math.isclose(jittered(10.0, lambda: random), seconds)
