"""Accepting with TLS: handshakes are bounded in time and number before a connection counts as one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from functools import partial

_AT_ONCE = 64
"""Connections accepted before the event loop does something else."""
_PAUSE = 1.0
"""Seconds without accepting after the system refused, for want of descriptors or memory."""
_GOODBYE = 2.0
"""Seconds that a client has for its part of the end of a TLS connection."""


class TlsAcceptor:
    """Accepts on a socket that listens, and makes a protocol of each connection whose handshake succeeds.

    An event loop's own TLS server counts nobody before the handshake is done, and a handshake costs far more memory
    than a connection. ``room`` says how many connections more there may be, handshakes included: what comes beyond
    is closed at once. ``patience`` is seconds for a handshake. ``context`` is asked for each connection.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listening: socket.socket,
        make: Callable[[], asyncio.Protocol],
        context: Callable[[], ssl.SSLContext],
        *,
        room: Callable[[], int],
        patience: float,
        on_failed: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._listening = listening
        self._make = make
        self._context = context
        self._room = room
        self._patience = patience
        self._on_failed = on_failed
        self._greeting: dict[asyncio.Task[object], socket.socket] = {}
        self._pause: asyncio.TimerHandle | None = None
        self._stopped = False
        loop.add_reader(listening, self._accept)

    def stop(self) -> None:
        """Accept no more. Handshakes go on. Idempotent."""
        if not self._stopped:
            self._stopped = True
            if self._pause is not None:
                self._pause.cancel()
            else:
                self._loop.remove_reader(self._listening)
            self._listening.close()

    def close(self) -> None:
        """Accept no more and end the handshakes. Idempotent."""
        self.stop()
        for connection in self._greeting.values():
            # The handshake of a task that is cancelled would go on below it; one whose peer has gone ends.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(self._listening)
                self._pause = self._loop.call_later(_PAUSE, self._go_on)
                return
            if len(self._greeting) < self._room():
                self._greet(connection)
            else:
                connection.close()

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listening, self._accept)

    def _greet(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        greeting = self._loop.create_task(
            self._loop.connect_accepted_socket(
                self._make,
                connection,
                ssl=self._context(),
                ssl_handshake_timeout=self._patience,
                ssl_shutdown_timeout=_GOODBYE,
            )
        )
        self._greeting[greeting] = connection
        greeting.add_done_callback(partial(self._greeted, connection))

    def _greeted(self, connection: socket.socket, greeting: asyncio.Task[object]) -> None:
        del self._greeting[greeting]
        if greeting.cancelled() or greeting.exception() is not None:
            connection.close()
            self._on_failed()
