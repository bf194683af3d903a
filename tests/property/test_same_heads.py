"""A message whose head is known again comes to what the parser would have made of it, however it is cut or spoilt."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import EngineFailure
from gateway.wire.bodymemory import BodyMemory
from gateway.wire.connection import Connection
from gateway.wire.deadline import Sweeper
from gateway.wire.engineconnection import EngineConnection
from gateway.wire.inbound import Inbound, InboundContext, InboundLimits, ServerClock
from gateway.wire.kept import Memory
from gateway.wire.upstream import UpstreamLimits

SPOILERS = (b"\r\n", b"\n", b" ", b"0", b"5", b"+", b"\0", b"\xff", b"connection: close\r\n", b"content-length: 2\r\n")
ASKED = b"POST /v1/x HTTP/1.1\r\nhost: gw\r\ncontent-length: %d\r\nauthorization: Bearer k\r\n\r\n%b"
SAID = b"HTTP/1.1 200 OK\r\ndate: now\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n%b"


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.out = b""
        self.ended: list[str] = []

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        self.out += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended.append("eof")

    def close(self) -> None:
        self.ended.append("close")

    def abort(self) -> None:
        self.ended.append("abort")


@st.composite
def reads(draw: st.DrawFn, message: bytes) -> list[list[bytes]]:
    """The reads of a few messages: each with a body of its own, perhaps spoilt, and cut anywhere."""
    cut = []
    for number in range(draw(st.integers(1, 3))):
        body = draw(st.sampled_from([b"", b"x", b"hello", b"y" * 120, b"z" * 40_000]))
        data = message % (len(body), body)
        head = len(data) - len(body)
        if number and draw(st.booleans()):
            at, dropped = draw(st.integers(0, min(len(data), head + 130))), draw(st.integers(0, 2))
            data = data[:at] + draw(st.sampled_from(SPOILERS) | st.binary(max_size=2)) + data[at + dropped :]
        data += draw(st.sampled_from([b"", b"", b"", b"\r\n", b"GET", message % (1, b"a")]))
        places = draw(st.lists(st.integers(0, len(data)) | st.integers(max(0, head - 2), head + 2), max_size=3))
        edges = sorted({0, len(data), *(min(place, len(data)) for place in places)})
        cut.append([data[start:end] for start, end in pairwise(edges)])
    return cut


async def served(messages: list[list[bytes]], *, remember: bool) -> tuple[Any, ...]:
    """What a client gets, what the handler was given, and how many heads were familiar."""
    loop = asyncio.get_running_loop()
    given_to: list[Any] = []
    familiar = 0

    async def handle(exchange: Inbound) -> None:
        nonlocal familiar
        familiar += exchange.familiar is not None
        exchange.keep("known")
        head = (exchange.method, exchange.target, exchange.version)
        given_to.append((*head, tuple(exchange.headers), dict(exchange.head)))
        body = exchange.whole_body(30_000)
        if body is None:
            body = await exchange.body(30_000)
        given_to.append(body)
        exchange.respond(200, b"", b"%d" % len(body))

    context = InboundContext(
        loop=loop,
        handler=handle,
        render_fault=lambda error: (b"", error.spec.code.encode()),
        on_fault=lambda error: given_to.append(error.spec.code),
        on_crash=lambda error: given_to.append(type(error)),
        limits=InboundLimits(head_bytes=256),
        sweeper=Sweeper(loop),
        clock=ServerClock(lambda: 0.0),
        connections=set(),
        max_connections=1,
        bodies=BodyMemory(1 << 20),
    )
    connection, wire = Connection(context), Wire()
    if not remember:
        connection._memory = Forgetful(256)
    connection.connection_made(wire)
    for message in messages:
        for read in message:
            connection.data_received(read)
            for _ in range(4):
                await asyncio.sleep(0)
    said = (wire.out, list(wire.ended), list(given_to), context.bodies.held, connection.deadline == float("inf"))
    connection.connection_lost(None)
    context.sweeper.close()
    await asyncio.sleep(0)
    return said, familiar


class Forgetful(Memory):
    def body_at(self, data: bytes) -> int:
        return 0


class Home:
    limits = UpstreamLimits(head_bytes=1024)
    learned_at = -1.0

    def __init__(self, *, remember: bool) -> None:
        self.loop = asyncio.get_running_loop()
        self.sweeper = Sweeper(self.loop)
        self.given_back = 0
        self.seen = 0
        self._remember = remember
        self._opening: Any = None

    @property
    def opening(self) -> Any:
        return self._opening

    @opening.setter
    def opening(self, value: Any) -> None:
        self.seen += 1
        self._opening = value if self._remember else None

    def watch(self, connection: Any) -> None: ...
    def dropped(self, connection: Any) -> None: ...
    def forget(self, connection: Any) -> None: ...
    def give_back(self, connection: Any) -> None:
        self.given_back += 1


async def answered(messages: list[list[bytes]], *, remember: bool) -> tuple[Any, ...]:
    """What came of each request to an engine that answers so, and whether the connection is still good."""
    home, wire = Home(remember=remember), Wire()
    connection = EngineConnection(home)
    connection.connection_made(wire)
    came: list[Any] = []
    for message in messages:
        if connection.lost:
            break
        home.learned_at = -1.0
        asked = asyncio.ensure_future(connection.send(b"ask", b"", float("inf")))
        await asyncio.sleep(0)
        for read in message:
            connection.data_received(read)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if not asked.done():
            connection.connection_lost(None)
            await asyncio.sleep(0)
        try:
            answer = await asked
        except EngineFailure as failure:
            came.append(type(failure))
            break
        if not answer._complete and answer._error is None:
            connection.connection_lost(None)
        try:
            came.append((answer.status, answer.header(b"content-type"), await answer.read(1 << 20)))
        except EngineFailure as failure:
            came.append(type(failure))
        answer.close()
    home.sweeper.close()
    return (came, connection.lost, home.given_back), home.seen


@settings(deadline=None, max_examples=300)
@given(reads(ASKED))
def test_a_request_comes_to_the_same(messages: list[list[bytes]]) -> None:
    known, _ = asyncio.run(served([[ASKED % (2, b"hi")], *messages], remember=True))
    parsed, none = asyncio.run(served([[ASKED % (2, b"hi")], *messages], remember=False))
    assert known == parsed
    assert none == 0


@settings(deadline=None, max_examples=300)
@given(reads(SAID))
def test_an_answer_comes_to_the_same(messages: list[list[bytes]]) -> None:
    known, _ = asyncio.run(answered([[SAID % (2, b"hi")], *messages], remember=True))
    parsed, _ = asyncio.run(answered([[SAID % (2, b"hi")], *messages], remember=False))
    if known != parsed:  # a line end too many: the parser skips it, to who counts the body it is a byte behind the end
        assert known[0] == parsed[0][: len(known[0])]
        assert known[1]
        assert any(b"".join(message).endswith(b"\r\n") for message in messages)


@pytest.mark.parametrize("second", [[ASKED % (5, b"hello")], [ASKED % (5, b""), b"hel", b"lo"]])
def test_the_same_head_is_familiar_with_its_body_in_one_read_or_more(second: list[bytes]) -> None:
    said, familiar = asyncio.run(served([[ASKED % (2, b"hi")], second], remember=True))
    assert familiar == 1
    assert said[2][-1] == b"hello"
