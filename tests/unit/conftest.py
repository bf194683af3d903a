"""Stand-ins for the parts around the request path: an exchange, an engine's answer and a replica, all in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest

from gateway.errors import EngineFailure, Refusal
from gateway.wire.upstream import Answer, UpstreamLimits


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class FakeExchange:
    """An exchange that keeps what was answered. ``before_body`` runs while the body is waited for."""

    def __init__(
        self,
        method: str = "GET",
        target: str = "/healthz",
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        version: str = "1.1",
        arrived: float = 1_000.0,
        before_body: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        given = {"host": "gateway.test", **(headers or {})}
        if body:
            given = {"content-type": "application/json", "content-length": str(len(body)), **given}
        self.method = method
        self.target = target.encode()
        self.version = version
        self.headers: Sequence[tuple[bytes, bytes]] = [(k.encode(), v.encode()) for k, v in given.items()]
        self.head = dict(self.headers)
        self.peer = "127.0.0.1"
        self.arrived = arrived
        self.gone = False
        self.started = False
        self.draining = False
        self.familiar: object | None = None
        self.kept: object | None = None
        self.body_reads = 0
        self.status = 0
        self.sent_headers: dict[bytes, bytes] = {}
        self.sent = b""
        self.writes: list[bytes] = []
        self.finished = False
        self.closing = False
        self.aborted = False
        self._body = body
        self.before_body = before_body

    def keep(self, value: object) -> None:
        self.kept = value

    def whole_body(self, limit: int) -> bytes | None:
        return None

    async def body(self, limit: int) -> bytes:
        self.body_reads += 1
        if self.before_body is not None:
            await self.before_body()
        if len(self._body) > limit:
            raise Refusal("body_too_large", close=True)
        return self._body

    def respond(self, status: int, lines: bytes, body: bytes, *, close: bool = False) -> None:
        self._head(status, lines)
        self.closing = close
        self.sent = body
        self.finished = True

    def start(self, status: int, lines: bytes, flow: Any) -> None:
        self._head(status, lines)

    def _head(self, status: int, lines: bytes) -> None:
        assert not self.started, "two answers to one request"
        self.started = True
        self.status = status
        self.sent_headers = dict(line.split(b": ", 1) for line in lines.split(b"\r\n")[:-1])

    def write(self, data: bytes) -> None:
        assert self.started, "a body before its status line"
        assert not self.finished, "more after the end"
        self.writes.append(data)
        self.sent += data

    def pass_on(self, chunks: bytes) -> None:
        while chunks:
            size, _, rest = chunks.partition(b"\r\n")
            self.write(rest[: int(size, 16)])
            assert rest[int(size, 16) :].startswith(b"\r\n"), "no whole chunk"
            chunks = rest[int(size, 16) + 2 :]

    def finish(self) -> None:
        assert self.started
        assert not self.finished, "two ends"
        self.finished = True

    def abort(self) -> None:
        self.aborted = True


class FakeCarrier:
    """The connection that an answer holds."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.limits = UpstreamLimits()
        self.released: list[bool] = []

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def release(self, *, clean: bool) -> None:
        self.released.append(clean)


def answer_of(
    body: bytes = b"", status: int = 200, content_type: str = "application/json", *, complete: bool = True
) -> tuple[Answer, FakeCarrier]:
    """An engine's answer with these bytes already there, and the connection that it came on."""
    carrier = FakeCarrier()
    answer = Answer(carrier, status, [(b"content-type", content_type.encode())])
    if body:
        answer.feed(body)
    if complete:
        answer.end()
    return answer, carrier


Turn = Callable[[], Awaitable[Answer]]


class FakeLane:
    """A replica that plays one turn for each request sent to it; the last turn repeats."""

    def __init__(self, *turns: Turn, name: str = "127.0.0.1:8001", busy: bool = False) -> None:
        self.id = name
        self.busy = busy
        self.room, self.share = 1 << 30, 1.0
        self.models, self.proven = ("served-7b",), True
        self.in_flight = 0
        self.successes = self.answers = 0
        self.most_in_flight = 0
        self.sent: list[tuple[str, bytes, bytes, str]] = []
        self.totals: list[float | None] = []
        self.failures: list[EngineFailure] = []
        self._turns = list(turns)

    def enter(self) -> None:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def leave(self) -> None:
        self.in_flight -= 1

    async def send(
        self, path: str, content_type: bytes, body: bytes, request_id: str, *, total: float | None
    ) -> Answer:
        assert self.in_flight > 0, "a request that no count knows of"
        self.sent.append((path, content_type, body, request_id))
        self.totals.append(total)
        turn = self._turns.pop(0) if len(self._turns) > 1 else self._turns[0]
        return await turn()

    def answered(self) -> None:
        self.answers += 1

    def note_success(self) -> None:
        self.successes += 1

    def note_failure(self, error: EngineFailure) -> None:
        self.failures.append(error)


class Fakes:
    """What tests take from here."""

    Clock = Clock
    Exchange = FakeExchange
    Carrier = FakeCarrier
    Lane = FakeLane
    answer = staticmethod(answer_of)

    @staticmethod
    def says(body: bytes = b"", status: int = 200, content_type: str = "application/json") -> Turn:
        """A turn that answers so."""

        async def turn() -> Answer:
            return answer_of(body, status, content_type)[0]

        return turn

    @staticmethod
    def fails(error: Exception) -> Turn:
        """A turn that raises."""

        async def turn() -> Answer:
            raise error

        return turn


@pytest.fixture(scope="session")
def fakes() -> type[Fakes]:
    """The stand-ins."""
    return Fakes
