"""How the gateway reaches one engine: one pool for requests, another for looking after it, and what both begin with.

Looks have connections of their own: they must not wait behind requests, and requests must not lose one to a look.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from urllib.parse import urlsplit

from gateway.errors import EngineFailure
from gateway.model import EngineSpec
from gateway.secret import Secret
from gateway.wire.deadline import Sweeper
from gateway.wire.upstream import Answer, UpstreamLimits, UpstreamPool

_LOOK_CONNECTIONS = 4
_LOOK_CONNECT = 2.0  # seconds: however long requests may wait for a connection, a look has its patience
_LOOK_BYTES = 2 * 1024 * 1024
_PORTS = {"http": 80, "https": 443}


class EngineLink:
    """Connections to one engine. ``close`` is idempotent and cuts what is in flight.

    ``tls`` is used for an https engine; ``key`` is what it asks for, if it does. ``on_lost`` is called when a
    connection that waited for the next look was closed from there, which tells a dead process at once.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sweeper: Sweeper,
        spec: EngineSpec,
        limits: UpstreamLimits,
        *,
        tls: ssl.SSLContext | None = None,
        key: Secret | None = None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        parts = urlsplit(spec.url)
        host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        connect = min(limits.connect, _LOOK_CONNECT)
        looks = replace(limits, max_connections=_LOOK_CONNECTIONS, connect=connect)
        secure = tls if parts.scheme == "https" else None
        if parts.scheme == "https" and tls is None:
            raise ValueError("an https engine without a TLS context")  # never in the clear to what was to be secured
        self.requests = UpstreamPool(loop, sweeper, host, port, limits, tls=secure, server_name=spec.server_name)
        self._looks = UpstreamPool(
            loop, sweeper, host, port, looks, tls=secure, server_name=spec.server_name, on_lost=on_lost
        )
        shown = f"{spec.server_name}:{port}" if spec.server_name else parts.netloc
        authorization = f"authorization: Bearer {key.reveal()}\r\n" if key is not None else ""
        self._common = f"host: {shown}\r\naccept-encoding: identity\r\n{authorization}".encode()
        self._openings: dict[str, bytes] = {}

    def send(
        self, path: str, content_type: bytes, body: bytes, request_id: str, *, total: float | None
    ) -> Awaitable[Answer]:
        """Send a request. Headers start from nothing: what an engine obeys in a header is never a client's to say."""
        own = f"\r\ncontent-length: {len(body)}\r\nx-request-id: {request_id}\r\n\r\n".encode()
        return self.requests.request(self._opening(path) + content_type + own, body, total=total)

    def _opening(self, path: str) -> bytes:
        """What is the same for every request on a route, up to its content type. Paths are the route table's: few."""
        opening = self._openings.get(path)
        if opening is None:
            opening = b"POST %b HTTP/1.1\r\n%bcontent-type: " % (path.encode(), self._common)
            self._openings[path] = opening
        return opening

    async def get(self, path: str, patience: float, *, fresh: bool = False) -> tuple[int, bytes]:
        """Status and body of a GET, within ``patience`` seconds however slowly it drips. Raises ``EngineFailure``.

        A ``fresh`` one makes a connection of its own: one that was kept finds an engine well that takes no new ones.
        """
        closing = b"connection: close\r\n" if fresh else b""
        head = b"GET %b HTTP/1.1\r\n%b%b\r\n" % (path.encode(), self._common, closing)
        answer = await self._looks.request(head, b"", total=patience, fresh=fresh, whole=_LOOK_BYTES)
        try:
            return answer.status, await answer.read(_LOOK_BYTES)
        finally:
            answer.close()

    @property
    def open_connections(self) -> int:
        """Connections for requests, idle ones included."""
        return self.requests.open

    def heard(self) -> float:
        """When a byte of an answer to a request last came, in the loop's seconds."""
        return self.requests.heard()

    def give_up(self, failure: Callable[[], EngineFailure]) -> None:
        """End the requests of whose answer nothing has come yet, each with a failure of its own."""
        self.requests.give_up(failure)

    def close(self) -> None:
        """Cut all connections. Idempotent."""
        self.requests.close()
        self._looks.close()
