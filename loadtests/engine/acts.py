"""What an answer does on the wire, as values: a list of acts is made by pure code, and done by the exchange."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer with a content-length. `cors` says whether uvicorn's CORS layer adds `vary: Origin`."""

    status: int
    body: bytes = b""
    content_type: bytes | None = b"application/json"
    extra: Headers = ()
    late: Headers = ()
    """Headers after content-length and content-type."""
    cors: bool = True
    chunked_too: bool = False
    """Add a transfer-encoding header that lies."""
    cut: int | None = None
    """Send only so many bytes of the body; the answer is then not at its end."""


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a stream, which is chunked."""

    content_type: bytes = b"text/event-stream; charset=utf-8"
    extra: Headers = ()
    length_too: int | None = None
    """Add a content-length header that lies."""


@dataclass(frozen=True, slots=True)
class Event:
    """One chunk of a stream."""

    data: bytes


@dataclass(frozen=True, slots=True)
class End:
    """The end of a stream, with its terminating chunk."""


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes as they are, without any framing."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing more for so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Look:
    """After each `every` seconds a look: `then` once `good` says yes, `otherwise` after `times` looks without."""

    every: float
    times: int
    good: Callable[[], bool]
    then: Reply
    otherwise: Reply


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """From now on a comment event after each so many seconds without an event."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hang:
    """Nothing more for ever, on an open connection."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection in order (FIN)."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Close the connection with a TCP reset (RST); what the client has not read may be lost to it."""


Act = Reply | Head | Event | End | Raw | Wait | Look | KeepAlive | Hang | Close | Reset
