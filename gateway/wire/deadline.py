"""One timer for every deadline of many connections.

A timer of the event loop costs a microsecond to set and another to cancel, and a stream would move its own with each
chunk. Here a connection only writes a number, and one sweep, some times a second, looks for numbers that have passed.
"""

from __future__ import annotations

import asyncio
import math
from typing import Protocol

NEVER = math.inf


class Watched(Protocol):
    """Something with a deadline: ``deadline`` is in the loop's seconds, ``NEVER`` for none."""

    deadline: float

    def on_deadline(self, now: float) -> None:
        """The deadline has passed. Sets a new one or ends what was waiting."""
        ...


class Sweeper:
    """Calls ``on_deadline`` of what it watches, at most ``interval`` seconds late. ``close`` is idempotent.

    ``now`` is when it last looked, in the loop's seconds: a time that costs nothing to read, for what happens often.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, interval: float = 0.1) -> None:
        self._loop = loop
        self.interval = interval
        self.now = loop.time()
        self._watched: set[Watched] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._watched)

    def add(self, watched: Watched) -> None:
        """Watch something until it is discarded."""
        self._watched.add(watched)
        if self._timer is None and not self._closed:
            self.now = self._loop.time()
            self._timer = self._loop.call_later(self.interval, self._sweep)

    def discard(self, watched: Watched) -> None:
        """Stop watching; unknown things are ignored."""
        self._watched.discard(watched)

    def _sweep(self) -> None:
        self._timer = None
        if self._watched and not self._closed:
            # Before the work: one watched thing that raises must not end everybody's deadlines.
            self._timer = self._loop.call_later(self.interval, self._sweep)
        now = self.now = self._loop.time()
        for watched in [w for w in self._watched if w.deadline <= now]:
            watched.on_deadline(now)

    def close(self) -> None:
        """Stop the sweep."""
        self._closed = True
        self._watched.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
