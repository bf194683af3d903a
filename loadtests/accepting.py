"""A listening socket of which every accepted connection is served, also when it closes at that moment."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial

BACKLOG = 2048


def bound(host: str, port: int) -> socket.socket:
    """A listening socket; the kernel queues connections from here on. Raises OSError when the address is taken."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    listening.setblocking(False)
    return listening


class Door:
    """Accepts on a socket of `bound` and owns it. `close` is idempotent; connections outlive it.

    A server of asyncio that is closed between accepting a connection and making its transport leaves that connection
    open and unserved until the garbage collector finds it; here it is served, or closed with the event loop.
    """

    def __init__(
        self,
        make: Callable[[], asyncio.BaseProtocol],
        listening: socket.socket,
        *,
        tls: ssl.SSLContext | None = None,
        pause: float = 1.0,
    ) -> None:
        """`pause`: seconds without accepting after the system refused, for want of descriptors or memory."""
        self.port: int = listening.getsockname()[1]
        self._make = make
        self._tls = tls
        self._listening = listening
        self._patience = pause
        self._loop = asyncio.get_running_loop()
        self._entering: set[asyncio.Task[tuple[asyncio.Transport, asyncio.BaseProtocol]]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._open()

    def close(self) -> None:
        """Accept no more; what the kernel had queued is reset."""
        self._shut()
        self._listening.close()

    async def wait_entered(self) -> None:
        """Return when each accepted connection has its protocol, or is closed because it would not speak TLS."""
        if self._entering:
            await asyncio.wait(self._entering)

    def _open(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listening, self._accept)

    def _shut(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        elif self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)

    def _accept(self) -> None:
        for _ in range(BACKLOG):
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._shut()
                self._pause = self._loop.call_later(self._patience, self._open)
                return
            connection.setblocking(False)
            entering = self._loop.create_task(self._loop.connect_accepted_socket(self._make, connection, ssl=self._tls))
            self._entering.add(entering)
            entering.add_done_callback(partial(self._entered, connection))

    def _entered(self, connection: socket.socket, entering: asyncio.Task[object]) -> None:
        self._entering.discard(entering)
        if entering.cancelled() or entering.exception() is not None:
            connection.close()
