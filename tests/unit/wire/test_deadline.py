"""One sweep for many deadlines."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.wire.deadline import NEVER, Sweeper

INTERVAL = 0.1


class Timer:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """A loop whose time stands still until told."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[tuple[float, Any, Timer]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Any) -> Timer:
        timer = Timer()
        self.calls.append((self.now + delay, call, timer))
        return timer

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [each for each in self.calls if each[0] <= self.now]
        self.calls = [each for each in self.calls if each[0] > self.now]
        for _, call, timer in due:
            if not timer.cancelled:
                call()


class Watched:
    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.rung: list[float] = []

    def on_deadline(self, now: float) -> None:
        self.rung.append(now)
        self.deadline = NEVER


def made() -> tuple[Any, Sweeper]:
    loop: Any = Loop()
    return loop, Sweeper(loop, INTERVAL)


def test_a_deadline_rings_once_and_at_most_one_interval_late() -> None:
    loop, sweeper = made()
    early, late, never = Watched(0.05), Watched(0.25), Watched(NEVER)
    for each in (early, late, never):
        sweeper.add(each)
    assert len(sweeper) == 3
    for _ in range(5):
        loop.advance(INTERVAL)
    assert [round(at, 6) for at in early.rung] == [0.1]
    assert [round(at, 6) for at in late.rung] == [0.3]
    assert never.rung == []


def test_what_is_discarded_does_not_ring() -> None:
    loop, sweeper = made()
    watched = Watched(0.0)
    sweeper.add(watched)
    sweeper.discard(watched)
    sweeper.discard(watched)
    loop.advance(INTERVAL)
    assert watched.rung == []


def test_the_sweep_rests_while_nothing_is_watched() -> None:
    loop, sweeper = made()
    first = Watched(0.0)
    sweeper.add(first)
    sweeper.discard(first)
    loop.advance(INTERVAL)
    assert loop.calls == []
    second = Watched(0.0)
    sweeper.add(second)
    loop.advance(INTERVAL)
    assert len(second.rung) == 1


def test_what_discards_itself_when_it_rings_spares_the_others() -> None:
    loop, sweeper = made()

    class Leaving(Watched):
        def on_deadline(self, now: float) -> None:
            super().on_deadline(now)
            sweeper.discard(self)

    several = [Leaving(0.0) for _ in range(5)]
    for each in several:
        sweeper.add(each)
    loop.advance(INTERVAL)
    assert all(len(each.rung) == 1 for each in several)
    assert len(sweeper) == 0


def test_after_close_nothing_rings() -> None:
    loop, sweeper = made()
    watched = Watched(0.0)
    sweeper.add(watched)
    sweeper.close()
    sweeper.close()
    sweeper.add(watched)
    loop.advance(INTERVAL)
    assert watched.rung == []


def test_on_a_real_loop() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        sweeper = Sweeper(loop, 0.01)
        rung = asyncio.Event()

        class Ringing(Watched):
            def on_deadline(self, now: float) -> None:
                super().on_deadline(now)
                rung.set()

        sweeper.add(Ringing(loop.time() + 0.02))
        async with asyncio.timeout(5):
            await rung.wait()
        sweeper.close()

    asyncio.run(body())
