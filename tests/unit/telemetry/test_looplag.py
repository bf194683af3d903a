"""A timer that tells how late it is, once for each time at which it was due."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.looplag import INTERVAL, LoopLag


class Timer:
    def __init__(self, delay: float, fire: Any) -> None:
        self.delay, self.fire, self.cancelled = delay, fire, False

    def cancel(self) -> None:
        self.cancelled = True


class Desk:
    """A loop that fires when it is told to, and what was observed."""

    def __init__(self) -> None:
        self.now, self.seen = 100.0, []
        self.timers: list[Timer] = []
        loop: Any = self
        self.lag = LoopLag(loop, self.seen.append, clock=lambda: self.now)

    def call_later(self, delay: float, fire: Any) -> Timer:
        self.timers.append(Timer(delay, fire))
        return self.timers[-1]

    def fire(self, late: float) -> list[float]:
        """What is observed when the timer fires so late."""
        self.now += self.timers[-1].delay + late
        before = len(self.seen)
        self.timers[-1].fire()
        return self.seen[before:]


def test_a_loop_with_time_to_spare_is_not_late():
    desk = Desk()
    assert [desk.fire(0.0) for _ in range(3)] == [[pytest.approx(0.0, abs=1e-9)]] * 3
    assert [timer.delay for timer in desk.timers] == [pytest.approx(INTERVAL)] * 4


def test_lateness_is_told_and_does_not_add_up():
    desk = Desk()
    assert desk.fire(0.1) == [pytest.approx(0.1)]
    assert desk.timers[-1].delay == pytest.approx(INTERVAL - 0.1)
    assert desk.fire(0.0) == [pytest.approx(0.0, abs=1e-9)]


def test_a_timer_that_is_early_by_its_rounding_is_not_late():
    desk = Desk()
    assert desk.fire(-0.0009) == [0.0]
    assert desk.timers[-1].delay == pytest.approx(INTERVAL + 0.0009)


def test_a_stop_counts_for_each_time_that_it_let_pass():
    desk = Desk()
    assert desk.fire(2.1 * INTERVAL) == [pytest.approx(INTERVAL * part) for part in (2.1, 1.1, 0.1)]
    assert desk.timers[-1].delay == pytest.approx(0.9 * INTERVAL)


@given(st.lists(st.floats(-0.001, 30.0), max_size=20))
def test_there_is_one_observation_for_each_interval_that_has_passed(lateness):
    desk = Desk()
    for late in lateness:
        assert all(0.0 <= each <= max(late, 0.0) + 1e-6 for each in desk.fire(late))
        assert 0.0 < desk.timers[-1].delay <= INTERVAL + 0.0011
    passed = (desk.now - 100.0) / INTERVAL
    assert len(desk.seen) == pytest.approx(passed, abs=1.01)


def test_it_ends_when_it_is_closed_and_may_be_closed_again():
    desk = Desk()
    desk.fire(0.0)
    desk.lag.close()
    desk.lag.close()
    assert [timer.cancelled for timer in desk.timers] == [False, True]


def test_a_real_loop_fires_it_and_what_holds_the_loop_up_is_seen():
    async def body() -> list[float]:
        now, seen, enough = [0.0], [], asyncio.Event()

        def observe(late: float) -> None:
            seen.append(late)
            if len(seen) == 2:
                enough.set()

        lag = LoopLag(asyncio.get_running_loop(), observe, clock=lambda: now[0])
        now[0] = 1.4 * INTERVAL
        async with asyncio.timeout(5):
            await enough.wait()
        lag.close()
        return seen

    assert asyncio.run(body()) == [pytest.approx(0.4 * INTERVAL), 0.0]
