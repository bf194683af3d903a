"""How late the event loop is: what each request has to wait for others' work before its own is done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

INTERVAL = 0.25
"""Seconds between two times at which the timer is due."""


class LoopLag:
    """A timer that tells ``observe`` how many seconds late it fires. ``close`` is idempotent.

    A loop that stands still lets times pass at which the timer should have fired. Each of them is told, so that the
    share of late ones is a share of time: else two seconds without a turn would pass for one late timer of eight.
    ``clock`` never jumps; the loop's own may be that of its last turn, rounded to a millisecond (uvloop).
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        observe: Callable[[float], None],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._loop = loop
        self._observe = observe
        self._clock = clock
        self._due = clock() + INTERVAL
        self._timer: asyncio.TimerHandle | None = loop.call_later(INTERVAL, self._fire)

    def _fire(self) -> None:
        now = self._clock()
        self._observe(max(now - self._due, 0.0))  # a loop's timer may be early by its rounding
        self._due += INTERVAL
        while self._due <= now:
            self._observe(now - self._due)
            self._due += INTERVAL
        self._timer = self._loop.call_later(self._due - now, self._fire)

    def close(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
