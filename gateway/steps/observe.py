"""The last step: exactly one record and one set of observations for each request, however it ended.

Traces are worked off in small batches. One at a time, between other work, the same code takes twice as long, because
its instructions have left the caches in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from gateway.telemetry.fields import record_of
from gateway.telemetry.trace import Trace, conclude

_BATCH = 64
_PAUSE = 0.02


class Records(Protocol):
    """Where records go."""

    def write(self, record: dict[str, Any]) -> None:
        """Take one record; never waits."""
        ...


class Observations(Protocol):
    """Where numbers go."""

    def observe(self, trace: Trace) -> None:
        """Count one finished request."""
        ...


class Observer:
    """Takes finished traces; each is written at most ``pause`` seconds later. ``close`` writes what is left."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        records: Records,
        observations: Observations,
        clock: Callable[[], float],
        *,
        pause: float = _PAUSE,
    ) -> None:
        self._loop = loop
        self._records = records
        self._observations = observations
        self._clock = clock
        self._pause = pause
        self._waiting: list[Trace] = []
        self._timer: asyncio.TimerHandle | None = None

    def note(self, trace: Trace) -> None:
        """A request has ended."""
        trace.ended = self._clock()
        waiting = self._waiting
        waiting.append(trace)
        if len(waiting) >= _BATCH:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._pause, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.flush()

    def flush(self) -> None:
        """Write what waits, now."""
        waiting, self._waiting = self._waiting, []
        for trace in waiting:
            conclude(trace)
            self._observations.observe(trace)
            self._records.write(record_of(trace))

    def close(self) -> None:
        """Write what is left and stop the timer. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.flush()
