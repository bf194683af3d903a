"""Listeners and their end. Both planes stand behind the same hardened protocol; each has its own port and handler."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable

from gateway.errors import GatewayError
from gateway.model import Dialect
from gateway.wire.accepting import TlsAcceptor
from gateway.wire.bodymemory import BodyMemory
from gateway.wire.certificate import Certificate
from gateway.wire.connection import Connection
from gateway.wire.deadline import Sweeper
from gateway.wire.errorbody import error_lines
from gateway.wire.exchange import Exchange
from gateway.wire.inbound import InboundContext, InboundLimits, ServerClock

_BACKLOG = 2048
_FRAMES = 4


def crash_line(error: Exception) -> str:
    """An unexpected error as one line: its type and where it was raised, never its message, which may quote a request.

    A message of a ``KeyError``, say, is the key.
    """
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    places = " < ".join(f"{frame.name} ({frame.filename}:{frame.lineno})" for frame in reversed(frames))
    return f"a request handler failed: {type(error).__name__} in {places}"


def _report_crash(error: Exception) -> None:
    print(crash_line(error), file=sys.stderr, flush=True)


class Listener:
    """One listening socket and its connections. ``body_memory`` is how many bytes of bodies they may hold together.

    ``drain`` stops accepting, lets answers in hand finish and cancels what is left after ``patience``; ``close`` is
    idempotent.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sweeper: Sweeper,
        handler: Callable[[Exchange], Awaitable[None]],
        *,
        limits: InboundLimits,
        max_connections: int,
        body_memory: int,
        on_fault: Callable[[GatewayError], None] = lambda error: None,
        on_crash: Callable[[Exception], None] = _report_crash,
        on_stranger: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = loop
        self._server: asyncio.Server | TlsAcceptor | None = None
        self._on_stranger = on_stranger
        self._context = InboundContext(
            loop=loop,
            handler=handler,
            render_fault=_render_fault,
            on_fault=on_fault,
            on_crash=on_crash,
            limits=limits,
            sweeper=sweeper,
            clock=ServerClock(),
            connections=set(),
            max_connections=max_connections,
            bodies=BodyMemory(body_memory),
        )

    @property
    def connections(self) -> int:
        """Client connections now open."""
        return len(self._context.connections)

    @property
    def bodies(self) -> BodyMemory:
        """What the bodies of its requests take now, and may take."""
        return self._context.bodies

    @property
    def draining(self) -> bool:
        """Whether the end has begun."""
        return self._context.draining

    async def start(self, listening: socket.socket, certificate: Certificate | None = None) -> None:
        """Accept on a bound socket; with a certificate nothing but TLS.

        ``on_stranger`` is called for each connection that does not get through its handshake.
        """
        context = self._context
        if certificate is None:
            self._server = await self._loop.create_server(
                lambda: Connection(context), sock=listening, backlog=_BACKLOG, start_serving=True
            )
            return
        listening.listen(_BACKLOG)
        self._server = TlsAcceptor(
            self._loop,
            listening,
            lambda: Connection(context),
            certificate.context,
            room=lambda: context.max_connections - len(context.connections),
            patience=context.limits.head_timeout,
            on_failed=self._on_stranger,
        )

    def announce_drain(self) -> None:
        """From here on every answer closes its connection and readiness is false; connections are still accepted."""
        self._context.draining = True

    async def drain(self, patience: float) -> None:
        """Stop accepting and wait for what is in hand, ``patience`` seconds at most; then end it with an error."""
        self.announce_drain()
        self._stop_accepting()
        for connection in list(self._context.connections):
            connection.close_if_idle()
        await self._empty(patience)
        for connection in list(self._context.connections):
            connection.cancel()
        await self._empty(1.0)
        self.close()

    def _stop_accepting(self) -> None:
        if isinstance(self._server, TlsAcceptor):
            self._server.stop()  # a handshake that has begun ends in a request, which is answered
        elif self._server is not None:
            self._server.close()

    async def _empty(self, patience: float) -> None:
        self._context.empty.clear()
        if self._context.connections:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._context.empty.wait()

    def close(self) -> None:
        """Close the socket and all connections at once."""
        self._context.draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._context.connections):
            connection.abort()


def _render_fault(error: GatewayError) -> tuple[bytes, bytes]:
    return error_lines(error, Dialect.OPENAI)


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket. Raises ``OSError``, which names the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        error.filename = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise
    listening.setblocking(False)
    return listening
