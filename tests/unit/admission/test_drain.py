"""How fast those who wait get places: known only while something waits, and never believed for long."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from gateway.admission.drain import DrainMeter


def drained(rate: float, seconds: float, tokens: float = 100.0, start: float = 0.0) -> tuple[DrainMeter, float]:
    """A meter that saw so many requests a second, and when it saw the last."""
    meter = DrainMeter()
    meter.begin(start)
    now = start
    for number in range(1, int(rate * seconds) + 1):
        now = start + number / rate
        meter.note(tokens, now)
    return meter, now


@pytest.mark.parametrize("rate", [0.5, 4.0, 100.0])
@pytest.mark.parametrize("seconds", [8.0, 60.0])
def test_the_wait_is_what_is_ahead_over_the_rate(rate, seconds):
    meter, now = drained(rate, seconds)
    assert meter.wait_for(50, 5_000, now) == pytest.approx(50 / rate, rel=0.3)


def test_of_requests_and_tokens_the_one_with_more_hope_counts():
    meter, now = drained(10.0, 30.0, tokens=100.0)
    assert meter.wait_for(100, 1_000, now) == pytest.approx(1.0, rel=0.1)  # small ones
    assert meter.wait_for(10, 100_000, now) == pytest.approx(1.0, rel=0.1)  # few ones


def test_nothing_is_known_at_first_nor_of_a_single_place_nor_of_a_moment():
    meter = DrainMeter()
    assert (meter.wait_for(1, 1, 0.0), meter.retry_after(1_000, 0.0, 0.0)) == (None, 5)
    meter.begin(0.0)
    meter.note(10, 1.0)
    assert meter.wait_for(1, 1, 1.0) is None
    burst = DrainMeter()
    burst.begin(0.0)
    for _ in range(50):
        burst.note(10, 0.001)
    assert burst.wait_for(1, 1, 0.001) is None


def test_only_the_time_in_which_something_waits_counts():
    meter, now = drained(10.0, 20.0)
    known = meter.wait_for(10, math.inf, now)
    meter.end(now)
    meter.note(100, now + 50)  # nobody waited for it
    assert meter.wait_for(10, math.inf, now + 100) == known
    meter.begin(now + 100)
    assert meter.wait_for(10, math.inf, now + 100) == known


def test_what_was_long_ago_says_nothing():
    meter, now = drained(10.0, 20.0)
    meter.end(now)
    meter.begin(now + 121)
    assert meter.wait_for(10, 10, now + 121) is None


def test_a_change_of_pace_shows_within_half_a_minute():
    meter, now = drained(10.0, 60.0)
    for number in range(1, 31):
        meter.note(100, now + number)
    assert meter.wait_for(10, math.inf, now + 30) == pytest.approx(10.0, rel=0.6)
    slow = meter.wait_for(10, math.inf, now + 30)
    for number in range(1, 301):
        meter.note(100, now + 30 + number / 10)
    assert meter.wait_for(10, math.inf, now + 60) < slow / 3


def test_a_queue_that_has_come_to_a_halt_has_no_rate():
    meter, now = drained(1.0, 60.0)
    assert meter.wait_for(10, math.inf, now + 10) > 10
    assert meter.wait_for(10, math.inf, now + 60) is None
    assert meter.retry_after(10, now + 60, 0.0) == 5


def test_to_begin_twice_or_end_twice_changes_nothing():
    meter, now = drained(10.0, 20.0)
    known = meter.wait_for(10, math.inf, now)
    meter.begin(now + 1)
    assert meter.wait_for(10, math.inf, now + 1) > known  # that second was waited too
    meter.end(now + 1)
    known = meter.wait_for(10, math.inf, now + 1)
    meter.end(now + 50)
    assert meter.wait_for(10, math.inf, now + 60) == known


@pytest.mark.parametrize("jump", [-1e9, -1.0, 1e9, 1e300])
def test_a_clock_that_jumps_costs_what_is_known_at_most(jump):
    meter, now = drained(10.0, 20.0)
    after = now + jump
    wait = meter.wait_for(10, 100, after)
    assert wait is None or 0 <= wait < 60
    for number in range(1, 200):
        meter.note(100, after + number / 10)
    again = meter.wait_for(10, math.inf, after + 20)
    assert again is None or 0 < again < 10
    assert 1 <= meter.retry_after(10, after + 20, 0.0) <= 60


@pytest.mark.parametrize("queued", [0, 1, 10**9])
@pytest.mark.parametrize("rate", [0.3, 1_000.0])
@pytest.mark.parametrize("chance", [0.0, 0.999999])
def test_what_a_client_is_told_is_bounded(queued, rate, chance):
    meter, now = drained(rate, 30.0)
    assert 1 <= meter.retry_after(queued, now, chance) <= 60


def test_a_client_is_told_when_those_who_wait_now_will_have_got_places():
    meter, now = drained(2.0, 60.0)
    assert 13 <= meter.retry_after(30, now, 0.0) <= 17


def test_those_who_are_refused_together_are_not_told_to_come_back_together():
    """Over as long again as those wait who wait now, and never before these have got places."""
    for queued, least, most in ((2, 1, 3), (20, 10, 20), (60, 30, 50), (90, 45, 60), (118, 59, 60), (400, 40, 60)):
        meter, now = drained(2.0, 60.0)
        told = Counter(meter.retry_after(queued, now, chance / 1_000) for chance in range(1_000))
        expected = meter.wait_for(queued, math.inf, now)
        assert (min(told), max(told)) == (pytest.approx(least, abs=1), pytest.approx(most, abs=2))
        assert min(told) >= expected or expected > 60
        assert max(told.values()) - min(told.values()) <= 1
    assert {DrainMeter().retry_after(9, 0.0, chance / 10) for chance in range(10)} == {5, 6, 7, 8, 9, 10}


def test_tokens_that_are_none_take_nothing_away():
    meter, now = drained(10.0, 20.0, tokens=-5.0)
    assert meter.wait_for(10, 10, now) == pytest.approx(1.0, rel=0.1)
