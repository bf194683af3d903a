"""What a client hears while its streamed request waits for a place: comments, which every reader of events skips.

Proxies and clients that give up on a silent connection stay with it in this way. The price is the status line, which is
sent with the first comment: what fails from then on is an event in the stream.
"""

from __future__ import annotations

import asyncio

from gateway.telemetry.trace import Trace
from gateway.wire.exchange import Exchange, Flow

_COMMENT = b": waiting\n\n"


class LateFlow:
    """Stands for an engine's answer that is not there yet, where a client's stream has begun without it."""

    def __init__(self) -> None:
        self._flow: Flow | None = None
        self._paused = False

    def join(self, flow: Flow) -> None:
        """The answer has come."""
        self._flow = flow
        if self._paused:
            flow.pause()

    def pause(self) -> None:
        """The client reads too slowly."""
        self._paused = True
        if self._flow is not None:
            self._flow.pause()

    def resume(self) -> None:
        """It has caught up."""
        self._paused = False
        if self._flow is not None:
            self._flow.resume()


class Hold:
    """Writes a comment each ``every`` seconds until it is closed. ``flow`` is there once the first has been written.

    ``lines`` are the header lines of the stream. ``close`` is idempotent.
    """

    def __init__(self, exchange: Exchange, trace: Trace, lines: bytes, every: float) -> None:
        self.flow: LateFlow | None = None
        self._exchange = exchange
        self._trace = trace
        self._lines = lines
        self._every = every
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(every, self._tick)

    def _tick(self) -> None:
        if self.flow is None:
            self.flow = LateFlow()
            self._trace.status = 200
            self._exchange.start(200, self._lines, self.flow)
        self._exchange.write(_COMMENT)
        self._timer = self._loop.call_later(self._every, self._tick)

    def close(self) -> None:
        """Say no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
