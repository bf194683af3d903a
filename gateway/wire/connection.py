"""The server half: HTTP/1.1 over an asyncio protocol and httptools, one exchange at a time per connection.

What it adds to the parser, which has no limits: a bounded header block, a deadline for the header block and one with a
minimum rate for the body, framing overhead in proportion to the body, trailers dropped, slow readers cut off. Pipelined
requests are not served: the answer in hand says ``connection: close``, which HTTP allows and clients must expect.

States of a connection: it waits for a head, receives and handles one exchange, then waits again. A last answer that
came before the client had said everything is followed by a moment of lingering: closing on unread bytes would reset
the answer away. No verdict depends on how the client's bytes were cut into segments.

A request whose head is the one before, but for its length (``Kept``), is not parsed: the parser stays between two.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import cast

import httptools

from gateway.errors import Refusal
from gateway.wire.deadline import NEVER
from gateway.wire.inbound import UNREAD_WINDOW, Inbound, InboundContext
from gateway.wire.kept import Memory
from gateway.wire.worker import Worker

_PIECE = 16 * 1024  # how far the framing of a chunked body may run ahead of its bounds
_LINGER_SECONDS = 2.0
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection(asyncio.Protocol):
    """One client connection."""

    send: Callable[[bytes], None]  # once connected

    def __init__(self, context: InboundContext) -> None:
        limits = context.limits
        self.context = context
        self.deadline = NEVER
        self.peer = ""
        self._limits = limits
        self._free_bytes = min(limits.head_bytes, limits.overhead_bytes, UNREAD_WINDOW)
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._exchange: Inbound | None = None
        self._worker = Worker(context)
        self._head_done = False
        self._raw_bytes = 0
        self._surplus_bytes = 0
        self._body_started = 0.0
        self._unsent = math.inf
        self._close_after = self._distrusted = self._ending = False
        self._reading = self._writable = True
        self._memory = Memory(limits.head_bytes)

    # --- the event loop's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast(asyncio.Transport, transport)
        self.send = self._transport.write  # itself, not a method around it: each chunk of a stream passes here
        context = self.context
        if len(context.connections) >= context.max_connections:
            self._transport.abort()
            return
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer)
        context.connections.add(self)
        context.sweeper.add(self)
        self.deadline = context.loop.time() + self._limits.head_timeout

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, by whoever's hand."""
        self.context.connections.discard(self)
        self.context.sweeper.discard(self)
        if not self.context.connections:
            self.context.empty.set()
        self.deadline = NEVER
        exchange, self._exchange = self._exchange, None
        if exchange is not None and not exchange.finished:
            exchange.lose()
            self._worker.cancel()
        self._worker.end()

    def eof_received(self) -> bool:
        """The client sent its FIN; a half-closed client counts as gone, as it does for vLLM (captured, 0.32.0).

        Aborted rather than closed: a close would wait until such a client had read what is buffered for it.
        """
        if self._exchange is not None and not self._exchange.finished:
            self._transport.abort()
        return False

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._ending:
            return
        exchange = self._exchange
        if exchange is not None and exchange.complete:
            self._note_surplus(len(data))
        elif exchange is not None and exchange.owed:
            self._take_body(exchange, data)
        elif self._raw_bytes:
            self._parse(data)
        elif start := self._memory.body_at(data):
            self._begin_again(data, start)
        else:
            self.deadline = self.context.loop.time() + self._limits.head_timeout
            self._parse(data)
            self._memory.note(self._exchange if self._head_done else None, data)

    def _begin_again(self, data: bytes, start: int) -> None:
        """The head of the request before has come again, and the body from ``start`` on."""
        exchange = self._exchange = Inbound(self, time.perf_counter())
        self._memory.lend(exchange)
        self._head_done, self._raw_bytes = True, start
        self._worker.take(exchange)
        self._take_body(exchange, data[start:])
        if exchange.owed:
            self._body_started = self.context.loop.time()
            self.deadline = self._body_started + self._limits.body_timeout

    def _take_body(self, exchange: Inbound, data: bytes) -> None:
        """Bytes of a body whose length is known. What is behind it is the parser's to judge."""
        behind = exchange.take(data)
        if exchange.complete:
            self.deadline = NEVER
            if behind:
                self._feed(behind)
        elif exchange.unread():
            self._pause()

    def _feed(self, data: bytes) -> bool:
        """Parse bytes; returns whether the request goes on."""
        self._raw_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.distrust()  # the guard answers it; what follows is another protocol's
            self.on_message_complete()
            return False
        except (httptools.HttpParserError, httptools.HttpParserCallbackError):
            self._refuse(Refusal("invalid_request", "The request is not valid HTTP/1.1."))
            return False
        return self._exchange is None or not self._exchange.complete

    def _parse(self, data: bytes) -> None:
        """Parse bytes, many in pieces, so that each bound holds at the same byte whatever a read happens to bring."""
        if self._raw_bytes + len(data) <= self._free_bytes:
            self._feed(data)
            return
        start = 0
        while start < len(data):
            size = self._next_piece(len(data))
            if size <= 0:
                self._refuse(Refusal("headers_too_large"))
                return
            piece = data[start : start + size]
            start += len(piece)
            if not self._feed(piece):
                break
            if self._past_bounds():
                return
        if start < len(data) and self._exchange is not None and self._exchange.complete:
            self._note_surplus(len(data) - start)

    def _next_piece(self, most: int) -> int:
        exchange = self._exchange
        if exchange is None or not self._head_done:
            return self._limits.head_bytes - self._raw_bytes
        return _PIECE if b"transfer-encoding" in exchange.head else most

    def _past_bounds(self) -> bool:
        exchange, limits = self._exchange, self._limits
        if exchange is None or not self._head_done:
            return False
        overhead = self._raw_bytes - exchange.received
        if overhead > limits.head_bytes + limits.overhead_bytes + limits.overhead_ratio * exchange.received:
            self._refuse(Refusal("invalid_request", "The body's framing is far larger than the body."))
            return True
        if exchange.unread():
            self._pause()
        return False

    def _note_surplus(self, size: int) -> None:
        """Bytes behind a complete request: not served. Who sends many of them is not waiting for an answer."""
        self.distrust()
        self._surplus_bytes += size
        if self._surplus_bytes > self._limits.overhead_bytes:
            self.abort()

    # --- the parser's side

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        if self._exchange is not None:
            self.distrust()  # a second request behind the first in one read: not served
            return
        self._exchange = Inbound(self, time.perf_counter())

    def on_url(self, url: bytes) -> None:
        """Some of the request target."""
        if self._exchange is not None and not self._head_done:
            self._exchange.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header field; after the head, a trailer field, which is dropped."""
        if self._exchange is not None and not self._head_done:
            self._exchange.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is complete: the handler starts, whether or not the body has come."""
        exchange = self._exchange
        if exchange is None or self._head_done:
            return
        self._head_done = True
        exchange.method = self._parser.get_method().decode("ascii")
        exchange.version = self._parser.get_http_version()
        exchange.head = dict(exchange.headers)
        self._body_started = self.context.loop.time()
        self.deadline = self._body_started + self._limits.body_timeout
        self._worker.take(exchange)

    def on_body(self, data: bytes) -> None:
        """Some of the body."""
        exchange = self._exchange
        if exchange is not None and not exchange.complete:
            exchange.feed(data)

    def on_message_complete(self) -> None:
        """The request is complete. The parser takes no other behind one that ends the connection in its eyes."""
        exchange = self._exchange
        if exchange is not None and not exchange.complete:
            self.deadline = NEVER
            if not self._parser.should_keep_alive():
                self._close_after = True
            exchange.end_body()

    # --- the server stops

    def close_if_idle(self) -> None:
        """Close the connection unless a request has begun on it."""
        if not self._raw_bytes:
            self._transport.close()

    def cancel(self) -> None:
        """End what is being handled, or received: the server stops."""
        if not self._worker.cancel():
            self._transport.close()

    # --- deadlines and backpressure

    def on_deadline(self, now: float) -> None:
        """A deadline of the client's has passed."""
        exchange = self._exchange
        if self._ending or not self._writable:
            self._judge_reader(now)
        elif not self._raw_bytes:
            self._transport.close()
        elif not self._head_done:
            self._refuse(Refusal("request_timeout"))
        elif exchange is not None and not exchange.complete:
            self._judge_sender(exchange, now)
        else:
            self.deadline = NEVER

    def _watch_reader(self) -> None:
        """The next sweep takes the first measure: by then what was written is sent, and a paused source has stopped."""
        self._unsent = math.inf
        self.deadline = self.context.loop.time()

    def _judge_reader(self, now: float) -> None:
        """Go on with a client that takes its answer at the minimum rate; cut off one that does not."""
        unsent = self._transport.get_write_buffer_size()
        if self._unsent - unsent >= self._limits.body_rate * self._limits.write_timeout:
            self._unsent = unsent
            self.deadline = now + (self._limits.write_timeout if unsent else _LINGER_SECONDS)
        else:
            self._transport.abort()

    def _judge_sender(self, exchange: Inbound, now: float) -> None:
        allowed = self._body_started + self._limits.body_timeout + exchange.received / self._limits.body_rate
        if now < allowed:
            self.deadline = allowed
        else:
            self.deadline = NEVER
            exchange.fail_body(Refusal("request_timeout", close=True))

    def keep(self, exchange: Inbound, value: object) -> None:
        """Keep a value for the next exchange with the same head."""
        self._memory.keep(exchange, value)

    def want_body(self, exchange: Inbound) -> None:
        """The handler waits for the body."""
        if exchange.head.get(b"expect") is not None and not exchange.received:
            self._transport.write(_CONTINUE)
        self._resume()

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._transport.pause_reading()

    def _resume(self) -> None:
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """The client reads slower than the answer comes."""
        self._writable = False
        self._watch_reader()
        if self._exchange is not None and self._exchange.flow is not None:
            self._exchange.flow.pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._writable = True
        exchange = self._exchange
        if self._ending:
            self._watch_reader()
        elif exchange is None:
            self._await_request()
        else:
            self.deadline = NEVER
            if exchange.flow is not None:
                exchange.flow.resume()

    # --- answers

    def closes_after(self, exchange: Inbound) -> bool:
        """Whether the answer that begins now is the connection's last."""
        if self.context.draining or not exchange.complete:
            self._close_after = True
        return self._close_after

    def distrust(self) -> None:
        """Read nothing more from this client as a request: the answer in hand is the connection's last."""
        self._close_after = self._distrusted = True

    def answered(self, exchange: Inbound) -> None:
        """The answer is complete."""
        if exchange is not self._exchange:
            return
        if not exchange.complete or self._distrusted:
            self._linger()
        elif self._close_after or self.context.draining:
            self._end()
            self._transport.close()
        else:
            self._exchange = None
            self._head_done = False
            self._raw_bytes = 0
            self._await_request()

    def _await_request(self) -> None:
        """Read the next request, but not of a client that has yet to read its answers: they would pile up."""
        if self._writable:
            self.deadline = self.context.loop.time() + self._limits.idle_timeout
            if not self._reading:
                self._resume()
        else:
            self._pause()

    def _linger(self) -> None:
        """Read on for a moment and drop what comes: closing on unread data would reset the answer away."""
        self._end()
        self._resume()
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _end(self) -> None:
        """Nothing more is read; what is written may still go out, as long as the client takes it."""
        self._ending = True
        self._watch_reader()

    def _refuse(self, error: Refusal) -> None:
        """Answer a fault of the bytes themselves, if nothing was answered yet, and end the connection."""
        self.distrust()
        exchange = self._exchange
        if exchange is None:
            exchange = self._exchange = Inbound(self, time.perf_counter())
        if exchange.complete:
            return  # the bytes behind a complete request are at fault, not the request
        if self._worker.has(exchange):
            self._pause()
            exchange.fail_body(error)
            return
        self.context.on_fault(error)
        lines, body = self.context.render_fault(error)
        exchange.respond(error.spec.status, lines, body, close=True)

    def abort(self) -> None:
        """Close at once. Idempotent."""
        self._transport.abort()
