"""One request and its answer: acts become bytes on a connection."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple, Protocol

from loadtests.engine.acts import Act, Close, End, Event, Hang, Head, KeepAlive, Look, Raw, Reply, Reset, Wait
from loadtests.engine.fault_machines import Machine, run_machines

RUNNING, FINISHED, ABORTED = "running", "finished", "aborted"
KEEP_ALIVE_COMMENT = b": keep-alive\n\n"
_STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}


@dataclass(slots=True, eq=False)
class ReceivedRequest:
    """A request as it came. `path` is decoded and without query; `started_at` is the engine's wall clock."""

    method: str
    path: str
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    started_at: float
    state: str = RUNNING

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header; `name` in lower case."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


class HeaderLines(NamedTuple):
    """The two headers that uvicorn's two HTTP layers write in different case and order."""

    chunked: bytes
    close: bytes
    chunked_first: bool


HTTPTOOLS_LINES = HeaderLines(b"transfer-encoding: chunked\r\n", b"connection: close\r\n", chunked_first=False)
H11_LINES = HeaderLines(b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", chunked_first=True)


class Wire(Protocol):
    """The connection, as an exchange sees it."""

    def write(self, data: bytes) -> None: ...

    def shut(self) -> None:
        """Close in order."""

    def reset(self) -> None:
        """Close with RST."""

    def date_line(self) -> bytes:
        """`date:` and `server:` lines."""

    def exchange_done(self, exchange: Exchange) -> None:
        """The answer is complete."""


def status_line(status: int) -> bytes:
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status


def _lines(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    return b"".join(b"%s: %s\r\n" % header for header in headers)


class Exchange:
    """Carries out acts in order, after the faults have changed them; holds them back while it waits or must not write.

    `on_gone` is called once when the client has gone before the end.
    """

    __slots__ = (
        "_blocked", "_ended", "_keep_alive_every", "_keep_alive_timer", "_lines", "_machines", "_on_end", "_paused",
        "_pending", "_persistent", "_request_id", "_timer", "_wire", "on_gone", "request", "sent", "status",
    )  # fmt: skip

    def __init__(
        self,
        request: ReceivedRequest,
        wire: Wire,
        machines: list[Machine],
        *,
        persistent: bool,
        request_id: bytes | None,
        on_end: Callable[[Exchange], None],
        lines: HeaderLines = HTTPTOOLS_LINES,
    ) -> None:
        self.request = request
        self.on_gone: Callable[[], None] | None = None
        self.status = 0
        self.sent = 0
        self._wire = wire
        self._machines = machines
        self._persistent = persistent
        self._request_id = request_id
        self._on_end = on_end
        self._lines = lines
        self._pending: deque[Act] = deque()
        self._blocked = self._paused = self._ended = False
        self._timer: asyncio.TimerHandle | None = None
        self._keep_alive_timer: asyncio.TimerHandle | None = None
        self._keep_alive_every = 0.0

    def do(self, act: Act) -> None:
        """Carry out an act, now or when those before it are done."""
        if not self._machines:
            self._enqueue(act)
            return
        for changed in run_machines(self._machines, act):
            self._enqueue(changed)

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def persistent(self) -> bool:
        """Whether the connection stays open after the answer."""
        return self._persistent

    def pause(self) -> None:
        """The connection's buffer is full."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._work_off()

    def gone(self) -> None:
        """The connection is lost; idempotent."""
        if self._ended:
            return
        self.request.state = ABORTED
        self._stop()
        if self.on_gone is not None:
            self.on_gone()
        self._on_end(self)

    def _enqueue(self, act: Act) -> None:
        if self._ended:
            # What follows the end of an answer goes out only where a fault asks for it.
            if isinstance(act, Raw):
                self._wire.write(act.data)
            return
        if self._blocked or self._paused:
            self._pending.append(act)
        else:
            self._carry_out(act)

    def _work_off(self) -> None:
        while self._pending and not (self._blocked or self._paused or self._ended):
            self._carry_out(self._pending.popleft())
        if self._ended:
            trailing, self._pending = self._pending, deque()
            for act in trailing:
                self._enqueue(act)

    def _carry_out(self, act: Act) -> None:
        match act:
            case Event(data):
                self._write(b"%x\r\n%s\r\n" % (len(data), data))
                self._rearm_keep_alive()
            case Reply():
                self._write(self._reply_bytes(act))
                if act.cut is None:
                    self._finish()
            case Head():
                self._write(self._head_bytes(act))
            case End():
                self._write(b"0\r\n\r\n")
                self._finish()
            case Raw(data):
                self._write(data)
            case Wait() | Look():
                self._hold(act)
            case KeepAlive(seconds):
                self._keep_alive_every = seconds
                self._rearm_keep_alive()
            case Hang():
                self._blocked = True
                self._stop_keep_alive()
            case Close():
                self._cut(self._wire.shut)
            case Reset():
                self._cut(self._wire.reset)

    def _write(self, data: bytes) -> None:
        self.sent += len(data)
        self._wire.write(data)

    def _unblock(self) -> None:
        self._timer = None
        self._blocked = False
        self._work_off()

    def _hold(self, act: Wait | Look) -> None:
        self._blocked = True
        if isinstance(act, Look):
            self._look_later(act, act.times)
        else:
            self._timer = asyncio.get_running_loop().call_later(act.seconds, self._unblock)

    def _look_later(self, look: Look, left: int) -> None:
        self._timer = asyncio.get_running_loop().call_later(look.every, self._look, look, left - 1)

    def _look(self, look: Look, left: int) -> None:
        self._timer = None
        good = look.good()
        if good or not left:
            self._pending.appendleft(look.then if good else look.otherwise)
            self._unblock()
        else:
            self._look_later(look, left)

    def _finish(self) -> None:
        self.request.state = FINISHED
        self._stop()
        self._on_end(self)
        self._wire.exchange_done(self)

    def _cut(self, how: Callable[[], None]) -> None:
        """End the connection from this side: for the client an accident, for the engine an answer that ended."""
        self.request.state = FINISHED
        self._stop()
        if self.on_gone is not None:
            self.on_gone()
        self._on_end(self)
        how()

    def _stop(self) -> None:
        self._ended = True
        self._stop_keep_alive()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rearm_keep_alive(self) -> None:
        if self._keep_alive_every:
            self._stop_keep_alive()
            loop = asyncio.get_running_loop()
            self._keep_alive_timer = loop.call_later(self._keep_alive_every, self._comment)

    def _comment(self) -> None:
        self._keep_alive_timer = None
        if not (self._paused or self._blocked):
            self._write(b"%x\r\n%s\r\n" % (len(KEEP_ALIVE_COMMENT), KEEP_ALIVE_COMMENT))
        self._rearm_keep_alive()

    def _stop_keep_alive(self) -> None:
        if self._keep_alive_timer is not None:
            self._keep_alive_timer.cancel()
            self._keep_alive_timer = None

    def _reply_bytes(self, reply: Reply) -> bytes:
        """Header order and set as uvicorn and vLLM's layers write them (captured)."""
        self.status = reply.status
        kind = b"" if reply.content_type is None else b"content-type: %s\r\n" % reply.content_type
        return b"".join((
            status_line(reply.status),
            self._wire.date_line(),
            _lines(reply.extra),
            b"content-length: %d\r\n" % len(reply.body),
            kind,
            _lines(reply.late),
            self._common(reply.cors),
            self._close_line(),
            self._lines.chunked if reply.chunked_too else b"",
            b"\r\n",
            b"" if self.request.method == "HEAD" else reply.body[: reply.cut],
        ))  # fmt: skip

    def _head_bytes(self, head: Head) -> bytes:
        self.status = 200
        length = b"" if head.length_too is None else b"content-length: %d\r\n" % head.length_too
        return b"".join((
            status_line(200),
            self._wire.date_line(),
            length,
            b"content-type: %s\r\n" % head.content_type,
            self._common(True),
            b"" if self._lines.chunked_first else self._close_line(),
            _lines(head.extra),
            self._lines.chunked,
            self._close_line() if self._lines.chunked_first else b"",
            b"\r\n",
        ))  # fmt: skip

    def _common(self, cors: bool) -> bytes:
        vary = b"vary: Origin\r\n" if cors else b""
        if self._request_id is not None and cors:
            vary += b"x-request-id: %s\r\n" % self._request_id
        return vary

    def _close_line(self) -> bytes:
        return b"" if self._persistent else self._lines.close
