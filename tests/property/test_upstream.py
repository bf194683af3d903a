"""Whatever bytes an engine sends, every request ends in time, and no request ever gets another one's answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import pairwise

import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import EngineFailure
from gateway.wire.deadline import Sweeper
from gateway.wire.upstream import UpstreamLimits, UpstreamPool
from loadtests.scripted import Act, Asked, ScriptedServer, Step, chunked, ok

LIMITS = UpstreamLimits(connect=1.0, first_byte=0.08, idle=0.08)
TOKEN = b"@@@@@@@@"
VALID = (
    ok(TOKEN),
    ok(TOKEN * 40, b"content-type: application/json"),
    ok(TOKEN, b"connection: close"),
    ok(TOKEN, b"connection: keep-alive").replace(b"/1.1", b"/1.0"),
    chunked(TOKEN),
    chunked(TOKEN, b"\r\n", TOKEN * 9),
    chunked(TOKEN, end=b"0\r\nx: y\r\n\r\n"),
    b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + ok(TOKEN),
    b"HTTP/1.1 500 Internal Server Error\r\n" + ok(TOKEN).partition(b"\r\n")[2],
    b"HTTP/1.1 204 No Content\r\n\r\n",
)
BITS = (
    b"\r\n", b"\r", b"\n", b"\r\n\r\n", b":", b" ", b"\0", b"0", b"5", b"ffffffff", b"HTTP/1.1 ", b"100 x\r\n\r\n",
    b"content-length: 3\r\n", b"transfer-encoding: chunked\r\n", b"connection: close\r\n", b"0\r\n\r\n",
    ok(b"smuggled"), chunked(b"smuggled"), b"HTTP/1.1 103 x\r\n\r\n" * 9, b"upgrade: x\r\n",
)  # fmt: skip
changes = st.lists(
    st.tuples(st.integers(0, 120), st.integers(0, 12), st.sampled_from(BITS) | st.binary(max_size=4)), max_size=3
)
endings = st.sampled_from([Act.CLOSE, Act.RESET, Act.HANG, None])


@st.composite
def answers(draw: st.DrawFn) -> tuple[bytes, list[int], Act | None]:
    """A valid answer, spoilt; where it is cut into writes; how the connection goes on."""
    data = draw(st.sampled_from(VALID))
    for place, gone, put in draw(changes):
        data = data[:place] + put + data[place + gone :]
    return data, draw(st.lists(st.integers(0, 200), max_size=3)), draw(endings)


def steps(data: bytes, cuts: list[int], end: Act | None) -> Iterator[Step]:
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    for start, stop in pairwise(edges):
        yield data[start:stop]
        yield 0.0
    if end is not None:
        yield end


def token_of(asked: Asked) -> bytes:
    return asked.head.partition(b"x-token: ")[2].partition(b"\r\n")[0]


async def ask(pool: UpstreamPool, number: int) -> tuple[bytes, bytes | EngineFailure]:
    """One request with a token of its own, and what it got."""
    token = b"<%06d>" % number
    try:
        answer = await pool.request(b"POST / HTTP/1.1\r\nhost: e\r\nx-token: %b\r\n\r\n" % token, b"")
    except EngineFailure as error:
        return token, error
    try:
        return token, await answer.read(1 << 20)
    except EngineFailure as error:
        return token, error
    finally:
        answer.close()


async def quiet(server: ScriptedServer, pool: UpstreamPool) -> None:
    """Wait until the server has sent all, and we have seen it. What it sends later nobody could tell from an answer."""
    deadline = time.monotonic() + 2
    while server.busy or server.open != pool.open:
        assert time.monotonic() < deadline, (server.busy, server.open, pool)
        await asyncio.sleep(0)
    for _ in range(3):
        await asyncio.sleep(0)


async def scenario(plans: list[tuple[bytes, list[int], Act | None]]) -> None:
    spoilt = {b"<%06d>" % (2 * index): plan for index, plan in enumerate(plans)}

    def script(asked: Asked) -> Iterator[Step]:
        token = token_of(asked)
        if token in spoilt:
            data, cuts, end = spoilt[token]
            return steps(data.replace(TOKEN, token), cuts, end)
        return iter([ok(token)])

    loop = asyncio.get_running_loop()
    sweeper = Sweeper(loop, 0.01)
    async with ScriptedServer(script) as server:
        pool = UpstreamPool(loop, sweeper, "127.0.0.1", server.port, LIMITS)
        for number in range(2 * len(plans)):
            token, got = await asyncio.wait_for(ask(pool, number), 2)
            assert pool.open == pool.idle
            if number % 2:
                assert got == token
            elif isinstance(got, bytes):
                others = [b"<%06d>" % other for other in range(2 * len(plans)) if other != number]
                assert not any(other in got for other in others)
            await quiet(server, pool)
        pool.close()
        await quiet(server, pool)
        assert len(sweeper) == 0
        sweeper.close()


@given(st.lists(answers(), min_size=1, max_size=3))
@settings(max_examples=120, deadline=None)
def test_requests_end_in_time_and_answers_are_never_mixed(plans):
    uvloop.run(asyncio.wait_for(scenario(plans), 15))


@given(st.lists(st.sampled_from(VALID), min_size=1, max_size=3), st.lists(st.integers(0, 200), max_size=8))
@settings(max_examples=40, deadline=None)
def test_valid_answers_are_whole_however_they_are_cut(valid, cuts):
    async def main() -> None:
        loop = asyncio.get_running_loop()
        sweeper = Sweeper(loop, 0.01)

        def script(asked: Asked) -> Iterator[Step]:
            return steps(valid[int(token_of(asked).strip(b"<>"))].replace(TOKEN, token_of(asked)), cuts, None)

        async with ScriptedServer(script) as server:
            pool = UpstreamPool(loop, sweeper, "127.0.0.1", server.port, UpstreamLimits())
            for number in range(len(valid)):
                token, got = await ask(pool, number)
                assert isinstance(got, bytes)
                assert got.replace(b"\r\n", b"") in (b"", token, token * 10, token * 40)
                await quiet(server, pool)
            pool.close()
            sweeper.close()

    uvloop.run(asyncio.wait_for(main(), 10))
