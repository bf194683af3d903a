"""One request of a client and the answer to it: the server's half of ``Exchange``, and what its connections share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Protocol

from gateway.errors import GatewayError, Refusal, Unavailable
from gateway.wire.bodymemory import BodyMemory
from gateway.wire.deadline import Sweeper
from gateway.wire.exchange import Flow

Handler = Callable[["Inbound"], Awaitable[None]]
# Answers a fault found before a handler runs: error -> (header lines, body).
RenderFault = Callable[[GatewayError], tuple[bytes, bytes]]

_STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
_SIZE_LINES = tuple(b"%x\r\n" % size for size in range(1024))  # formatting one takes more code than all of write
UNREAD_WINDOW = 256 * 1024  # body bytes held before a handler asks for the body


@dataclass(frozen=True, slots=True)
class InboundLimits:
    """Bounds on what a client may make the server hold or wait for. Seconds and bytes.

    ``head_bytes`` counts from the first byte of a request to the empty line. ``body_rate``, in bytes per second, is
    demanded of a body after ``body_timeout``, and of a client that reads its answer over each ``write_timeout``.
    ``overhead_bytes`` and ``overhead_ratio`` (per byte of body) bound what frames a body: chunk heads and trailers.
    """

    head_bytes: int = 32 * 1024
    head_timeout: float = 10.0
    idle_timeout: float = 75.0
    body_timeout: float = 30.0
    body_rate: float = 1024.0
    overhead_bytes: int = 64 * 1024
    overhead_ratio: int = 8
    write_timeout: float = 60.0
    write_buffer: int = 64 * 1024


class ServerClock:
    """The ``date`` header line, formatted once a second."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._second = -1
        self._line = b""

    def date_line(self) -> bytes:
        """The line with the current date, in RFC 9110's form."""
        second = int(self._wall())
        if second != self._second:
            self._second = second
            self._line = b"date: %b\r\n" % formatdate(second, usegmt=True).encode()
        return self._line


class Line(Protocol):
    """A client connection, as its requests and its listener see it."""

    context: InboundContext
    peer: str
    send: Callable[[bytes], None]

    def keep(self, exchange: Inbound, value: object) -> None:
        """Keep a value for the next exchange with the same head."""
        ...

    def want_body(self, exchange: Inbound) -> None:
        """The handler waits for the body."""
        ...

    def closes_after(self, exchange: Inbound) -> bool:
        """Whether the answer that begins now is the connection's last."""
        ...

    def distrust(self) -> None:
        """Read nothing more from this client as a request: the answer in hand is the connection's last."""
        ...

    def answered(self, exchange: Inbound) -> None:
        """The answer is complete."""
        ...

    def close_if_idle(self) -> None:
        """Close the connection unless a request has begun on it."""
        ...

    def cancel(self) -> None:
        """End what is being handled, or received: the server stops."""
        ...

    def abort(self) -> None:
        """Close at once. Idempotent."""
        ...


@dataclass(slots=True)
class InboundContext:
    """What all connections of one listener share.

    ``on_fault`` hears of requests refused before a handler ran, ``on_crash`` of handlers that raised.
    """

    loop: asyncio.AbstractEventLoop
    handler: Handler
    render_fault: RenderFault
    on_fault: Callable[[GatewayError], None]
    on_crash: Callable[[Exception], None]
    limits: InboundLimits
    sweeper: Sweeper
    clock: ServerClock
    connections: set[Line]
    max_connections: int
    bodies: BodyMemory
    draining: bool = False
    empty: asyncio.Event = field(default_factory=asyncio.Event)


