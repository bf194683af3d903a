"""The request path's view of one request and its answer. It knows nothing of sockets, and nothing of ASGI.

The server implements ``Exchange``; ``proxy`` and the steps use it. A client that leaves cancels the task that handles
its exchange, after ``gone`` has been set; a server that stops cancels it with ``gone`` unset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Flow(Protocol):
    """A source of bytes that can be told to wait while the reader of them is slow."""

    def pause(self) -> None:
        """Stop reading. Idempotent."""
        ...

    def resume(self) -> None:
        """Read on. Idempotent."""
        ...


class Exchange(Protocol):
    """One request and the answer to it.

    ``method``, ``target`` and ``version`` are as sent. ``headers`` keeps order and repetitions with names in lower
    case; ``head`` is the same as a mapping (the last of a repeated name). ``arrived`` is when the first byte of the
    request was read, in the seconds of ``time.perf_counter``.
    """

    @property
    def method(self) -> str: ...
    @property
    def target(self) -> bytes: ...
    @property
    def version(self) -> str: ...
    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]: ...
    @property
    def head(self) -> Mapping[bytes, bytes]: ...
    @property
    def peer(self) -> str: ...
    @property
    def arrived(self) -> float: ...

    @property
    def gone(self) -> bool:
        """Whether the client has closed the connection."""
        ...

    @property
    def started(self) -> bool:
        """Whether a status line has been written."""
        ...

    @property
    def draining(self) -> bool:
        """Whether the server is stopping."""
        ...

    @property
    def familiar(self) -> object | None:
        """What was given to ``keep`` by the request before on this connection, if its head was the same as this one's.

        Same is: byte for byte, the digits of content-length apart. A head without content-length is never the same.
        """
        ...

    def keep(self, value: object) -> None:
        """Keep what was learned from this head for the connection's next request."""
        ...

    def whole_body(self, limit: int) -> bytes | None:
        """``body`` without waiting; ``None``: it has yet to come, and is to be waited for."""
        ...

    async def body(self, limit: int) -> bytes:
        """The whole request body, which is handed over: it is asked for once.

        Raises ``Refusal``: ``body_too_large`` past ``limit`` bytes, ``request_timeout``; and ``Unavailable``:
        ``overloaded`` when the bodies of all requests are too many bytes.
        """
        ...

    def respond(self, status: int, lines: bytes, body: bytes, *, close: bool = False) -> None:
        """Send a whole answer; ``lines`` are header lines, each with its CRLF. ``close`` ends the connection."""
        ...

    def start(self, status: int, lines: bytes, flow: Flow) -> None:
        """Begin an answer of unknown length. ``flow`` is paused while the client reads too slowly."""
        ...

    def write(self, data: bytes) -> None:
        """Send some of the body; never waits."""
        ...

    def pass_on(self, chunks: bytes) -> None:
        """Send some of the body as whole chunks of a chunked body, framing and all; never waits."""
        ...

    def finish(self) -> None:
        """End the body properly."""
        ...

    def abort(self) -> None:
        """Close the connection at once, so that the client sees a cut answer."""
        ...
