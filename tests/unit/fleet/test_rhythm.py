from random import Random

import pytest

from gateway.fleet.rhythm import TOGETHER, knocks, next_look

EVEN = 1_000 / 50  # of a thousand looks, in a fiftieth of an interval; they come in sixteenths


def most_together(times, window=0.02):
    ordered = sorted(times)
    return max(sum(at <= other < at + window for other in ordered) for at in ordered)


@pytest.mark.parametrize("interval", [0.1, 1.0, 30.0])
def test_intervals_are_a_tenth_more_or_less_and_a_part_that_brings_looks_together(interval):
    random = Random(1)
    gaps = [next_look(100.0, 100.0, interval, random.random) - 100.0 for _ in range(1_000)]
    assert all((0.9 - TOGETHER) * interval - 1e-9 <= gap <= 1.1 * interval for gap in gaps)
    assert len({round(gap / interval, 6) for gap in gaps}) <= 0.2 / TOGETHER + 2
    assert abs(sum(gaps) / 1_000 - (1 - TOGETHER / 2) * interval) < 0.02 * interval


def test_what_is_found_at_once_is_spread_over_an_interval():
    random = Random(2)
    first = [next_look(float("-inf"), 100.0, 1.0, random.random) for _ in range(1_000)]
    assert all(100.0 <= at <= 101.0 for at in first)
    assert most_together(first) < 5 * EVEN


def test_a_process_that_stood_still_does_not_look_at_all_at_once_again():
    random = Random(3)
    due = [next_look(float("-inf"), 100.0, 1.0, random.random) for _ in range(1_000)]
    after = [next_look(at, 101.0, 1.0, random.random) for at in due]  # all of them are looked at at 101.0, late
    assert all(at >= 101.0 for at in after)
    assert most_together(after) < 5 * EVEN


def test_long_pauses_are_spread_as_well():
    random = Random(4)
    assert most_together([next_look(100.0, 500.0, 1.0, random.random) for _ in range(1_000)]) < 5 * EVEN


def test_a_look_is_never_due_in_the_past():
    random = Random(5)
    for _ in range(10_000):
        now = random.uniform(0, 10)
        assert now <= next_look(random.uniform(0, 10), now, 1.0, random.random) <= max(now, 10.0) + 1.1


def test_a_new_connection_is_made_now_and_then_and_always_where_there_is_doubt():
    assert [step for step in range(5, 40, 5) if knocks(step, doubt=False)] == [10, 20, 30]
    assert all(knocks(step, doubt=True) for step in range(20))