class Inbound:
    """One request and its answer: the server's ``Exchange``.

    ``finished``: the answer has been written to its end, or given up. ``owed``: bytes of the body that are yet to
    come, where no parser says when it ends.
    """

    __slots__ = (
        "_body",
        "_body_error",
        "_body_waiter",
        "_held",
        "_limit",
        "_line",
        "arrived",
        "complete",
        "familiar",
        "finished",
        "flow",
        "gone",
        "head",
        "headers",
        "method",
        "owed",
        "peer",
        "received",
        "started",
        "target",
        "version",
    )

    def __init__(self, line: Line, arrived: float) -> None:
        self._line = line
        self._body: bytes | bytearray = b""
        self._body_waiter: asyncio.Future[None] | None = None
        self._body_error: GatewayError | None = None
        self._held = 0
        self._limit: int | None = None
        self.finished = False
        self.arrived = arrived
        self.method = ""
        self.target = b""
        self.version = ""
        self.headers: list[tuple[bytes, bytes]] = []
        self.head: Mapping[bytes, bytes] = {}
        self.peer = line.peer
        self.received = self.owed = 0
        self.complete = False
        self.familiar: object | None = None
        self.started = False
        self.gone = False
        self.flow: Flow | None = None

    @property
    def draining(self) -> bool:
        """Whether the server is stopping."""
        return self._line.context.draining

    def keep(self, value: object) -> None:
        """See ``Exchange.keep``."""
        self._line.keep(self, value)

    def whole_body(self, limit: int) -> bytes | None:
        """See ``Exchange.whole_body``."""
        if self._body_error is not None or not self.complete or self.received > limit:
            return None
        body, self._body = bytes(self._body), b""
        return body

    async def body(self, limit: int) -> bytes:
        """See ``Exchange.body``."""
        self._limit = limit
        declared = self.head.get(b"content-length")
        if self.received > limit or (declared is not None and int(declared) > limit):
            raise Refusal("body_too_large", close=True)
        if not self.complete and self._body_error is None:
            self._body_waiter = self._line.context.loop.create_future()
            self._line.want_body(self)
            await self._body_waiter
        if self._body_error is not None:
            raise self._body_error
        body, self._body = bytes(self._body), b""
        return body

    def feed(self, data: bytes) -> None:
        """Bytes of the body have come. A body in one piece is not copied; one in crumbs costs no more than its size."""
        size = len(data)
        self.received += size
        if self._body_error is not None or self.finished or self.gone:
            return
        if not self._line.context.bodies.take(size):
            self.fail_body(Unavailable("overloaded", retry_after=1, close=True))
            return
        self._held += size
        if self.received == size:
            self._body = data
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += data
        if self._limit is not None and self.received > self._limit:
            self.fail_body(Refusal("body_too_large", close=True))

    def take(self, data: bytes) -> bytes:
        """Bytes of a body of which ``owed`` have yet to come; what is behind it."""
        left = self.owed - len(data)
        if left < 0:
            self.take(data[:left])
            return data[left:]
        self.owed = left
        if data:
            self.feed(data)
        if not left:
            self.end_body()
        return b""

    def end_body(self) -> None:
        """The body is complete."""
        self.complete = True
        self._wake()

    def fail_body(self, error: GatewayError) -> None:
        """The body will not become complete."""
        self._body_error = error
        self._let_go()
        self._wake()

    def _let_go(self) -> None:
        """Nothing of the body is held any more. Idempotent.

        Otherwise it counts until the request has ended, though it was handed over: what was made of it is as large.
        """
        self._body = b""
        if self._held:
            self._line.context.bodies.give_back(self._held)
            self._held = 0

    def lose(self) -> None:
        """The client is gone."""
        self.gone = True
        self.flow = None
        self._let_go()

    def unread(self) -> bool:
        """Whether more has come than is held for a handler that has not asked yet."""
        return self._limit is None and self.received > UNREAD_WINDOW

    def _wake(self) -> None:
        if self._body_waiter is not None and not self._body_waiter.done():
            self._body_waiter.set_result(None)

    def respond(self, status: int, lines: bytes, body: bytes, *, close: bool = False) -> None:
        """See ``Exchange.respond``."""
        if self.gone or self.started:
            return
        self.started = True
        if close:
            self._line.distrust()
        shown = body if self.method != "HEAD" else b""
        self._send_head(status, lines, b"content-length: %d\r\n\r\n" % len(body), shown)
        self._end()

    def start(self, status: int, lines: bytes, flow: Flow) -> None:
        """See ``Exchange.start``."""
        if self.gone or self.started:
            return
        self.started = True
        self.flow = flow
        self._send_head(status, lines, b"transfer-encoding: chunked\r\n\r\n")

    def _send_head(self, status: int, lines: bytes, framing: bytes, body: bytes = b"") -> None:
        """Write a status line and header lines, ending with those that frame the body, and what there is of it."""
        line = self._line
        close = b"connection: close\r\n" if line.closes_after(self) else b""
        line.send(b"".join((_STATUS_LINES[status], line.context.clock.date_line(), lines, close, framing, body)))

    def write(self, data: bytes) -> None:
        """See ``Exchange.write``. An empty write sends nothing: an empty chunk would end the body."""
        if data and not self.gone and not self.finished:
            size = len(data)
            line = _SIZE_LINES[size] if size < len(_SIZE_LINES) else b"%x\r\n" % size
            self._line.send(line + data + b"\r\n")

    def pass_on(self, chunks: bytes) -> None:
        """See ``Exchange.pass_on``."""
        if not self.gone and not self.finished:
            self._line.send(chunks)

    def finish(self) -> None:
        """See ``Exchange.finish``."""
        if not self.gone and not self.finished:
            self._line.send(b"0\r\n\r\n")
            self._end()

    def abort(self) -> None:
        """See ``Exchange.abort``."""
        self.finished = True
        self.flow = None
        self._let_go()
        self._line.abort()

    def _end(self) -> None:
        self.finished = True
        self.flow = None
        self._let_go()
        self._line.answered(self)
