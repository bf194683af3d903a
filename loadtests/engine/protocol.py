"""The engine's HTTP/1.1 connections: httptools on an asyncio protocol, with uvicorn's manners as captured."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from typing import Protocol, cast
from urllib.parse import unquote_to_bytes

import httptools

from loadtests.engine.exchange import Exchange, ReceivedRequest

_INVALID = b"Invalid HTTP request received."
_LINGER_ZERO = struct.pack("ii", 1, 0)


class Host(Protocol):
    """What a connection needs of its server."""

    keep_alive_timeout: float

    def handle(self, request: ReceivedRequest, connection: Connection, persistent: bool) -> None:
        """Make the exchange of a request and attach it to the connection."""

    def connected(self, connection: Connection) -> None: ...

    def disconnected(self, connection: Connection) -> None: ...

    def date_line(self) -> bytes: ...

    def wall_time(self) -> float: ...


class Connection(asyncio.Protocol):
    """One client connection. Requests are answered one after the other; pipelined ones wait their turn."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._exchange: Exchange | None = None
        self._waiting: deque[tuple[ReceivedRequest, Connection, bool]] = deque()
        self._headers: list[tuple[bytes, bytes]] = []
        self._target = b""
        self._body: list[bytes] = []
        self._closing = False
        self._idle_until = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._receiving = False

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's TCP transport has asyncio.Transport's methods without its base class.
        self._transport = cast(asyncio.Transport, transport)
        self._host.connected(self)

    def data_received(self, data: bytes) -> None:
        self._receiving = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # uvicorn does not speak the protocol asked for, and answers what it has parsed so far.
            return
        except httptools.HttpParserError:
            self._refuse()

    def eof_received(self) -> None:
        # A client that has sent FIN counts as gone, though it may still read: no answer comes (captured).
        self._lost()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._lost()
        self._host.disconnected(self)

    def pause_writing(self) -> None:
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        if self._exchange is not None:
            self._exchange.resume()

    def _lost(self) -> None:
        self._waiting.clear()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.gone()

    # httptools' side

    def on_message_begin(self) -> None:
        self._headers = []
        self._target = b""
        self._body = []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        expects = any(name == b"expect" and value.lower() == b"100-continue" for name, value in self._headers)
        if expects and self._exchange is None:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._closing:
            return
        persistent = bool(self._parser.should_keep_alive()) and self._parser.get_http_version() != "1.0"
        request = ReceivedRequest(
            method=self._parser.get_method().decode("ascii", "replace"),
            path=_path_of(self._target),
            target=self._target,
            headers=self._headers,
            body=b"".join(self._body),
            started_at=self._host.wall_time(),
        )
        if self._exchange is None and not self._waiting:
            self._host.handle(request, self, persistent)
        else:
            self._waiting.append((request, self, persistent))

    # the exchange's side

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def shut(self) -> None:
        self._exchange = None
        self.close()

    def reset(self) -> None:
        self._exchange = None
        self._closing = True
        if self._transport is None:
            return
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        self._transport.abort()

    def date_line(self) -> bytes:
        return self._host.date_line()

    def exchange_done(self, exchange: Exchange) -> None:
        self._exchange = None
        if not exchange.persistent:
            self.close()
        elif self._waiting:
            asyncio.get_running_loop().call_soon(self._begin_next)
        else:
            self._await_next()

    # own matters

    def close(self) -> None:
        """Close in order: what is written still goes out. Idempotent."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once. Idempotent."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def attach(self, exchange: Exchange) -> None:
        """`exchange` is answered now."""
        self._exchange = exchange

    def _begin_next(self) -> None:
        if self._waiting and not self._closing:
            self._host.handle(*self._waiting.popleft())

    def _await_next(self) -> None:
        """Arm the idle timer, once: it looks at `_idle_until` when it rings, so most answers only move that."""
        loop = asyncio.get_running_loop()
        self._receiving = False
        self._idle_until = loop.time() + self._host.keep_alive_timeout
        if self._idle_timer is None:
            self._idle_timer = loop.call_at(self._idle_until, self._idle)

    def _idle(self) -> None:
        self._idle_timer = None
        if self._receiving:
            # Half a request is no idle connection: uvicorn waits for the rest for ever (captured).
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._idle_until:
            self._idle_timer = loop.call_at(self._idle_until, self._idle)
        else:
            self.close()

    def _refuse(self) -> None:
        head = b"HTTP/1.1 400 Bad Request\r\n" + self._host.date_line()
        kind = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n" % len(_INVALID)
        self.write(head + kind + b"connection: close\r\n\r\n" + _INVALID)
        self._lost()
        self.close()


def _path_of(target: bytes) -> str:
    """The decoded path of a target; dot segments and double slashes stay, as in uvicorn."""
    if target.startswith(b"/"):
        raw = target.partition(b"?")[0].partition(b"#")[0]
    else:
        try:
            raw = httptools.parse_url(target).path or b"/"
        except httptools.HttpParserInvalidURLError:
            raw = target
    if b"%" in raw:
        raw = unquote_to_bytes(raw)
    return raw.decode("utf-8", "replace")
