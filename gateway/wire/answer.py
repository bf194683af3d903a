"""An engine's answer while it comes: gathered whole, or handed on piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.errors import EngineFailure, EngineProtocolError


@dataclass(frozen=True, slots=True)
class UpstreamLimits:
    """Deadlines in seconds and bounds in bytes for one replica's pool."""

    connect: float = 2.0
    first_byte: float = 600.0
    idle: float = 120.0
    keep_alive: float = 4.0
    max_connections: int = 1024
    head_bytes: int = 64 * 1024
    unread_bytes: int = 256 * 1024


class Carrier(Protocol):
    """The connection that an answer comes on."""

    loop: asyncio.AbstractEventLoop
    limits: UpstreamLimits

    def pause(self) -> None:
        """Stop reading. Idempotent."""
        ...

    def resume(self) -> None:
        """Read on. Idempotent."""
        ...

    def release(self, *, clean: bool) -> None:
        """The answer's holder is done with it."""
        ...


Take = Callable[[bytes], bool]
"""Takes what one read brought, whole chunks of a chunked body with their framing, or leaves it (false)."""


class Sink(Protocol):
    """Takes an answer's body as it comes, on the event loop, without waiting."""

    def feed(self, data: bytes) -> None:
        """Some of the body; never empty."""
        ...

    def end(self) -> None:
        """The body ended as its framing promised."""
        ...

    def fail(self, error: EngineFailure) -> None:
        """The body will not end. Called at most once, instead of ``end``."""
        ...


class Answer:
    """An engine's answer whose head has come. Holds its connection until ``close``, which is idempotent."""

    __slots__ = (
        "_complete",
        "_connection",
        "_error",
        "_limit",
        "_sink",
        "_unread",
        "_waiter",
        "headers",
        "received",
        "shortcut",
        "status",
    )

    def __init__(self, connection: Carrier, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._connection: Carrier | None = connection
        self._unread: list[bytes] = []
        self.received = 0
        self._limit: int | None = None
        self._sink: Sink | None = None
        self.shortcut: Callable[[], Take | None] = lambda: None
        self._waiter: asyncio.Future[Answer] | None = None
        self._complete = False
        self._error: EngineFailure | None = None
        self.status = status
        self.headers = headers

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header, by its lower-case name."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises ``EngineFailure``; a body over ``limit`` bytes is an ``EngineProtocolError``."""
        if not self._complete:
            await self._gather(limit)
        if self._error is not None:
            raise self._error
        if self.received > limit:
            raise EngineProtocolError
        return self._take()

    async def read_some(self, limit: int) -> bytes:
        """The body's first ``limit`` bytes, fewer if it ends or fails sooner. Never raises ``EngineFailure``.

        For error answers, whose status alone says most: vLLM's quote the request and may be as large as it.
        """
        await self._gather(limit)
        return self._take()[:limit]

    def gather(self, limit: int, whole: asyncio.Future[Answer]) -> None:
        """Have this future when the body has ended, has failed or is longer than ``limit`` bytes: ``read`` need not
        wait then. For who wants nothing of an answer before."""
        self._limit, self._waiter = limit, whole

    async def _gather(self, limit: int) -> None:
        """Wait until the body has ended, has failed or is longer than ``limit`` bytes."""
        self._limit = limit
        connection = self._connection
        if not self._complete and self._error is None and self.received <= limit and connection is not None:
            connection.resume()
            self._waiter = connection.loop.create_future()
            await self._waiter

    def _take(self) -> bytes:
        unread, self._unread = self._unread, []
        return unread[0] if len(unread) == 1 else b"".join(unread)

    def pipe(self, sink: Sink, shortcut: Callable[[], Take | None] = lambda: None) -> None:
        """Give the body, from its first byte, to ``sink``.

        ``shortcut`` is asked after each feed for what may take whole chunks past the parser, framing and all.
        """
        self._sink, self.shortcut = sink, shortcut
        self.resume()  # first: the sink may pause while it takes what is there
        unread = self._take()
        if unread:
            sink.feed(unread)
        if self._error is not None:
            sink.fail(self._error)
        elif self._complete:
            sink.end()

    def pause(self) -> None:
        """Stop reading from the engine (``Flow``)."""
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Read on (``Flow``)."""
        if self._connection is not None:
            self._connection.resume()

    def close(self) -> None:
        """Let go of the connection: back to the pool after a clean end, closed at once otherwise."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release(clean=self._complete)
        self._wake()

    # --- the connection's side

    def feed(self, data: bytes) -> bool:
        """Take body bytes; returns whether more may come now."""
        self.received += len(data)
        if self._sink is not None:
            self._sink.feed(data)
            return True
        self._unread.append(data)
        if self._limit is not None:
            if self.received > self._limit:
                self._wake()
            return self.received <= self._limit
        return self._connection is not None and self.received <= self._connection.limits.unread_bytes

    def give(self, body: bytes) -> None:
        """The whole body at once: what ``feed`` and ``end`` would do."""
        if self._sink is not None:
            if body:
                self.feed(body)
            self.end()
            return
        self.received, self._complete = len(body), True
        self._unread.append(body)
        if self._waiter is not None:
            self._wake()

    def end(self) -> None:
        """The body is complete."""
        self._complete = True
        if self._sink is not None:
            self._sink.end()
        if self._waiter is not None:
            self._wake()

    def fail(self, error: EngineFailure) -> None:
        """The body will not become complete."""
        if self._complete or self._error is not None:
            return
        self._error = error
        if self._sink is not None:
            self._sink.fail(error)
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None  # which holds the answer from here on
        if waiter is not None and not waiter.done():
            waiter.set_result(self)
