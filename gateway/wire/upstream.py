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
import math
import ssl
from collections.abc import Callable
from typing import Any

from gateway.errors import EngineBusy, EngineFailure, EngineReset, EngineUnreachable
from gateway.wire.answer import Answer, Sink, UpstreamLimits
from gateway.wire.deadline import NEVER, Sweeper
from gateway.wire.engineconnection import EngineConnection
from gateway.wire.samehead import Opening

__all__ = ["Answer", "Sink", "UpstreamLimits", "UpstreamPool"]


class UpstreamPool:
    """Connections to one replica. ``close`` is idempotent and cuts what is in flight.

    With ``tls``, the certificate has to be valid for ``server_name``, else for ``host``; the time to connect includes
    the handshake. ``on_lost`` is called when the engine has closed a connection that waited for a request.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sweeper: Sweeper,
        host: str,
        port: int,
        limits: UpstreamLimits,
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.loop = loop
        self.limits = limits
        self.sweeper = sweeper
        self.opening: Opening | None = None
        self.learned_at = -math.inf
        self._host = host
        self._port = port
        self._tls: dict[str, Any] = {} if tls is None else {"ssl": tls, "server_hostname": server_name or host}
        self._idle: list[EngineConnection] = []
        self._all: set[EngineConnection] = set()
        self._on_lost = on_lost
        self._heard = -math.inf
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

    def heard(self) -> float:
        """When a byte of an answer's body last came on any connection, in the loop's seconds."""
        return max([self._heard, *[connection.heard for connection in self._all]])

    def give_up(self, failure: Callable[[], EngineFailure]) -> None:
        """End what waits for a connection, or for the first byte of an answer's body; what has begun goes on.

        Each ends with a failure of its own.
        """
        for connection in list(self._all):
            connection.give_up(failure)

    async def request(
        self, head: bytes, body: bytes, *, total: float | None = None, fresh: bool = False, whole: int | None = None
    ) -> Answer:
        """Send one request; returns with the answer's head. Raises ``EngineFailure``.

        ``head`` is the request line and headers with the empty line; ``total`` bounds the whole answer, in seconds.
        With ``whole``, returns when there is nothing to wait for in reading so many bytes of the answer.
        A connection from the pool that turns out to be closed, with no byte of an answer seen, is replaced by a fresh
        one once. A ``fresh`` request gets a connection of its own, which serves no other.
        """
        total_at = NEVER if total is None else self.loop.time() + total
        connection = None if fresh else self._take_idle()
        if connection is not None:
            # Not ``send``: a coroutine less on the path of nearly every request.
            answered = connection.begin(head, body, total_at, whole)
            try:
                return await answered
            except EngineReset:
                if not connection.virgin:
                    raise
            except asyncio.CancelledError:
                connection.abandon(answered)
                raise
        connection = await self._connect()
        connection.once = fresh
        return await connection.send(head, body, total_at, whole)

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
                await self.loop.create_connection(lambda: connection, self._host, self._port, **self._tls)
        except (OSError, UnicodeError) as error:  # of a handshake that fails, too; a name that can be none
            connection.abort()
            raise EngineUnreachable(slow=isinstance(error, TimeoutError)) from error
        except BaseException:
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

    def dropped(self, connection: EngineConnection) -> None:
        """The engine closed a connection that was still good."""
        if connection in self._idle:
            self._on_lost()

    def forget(self, connection: EngineConnection) -> None:
        """A connection is gone."""
        self._heard = max(self._heard, connection.heard)
        self._all.discard(connection)
        self.sweeper.discard(connection)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    def close(self) -> None:
        """Close every connection and make no more."""
        self._closed = True
        for connection in list(self._all):
            connection.abort()
