"""The client half: a keep-alive pool per replica over asyncio protocols and httptools.

Rules that the pool keeps, each with a test:

- A connection serves one request at a time and is used again only when its last answer ended cleanly, said nothing of
  closing, and was followed by no byte. It is never used again after an abort.
- vLLM closes an idle connection after exactly 5.0 s (captured, 0.32.0), so idle ones are dropped sooner; one that was
  closed all the same is replaced by a fresh one, once, if no byte of an answer had come.
- Deadlines: connect; first byte of the body (vLLM sends a stream's head at once, however long the request waits in its
  queue); silence between bytes; total. Silence is not counted while we ourselves have paused reading.
- Everything that an engine can make us hold is bounded: head bytes, interim answers, unread body bytes, connections.
"""

from __future__ import annotations

import asyncio
import contextlib

from gateway.errors import EngineBusy, EngineReset, EngineUnreachable
from gateway.wire.answer import Answer, Sink, UpstreamLimits
from gateway.wire.deadline import NEVER, Sweeper
from gateway.wire.engineconnection import EngineConnection

__all__ = ["Answer", "Sink", "UpstreamLimits", "UpstreamPool"]


class UpstreamPool:
    """Connections to one replica. ``close`` is idempotent and cuts what is in flight."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sweeper: Sweeper,
        host: str,
        port: int,
        limits: UpstreamLimits,
    ) -> None:
        self.loop = loop
        self.limits = limits
        self.sweeper = sweeper
        self._host = host
        self._port = port
        self._idle: list[EngineConnection] = []
        self._all: set[EngineConnection] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"<UpstreamPool {self.open} open, {self.idle} idle>"

    @property
    def open(self) -> int:
        """Connections now open, or about to be."""
        return len(self._all)

    @property
    def idle(self) -> int:
        """Connections that wait for a request."""
        return len(self._idle)

    async def request(self, head: bytes, body: bytes, *, total: float | None = None) -> Answer:
        """Send one request; returns with the answer's head. Raises ``EngineFailure``.

        ``head`` is the request line and headers with the empty line; ``total`` bounds the whole answer, in seconds.
        A connection from the pool that turns out to be closed, with no byte of an answer seen, is replaced by a fresh
        one once.
        """
        total_at = NEVER if total is None else self.loop.time() + total
        connection = self._take_idle()
        if connection is not None:
            try:
                return await connection.send(head, body, total_at)
            except EngineReset:
                if not connection.virgin:
                    raise
        connection = await self._connect()
        return await connection.send(head, body, total_at)

    def _take_idle(self) -> EngineConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.lost:
                return connection
        return None

    async def _connect(self) -> EngineConnection:
        if self._closed:
            raise EngineUnreachable
        if len(self._all) >= self.limits.max_connections:
            raise EngineBusy
        connection = EngineConnection(self)
        self._all.add(connection)
        try:
            async with asyncio.timeout(self.limits.connect):
                await self.loop.create_connection(lambda: connection, self._host, self._port)
        except (OSError, TimeoutError) as error:
            connection.abort()
            raise EngineUnreachable from error
        except asyncio.CancelledError:
            connection.abort()
            raise
        return connection

    def watch(self, connection: EngineConnection) -> None:
        """A connection has been made: its deadlines count from here on."""
        self.sweeper.add(connection)

    def give_back(self, connection: EngineConnection) -> None:
        """A connection is free again."""
        if self._closed:
            connection.abort()
            return
        connection.deadline = self.loop.time() + self.limits.keep_alive
        self._idle.append(connection)

    def forget(self, connection: EngineConnection) -> None:
        """A connection is gone."""
        self._all.discard(connection)
        self.sweeper.discard(connection)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    def close(self) -> None:
        """Close every connection and make no more."""
        self._closed = True
        for connection in list(self._all):
            connection.abort()
