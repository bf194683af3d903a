"""The client half against scripted servers: framing, reuse, deadlines, backpressure, cancellation, bounds."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop

from gateway.errors import (
    EngineBusy,
    EngineFailure,
    EngineProtocolError,
    EngineReset,
    EngineTimeout,
    EngineUnreachable,
)
from gateway.wire.deadline import Sweeper
from gateway.wire.engineconnection import EngineConnection
from gateway.wire.upstream import Answer, UpstreamLimits, UpstreamPool
from loadtests.scripted import Act, Asked, Script, ScriptedServer, chunked, ok

PATIENCE = 5.0
USUAL = UpstreamLimits()
BRIEF = UpstreamLimits(connect=0.2, first_byte=0.2, idle=0.2)


async def until(condition: Callable[[], object], what: str = "condition") -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def pooled(port: int, limits: UpstreamLimits = USUAL) -> AsyncIterator[UpstreamPool]:
    """A pool that must leave nothing open when it has been closed."""
    loop = asyncio.get_running_loop()
    sweeper = Sweeper(loop, 0.01)
    pool = UpstreamPool(loop, sweeper, "127.0.0.1", port, limits)
    try:
        yield pool
    finally:
        pool.close()
        await until(lambda: not pool.open and not len(sweeper), "an empty pool")
        sweeper.close()


def play(script: Script, body: Callable[[UpstreamPool, ScriptedServer], Awaitable[None]], **limits: Any) -> None:
    """Run ``body`` with a pool at a server of that script; afterwards no connection is open at either end."""

    async def main() -> None:
        async with ScriptedServer(script) as server:
            async with pooled(server.port, UpstreamLimits(**limits)) as pool:
                await asyncio.wait_for(body(pool, server), 20)
            await until(lambda: not server.open, "no open connection at the server")

    uvloop.run(main())


def head(token: str = "t", length: int = 0) -> bytes:
    return f"POST /v1 HTTP/1.1\r\nhost: e\r\nx-token: {token}\r\ncontent-length: {length}\r\n\r\n".encode()


def token_of(asked: Asked) -> bytes:
    return asked.head.partition(b"x-token: ")[2].partition(b"\r\n")[0]


async def fetch(pool: UpstreamPool, token: str = "t", body: bytes = b"", total: float | None = None) -> bytes:
    answer = await pool.request(head(token, len(body)), body, total=total)
    try:
        return await answer.read(1 << 26)
    finally:
        answer.close()


@dataclass
class Collected:
    """A sink that keeps what it is given, in order."""

    seen: list[bytes | str | EngineFailure] = field(default_factory=list)
    take: Callable[[bytes], None] = lambda data: None

    def feed(self, data: bytes) -> None:
        assert data
        self.seen.append(data)
        self.take(data)

    def end(self) -> None:
        self.seen.append("end")

    def fail(self, error: EngineFailure) -> None:
        self.seen.append(error)

    @property
    def body(self) -> bytes:
        return b"".join(each for each in self.seen if isinstance(each, bytes))

    @property
    def over(self) -> bool:
        return bool(self.seen) and not isinstance(self.seen[-1], bytes)


def echo(asked: Asked) -> list[bytes]:
    return [ok(token_of(asked) + asked.body)]


# --- answers and reuse


def test_one_connection_serves_one_request_after_another():
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        for number in range(5):
            assert await fetch(pool, f"t{number}", b"-body") == f"t{number}-body".encode()
            assert (pool.open, pool.idle) == (1, 1)
        assert server.accepted == 1

    play(echo, body)


def test_requests_at_once_have_connections_of_their_own():
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        tokens = [f"t{number}" for number in range(30)]
        assert await asyncio.gather(*(fetch(pool, token) for token in tokens)) == [t.encode() for t in tokens]
        assert server.accepted == pool.open == pool.idle == 30

    play(lambda asked: [0.01, *echo(asked)], body)


HALF = b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nfour"


@pytest.mark.parametrize(
    ("steps", "limit", "said"),
    [
        ([ok(b"at once")], 100, b"at once"),
        ([ok(b"")], 100, b""),
        ([HALF, 0.02, b"more"], 8, b"fourmore"),
        ([HALF, Act.HANG], 3, EngineProtocolError),
        ([HALF, Act.HANG], 100, EngineTimeout),
        ([HALF, 0.02, Act.CLOSE], 100, EngineReset),
        ([chunked(b"a" * 9)[:-5], 0.02, b"0\r\n\r\n"], 100, b"a" * 9),
    ],
)
def test_whoever_wants_an_answer_whole_waits_once(steps, limit, said):
    def at_once(reading: Coroutine[Any, Any, bytes]) -> bytes | type[EngineFailure]:
        try:
            reading.send(None)
        except StopIteration as ended:
            return bytes(ended.value)
        except EngineFailure as failure:
            return type(failure)
        raise AssertionError("it waits")

    async def body(pool: UpstreamPool, _: ScriptedServer) -> None:
        answer = await pool.request(head(), b"", total=0.3, whole=limit)
        assert at_once(answer.read(limit)) == said
        answer.close()
        assert pool.idle == isinstance(said, bytes)

    play(lambda asked: steps, body)


def test_an_answer_that_is_wanted_whole_may_be_given_up():
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pool.request(head(), b"", whole=100), 0.05)
        await until(lambda: not pool.open, "a closed connection")
        answer = await pool.request(head("next"), b"", whole=100)
        assert await answer.read(100) == b"next"
        answer.close()

    play(lambda asked: echo(asked) if token_of(asked) == b"next" else [HALF, Act.HANG], body)


def test_the_head_is_told_as_it_came():
    async def body(pool: UpstreamPool, _: ScriptedServer) -> None:
        answer = await pool.request(head(), b"")
        assert answer.status == 200
        assert list(answer.headers) == [(b"x-a", b"1"), (b"x-a", b"2"), (b"transfer-encoding", b"chunked")]
        assert (answer.header(b"x-a"), answer.header(b"x-b")) == (b"1", None)
        assert await answer.read(100) == b"hello"
        answer.close()

    play(lambda _: [chunked(b"hel", b"lo").replace(b"OK\r\n", b"OK\r\nX-A: 1\r\nx-a: 2\r\n")], body)


@pytest.mark.parametrize(
    "answer",
    [
        ok(b"t", b"connection: close"),
        chunked(b"t").replace(b"OK\r\n", b"OK\r\nConnection: close\r\n"),
        ok(b"t").replace(b"HTTP/1.1", b"HTTP/1.0"),
        ok(b"t") + b"x",
        ok(b"t") + b"\r\n\r\nx",
        ok(b"t") + ok(b"smuggled"),
        chunked(b"t") + ok(b"smuggled"),
        chunked(b"t") + chunked(b"smuggled"),
        ok(b"t") + b"H",
        ok(b"t") + b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\nx: ",
        chunked(b"t") + b"HTTP/1.1 100 Continue\r\n",
    ],
)
def test_what_says_close_or_goes_on_behind_its_end_is_not_used_again(answer):
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        assert await fetch(pool) == b"t"
        assert pool.idle == 0
        await until(lambda: not pool.open)
        assert await fetch(pool, "second") == b"second"
        assert server.accepted == 2

    play(lambda asked: [answer] if asked.number == 0 else echo(asked), body)


def test_bytes_that_nobody_asked_for_end_an_idle_connection():
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        assert await fetch(pool) == b"t"
        await until(lambda: not pool.open)
        assert await fetch(pool, "second") == b"second"
        assert server.accepted == 2

    play(lambda asked: [*echo(asked), 0.02, ok(b"smuggled")] if asked.number == 0 else echo(asked), body)


def test_an_answer_before_the_request_was_read_ends_the_connection():
    async def main() -> None:
        script = lambda _: [ok(b"early"), Act.HANG]  # noqa: E731
        async with ScriptedServer(script, read_body=False) as server, pooled(server.port) as pool:
            assert await fetch(pool, body=b"x" * (32 << 20)) == b"early"
            assert pool.idle == 0

    uvloop.run(main())


@pytest.mark.parametrize("release", [True, False])
def test_an_answer_let_go_before_its_end_ends_the_connection(release):
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        answer = await pool.request(head(), b"")
        sink = Collected()
        if release:
            answer.pipe(sink)
            await until(lambda: sink.body)
        answer.close()
        answer.close()
        assert (pool.open, pool.idle) == (0, 0)
        await until(lambda: not server.open)
        assert not sink.over

    play(lambda _: [chunked(b"part", end=b""), Act.HANG], body)


# --- what is no answer


PROTOCOL = {
    "both framings": ok(b"hello", b"transfer-encoding: chunked"),
    "two lengths": ok(b"hello", b"content-length: 4"),
    "the same length twice": ok(b"hello", b"content-length: 5"),
    "two codings": chunked(b"x").replace(b"OK\r\n", b"OK\r\ntransfer-encoding: chunked\r\n"),
    "no framing": b"HTTP/1.1 200 OK\r\nx: y\r\n\r\nhello",
    "negative length": ok(b"hello").replace(b": 5", b": -5"),
    "signed length": ok(b"hello").replace(b": 5", b": +5"),
    "length of words": ok(b"hello").replace(b": 5", b": five"),
    "no status": b"HTTP/1.1 abc Nonsense\r\ncontent-length: 0\r\n\r\n",
    "short status": b"HTTP/1.1 20 OK\r\ncontent-length: 0\r\n\r\n",
    "long status": b"HTTP/1.1 2000 OK\r\ncontent-length: 0\r\n\r\n",
    "zero status": b"HTTP/1.1 000 OK\r\ncontent-length: 0\r\n\r\n",
    "version": b"HTTP/3.0 200 OK\r\ncontent-length: 0\r\n\r\n",
    "a request": b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "text": b"hello world\r\n\r\n",
    "switching": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    "header without colon": ok(b"x", b"nonsense"),
    "NUL in a header": ok(b"x", b"a: b\0c"),
    "space before colon": ok(b"x", b"content-length : 4"),
    "interim flood": b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100 + ok(b"hello"),
    "giant header": ok(b"x", b"x-padding: " + b"p" * 200_000),
    "many headers": ok(b"x", *(b"x-%d: %b" % (number, b"p" * 50) for number in range(3000))),
    "endless header": b"HTTP/1.1 200 OK\r\nx: " + b"p" * 300_000,
    "chunk size": chunked(end=b"zz\r\nhello\r\n0\r\n\r\n"),
    "giant chunk size": chunked(end=b"fffffffffffffffffff\r\n"),
    "chunk without its end": chunked(end=b"3\r\nhello\r\n0\r\n\r\n"),
    "endless trailer": chunked(b"x", end=b"0\r\nx: " + b"p" * 300_000),
    "endless extension": chunked(b"x", end=b"5;x=" + b"p" * 300_000),
}


@pytest.mark.parametrize("data", PROTOCOL.values(), ids=PROTOCOL)
@pytest.mark.parametrize("size", [1 << 20, 30_000], ids=["whole", "pieces"])
def test_what_is_no_valid_answer_is_a_protocol_error(data, size):
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        with pytest.raises(EngineProtocolError) as caught:
            await fetch(pool)
        assert not caught.value.elsewhere
        await until(lambda: not server.open)
        assert pool.open == 0

    play(lambda _: [*(data[at : at + size] for at in range(0, len(data), size)), Act.HANG], body)


CUT = {
    "nothing": b"",
    "status line": b"HTTP/1.1 200",
    "head": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n",
    "body": ok(b"hello")[:-1],
    "chunk": chunked(b"hello", end=b"5\r\nhel"),
    "last chunk": chunked(b"hello", end=b""),
    "last line": chunked(b"hello", end=b"0\r\n"),
    "end by closing": b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nhello",
    "interim only": b"HTTP/1.1 103 Early Hints\r\n\r\n",
}


@pytest.mark.parametrize("data", CUT.values(), ids=CUT)
@pytest.mark.parametrize("end", [Act.CLOSE, Act.RESET])
def test_an_answer_cut_by_the_end_of_its_connection_is_a_reset(data, end):
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        with pytest.raises(EngineReset) as caught:
            await fetch(pool)
        assert caught.value.elsewhere
        assert pool.open == 0
        assert server.accepted == 1  # a fresh connection is not tried twice

    play(lambda _: [data, 0.01, end], body)


class Stub(asyncio.Transport):
    """A transport that only remembers whether it was aborted."""

    aborted = False

    def write(self, data: object) -> None:
        """Drop it."""

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("data", "sound"),
    [
        (ok(b"t", b"x: " + b"y" * 900), True),
        (ok(b"t", b"x: " + b"y" * 1100), False),
        (ok(b"t" * 5000), True),
        (ok(b"t", *[b"x: y"] * 200), False),
        (b"HTTP/1.1 103 x\r\ncontent-length: 3\r\n\r\nbad" + ok(b"t"), False),
    ],
    ids=["small head", "large head", "large body", "many headers", "interim body"],
)
def test_what_one_read_brings_is_judged_by_itself(data, sound):
    async def main() -> None:
        loop = asyncio.get_running_loop()
        sweeper = Sweeper(loop)
        pool = UpstreamPool(loop, sweeper, "", 0, UpstreamLimits(head_bytes=1000))
        connection, transport = EngineConnection(pool), Stub()
        connection.connection_made(transport)
        asked = asyncio.create_task(connection.send(b"x", b"", float("inf")))
        await asyncio.sleep(0)
        connection.data_received(data)
        try:
            answer = await asked
            assert set(await answer.read(10_000)) == {ord("t")}
            answer.close()
            assert sound
            assert pool.idle == 1
        except EngineProtocolError:
            assert not sound
            assert transport.aborted
        pool.close()
        sweeper.close()

    asyncio.run(main())


def test_a_few_interim_answers_are_skipped_with_all_that_they_hold():
    async def body(pool: UpstreamPool, _: ScriptedServer) -> None:
        answer = await pool.request(head(), b"")
        assert answer.status == 200
        assert answer.header(b"link") is None
        assert await answer.read(100) == b"t"
        answer.close()

    play(lambda asked: [b"HTTP/1.1 100 Continue\r\n\r\n", *echo(asked)], body)
    play(lambda asked: [b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" * 4, *echo(asked)], body)


def test_good_bytes_before_bad_ones_are_handed_on_first():
    async def body(pool: UpstreamPool, _: ScriptedServer) -> None:
        answer = await pool.request(head(), b"")
        sink = Collected()
        answer.pipe(sink)
        await until(lambda: sink.over)
        assert sink.body == b"onetwo"
        assert [type(each) for each in sink.seen] == [bytes, bytes, EngineProtocolError]
        answer.close()

    play(lambda _: [chunked(b"one", end=b""), 0.02, b"3\r\ntwo\r\nzz\r\n", Act.HANG], body)


def test_trailers_are_dropped_and_small_chunks_are_no_flood():
    pieces = [b"1\r\nx\r\n"] * 20_000

    async def body(pool: UpstreamPool, _: ScriptedServer) -> None:
        answer = await pool.request(head(), b"")
        assert await answer.read(1 << 20) == b"x" * 20_000
        assert answer.header(b"content-type") is None
        answer.close()
        assert pool.idle == 1

    play(lambda _: [chunked(end=b""), *pieces, b"0\r\ncontent-type: x\r\n\r\n"], body)


# --- stale connections


def test_a_connection_closed_while_idle_is_replaced():
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        for number in range(3):
            assert await fetch(pool, f"t{number}") == f"t{number}".encode()
            await until(lambda: not pool.open, "the server's close")
        assert server.accepted == 3

    play(lambda asked: [*echo(asked), Act.CLOSE], body)


@pytest.mark.parametrize("end", [Act.CLOSE, Act.RESET])
def test_a_stale_connection_is_replaced_once_when_no_byte_came(end):
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        assert await fetch(pool, "one") == b"one"
        assert await fetch(pool, "two", b"x" * 100_000) == b"two" + b"x" * 100_000
        assert [token_of(each) for each in server.asked] == [b"one", b"two", b"two"]
        assert server.accepted == 2

    play(lambda asked: [end] if asked.number == 1 else echo(asked), body)


def test_a_fresh_connection_that_fails_too_is_not_replaced():
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        assert await fetch(pool, "one") == b"one"
        with pytest.raises(EngineReset):
            await fetch(pool, "two")
        assert server.accepted == 2

    play(lambda asked: echo(asked) if asked.number == 0 else [Act.RESET], body)


@pytest.mark.parametrize("first", [b"H", b"HTTP/1.1 103 Early Hints\r\n\r\n", ok(b"hello")[:-1]])
def test_no_request_is_sent_again_after_a_byte_of_an_answer(first):
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        assert await fetch(pool, "one") == b"one"
        with pytest.raises(EngineReset):
            await fetch(pool, "two")
        assert [token_of(each) for each in server.asked] == [b"one", b"two"]

    play(lambda asked: echo(asked) if asked.number == 0 else [first, 0.01, Act.RESET], body)


def test_idle_connections_are_dropped_in_time():
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        begin = time.monotonic()
        await fetch(pool)
        assert pool.idle == 1
        await until(lambda: not server.open)
        assert 0.1 < time.monotonic() - begin < 2
        assert (pool.open, pool.idle) == (0, 0)

    play(echo, body, keep_alive=0.15)
    assert USUAL.keep_alive < 4.8  # vLLM closes after 5.0 s, the sweep may be 0.1 s late


# --- deadlines


@contextlib.contextmanager
def black_hole() -> Iterator[int]:
    """A port where a connection is neither made nor refused: its queue is full."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listening.getsockname())
        yield listening.getsockname()[1]


def test_a_connection_that_is_not_made_in_time_is_unreachable():
    async def main(port: int) -> None:
        async with pooled(port, BRIEF) as pool:
            begin = time.monotonic()
            with pytest.raises(EngineUnreachable) as caught:
                await fetch(pool)
            assert 0.15 < time.monotonic() - begin < 2
            assert caught.value.elsewhere
            assert pool.open == 0

    with black_hole() as port:
        uvloop.run(main(port))


def test_a_refused_connection_is_unreachable():
    async def main(port: int) -> None:
        async with pooled(port) as pool:
            with pytest.raises(EngineUnreachable):
                await fetch(pool)
            assert pool.open == 0

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        uvloop.run(main(free.getsockname()[1]))


HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n"


@pytest.mark.parametrize(
    ("steps", "limits", "total"),
    [
        ([Act.HANG], {"first_byte": 0.15}, None),
        ([b"HTTP/1.1 103 x\r\n\r\n", Act.HANG], {"first_byte": 0.15}, None),
        ([HEAD, Act.HANG], {"first_byte": 0.15}, None),
        ([HEAD, b"x", Act.HANG], {"idle": 0.15}, None),
        ([chunked(b"x", end=b""), Act.HANG], {"idle": 0.15}, None),
        ([Act.HANG], {}, 0.15),
        ([HEAD, *[b"x", 0.02] * 400], {"idle": 5.0}, 0.15),
    ],
    ids=["no head", "interim", "no body", "silence", "no last chunk", "total without head", "total while it trickles"],
)
def test_each_deadline_ends_the_request(steps, limits, total):
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        begin = time.monotonic()
        with pytest.raises(EngineTimeout) as caught:
            await fetch(pool, total=total)
        assert 0.1 < time.monotonic() - begin < 2
        assert not caught.value.elsewhere
        assert pool.open == 0
        await until(lambda: not server.open)

    play(lambda _: steps, body, **limits)


def test_the_first_byte_may_be_later_than_silence_allows():
    async def body(pool: UpstreamPool, _: ScriptedServer) -> None:
        assert await fetch(pool) == b"t"

    play(lambda asked: [chunked(end=b""), 0.3, b"1\r\nt\r\n0\r\n\r\n"], body, idle=0.05, first_byte=5.0)


def test_a_steady_trickle_may_last_longer_than_silence_allows():
    async def body(pool: UpstreamPool, _: ScriptedServer) -> None:
        assert await fetch(pool) == b"x" * 20

    play(lambda _: [chunked(end=b""), *[b"1\r\nx\r\n", 0.02] * 20, b"0\r\n\r\n"], body, idle=0.2, first_byte=0.2)


@pytest.mark.parametrize("last", [b"0\r\n\r\n", Act.HANG])
def test_what_passes_by_the_parser_is_heard_and_silence_behind_it_still_ends_the_answer(last):
    async def body(pool: UpstreamPool, _: ScriptedServer) -> None:
        answer = await pool.request(head(), b"")
        sink, taken = Collected(), []

        def take(data: bytes) -> bool:
            ordinary = data.startswith(b"1")
            taken.extend([data] * ordinary)
            return ordinary

        answer.pipe(sink, lambda: take)
        await until(lambda: len(taken) >= 20 or sink.over)
        assert not sink.over
        await until(lambda: sink.over)
        assert (sink.seen[-1] == "end") is (last is not Act.HANG)
        answer.close()
        assert pool.idle == (last is not Act.HANG)

    steps = [chunked(end=b""), 0.02, b"1\r\nx\r\n", 0.02, *[b"1\r\ny\r\n", 0.02] * 20, 0.05, last]
    play(lambda _: steps, body, idle=0.2, first_byte=0.2)


def test_silence_is_not_counted_while_we_do_not_read():
    async def body(pool: UpstreamPool, _: ScriptedServer) -> None:
        answer = await pool.request(head(), b"")
        sink = Collected()
        answer.pipe(sink)
        await until(lambda: sink.body)
        answer.pause()
        begin = time.monotonic()
        await until(lambda: time.monotonic() - begin > 0.4)
        assert not sink.over
        answer.resume()
        await until(lambda: sink.over)
        assert sink.seen[-1] == "end"
        answer.close()
        assert pool.idle == 1

    play(lambda _: [chunked(b"a", end=b""), 0.02, b"1\r\nb\r\n0\r\n\r\n"], body, idle=0.1)


def test_silence_counts_again_from_where_reading_goes_on():
    async def body(pool: UpstreamPool, _: ScriptedServer) -> None:
        answer = await pool.request(head(), b"")
        sink = Collected()
        answer.pipe(sink)
        await until(lambda: sink.body)
        answer.pause()
        answer.pause()
        answer.resume()
        answer.resume()
        await until(lambda: sink.over)
        assert isinstance(sink.seen[-1], EngineTimeout)
        answer.close()

    play(lambda _: [chunked(b"a", end=b""), Act.HANG], body, idle=0.1)


def test_the_total_counts_also_while_we_do_not_read():
    async def body(pool: UpstreamPool, _: ScriptedServer) -> None:
        answer = await pool.request(head(), b"", total=0.15)
        sink = Collected()
        answer.pipe(sink)
        answer.pause()
        await until(lambda: sink.over)
        assert isinstance(sink.seen[-1], EngineTimeout)
        answer.close()

    play(lambda _: [chunked(b"a", end=b""), Act.HANG], body)


# --- backpressure and bounds


PIECE = b"x" * (1 << 18)
LARGE = [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (128 * len(PIECE)), *[PIECE] * 128]


async def settled(server: ScriptedServer) -> int:
    """How much the server could send when it cannot send more."""
    before = -1
    while server.sent != before:
        before = server.sent
        begin = time.monotonic()
        await until(lambda begin=begin: time.monotonic() - begin > 0.1)
    return before


def test_a_slow_sink_holds_the_engine_back():
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        answer = await pool.request(head(), b"")
        sink = Collected(take=lambda _: answer.pause())
        answer.pipe(sink)
        await until(lambda: sink.body)
        assert await settled(server) < 16 << 20
        assert len(sink.body) < 1 << 20
        sink.take = lambda _: None
        answer.resume()
        await until(lambda: sink.over)
        assert sink.seen[-1] == "end"
        assert len(sink.body) == 128 * len(PIECE)
        answer.close()

    play(lambda _: LARGE, body)


def test_a_sink_that_pauses_at_the_first_piece_stays_paused():
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        answer = await pool.request(head(), b"")
        await settled(server)
        sink = Collected(take=lambda _: answer.pause())
        answer.pipe(sink)
        first = len(sink.body)
        assert first > 0
        await settled(server)
        assert len(sink.body) == first
        answer.close()

    play(lambda _: LARGE, body, unread_bytes=1000)


def test_a_sink_that_comes_late_sets_a_held_up_answer_going():
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        answer = await pool.request(head(), b"")
        await settled(server)
        sink = Collected()
        answer.pipe(sink)
        await until(lambda: sink.over)
        assert len(sink.body) == 128 * len(PIECE)
        answer.close()

    play(lambda _: LARGE, body, unread_bytes=1000)


def test_an_answer_that_nobody_reads_is_held_up():
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        answer = await pool.request(head(), b"")
        assert await settled(server) < 16 << 20
        assert answer.received < 1 << 20
        assert len(await answer.read(1 << 26)) == 128 * len(PIECE)
        answer.close()
        assert pool.idle == 1

    play(lambda _: LARGE, body)


@pytest.mark.parametrize("limit", [0, 1, 1 << 20])
def test_a_body_over_its_limit_is_a_protocol_error(limit):
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        answer = await pool.request(head(), b"")
        with pytest.raises(EngineProtocolError):
            await answer.read(limit)
        assert answer.received < limit + (1 << 20)
        answer.close()
        await until(lambda: not server.open)

    play(lambda _: LARGE, body)


@pytest.mark.parametrize(
    "steps",
    [LARGE, [HEAD, b"x" * 100, Act.RESET], [HEAD, b"x" * 100, Act.HANG], [ok(b"x" * 100)], [ok(b"")]],
    ids=["large", "reset", "hang", "whole", "empty"],
)
def test_the_beginning_of_an_error_body_is_had_in_any_case(steps):
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        answer = await pool.request(head(), b"")
        some = await answer.read_some(64)
        assert some in (b"x" * 64, b"")
        assert (some == b"") == (len(steps) == 1 and steps[0] == ok(b""))
        answer.close()

    play(lambda _: steps, body, idle=0.1)


def test_no_more_connections_are_made_than_allowed():
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        outcomes = await asyncio.gather(*(fetch(pool, f"t{n}") for n in range(7)), return_exceptions=True)
        busy = [each for each in outcomes if isinstance(each, EngineBusy)]
        assert len(busy) == 4
        assert all(each.elsewhere for each in busy)
        assert server.accepted == pool.open == 3
        assert await fetch(pool, "again") == b"again"

    play(lambda asked: [0.05, *echo(asked)], body, max_connections=3)


def test_failed_connections_leave_their_place():
    async def main(port: int) -> None:
        limits = UpstreamLimits(connect=0.05, max_connections=2)
        async with pooled(port, limits) as pool:
            for _ in range(3):
                outcomes = await asyncio.gather(*(fetch(pool) for _ in range(3)), return_exceptions=True)
                assert sorted(type(each).__name__ for each in outcomes) == [
                    "EngineBusy",
                    "EngineUnreachable",
                    "EngineUnreachable",
                ]

    with black_hole() as port:
        uvloop.run(main(port))


@pytest.mark.parametrize(("up", "down"), [(1, 0), (0, 1)], ids=["request", "answer"])
def test_large_bodies_cost_linear_time(up, down):
    async def seconds(pool: UpstreamPool, size: int) -> float:
        begin = time.process_time()
        answer = await pool.request(head(length=up * size), b"x" * (up * size))
        assert len(await answer.read(1 << 27)) == down * size
        answer.close()
        return time.process_time() - begin

    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        small = min([await seconds(pool, 4 << 20) for _ in range(3)])
        large = min([await seconds(pool, 64 << 20) for _ in range(2)])
        assert large < 100 * small  # 16 times if linear, and then some for fresh memory; 256 times if quadratic

    def script(asked: Asked) -> list[bytes]:
        size = down * (4 << 20 if asked.number < 3 else 64 << 20)
        return [ok(b"x" * size)]

    play(script, body)


# --- cancellation and the end


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_cancelling_while_connecting_leaves_nothing():
    async def main(port: int) -> None:
        async with pooled(port) as pool:
            task = asyncio.create_task(fetch(pool))
            await until(lambda: pool.open)
            await cancelled(task)
            assert pool.open == 0

    with black_hole() as port:
        uvloop.run(main(port))


@pytest.mark.parametrize(
    "steps",
    [[Act.HANG], [b"HTTP/1.1 2", Act.HANG], [HEAD, Act.HANG], [HEAD, b"xx", Act.HANG]],
    ids=["no head", "part of the head", "no body", "part of the body"],
)
def test_cancelling_while_waiting_closes_the_connection(steps):
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        task = asyncio.create_task(fetch(pool))
        await until(lambda: server.asked and server.sent == sum(len(s) for s in steps if isinstance(s, bytes)))
        await asyncio.sleep(0)
        await cancelled(task)
        assert pool.open == 0
        await until(lambda: not server.open)
        assert len(asyncio.all_tasks()) <= 3  # this test, and the server's own

    play(lambda _: steps, body)


def test_cancelling_after_any_number_of_turns_leaves_only_whole_connections():
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        for turns in range(40):
            task = asyncio.create_task(fetch(pool, f"t{turns}"))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                assert await task == f"t{turns}".encode()
            assert pool.open == pool.idle
            await until(lambda: server.open == pool.open)
            assert await fetch(pool, "after") == b"after"
            if turns % 2:  # so that the next one connects
                answer = await pool.request(head("drop"), b"")
                answer.close()

    play(lambda asked: [ok(token_of(asked))[:20], 0.0, ok(token_of(asked))[20:]], body)


def test_closing_the_pool_cuts_what_is_in_flight():
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        await fetch(pool, "idle")
        waiting = asyncio.create_task(fetch(pool, "hang"))
        await until(lambda: len(server.asked) == 2)
        pool.close()
        pool.close()
        with pytest.raises(EngineFailure):
            await waiting
        with pytest.raises(EngineUnreachable):
            await fetch(pool)
        await until(lambda: not server.open)
        assert pool.open == 0

    play(lambda asked: echo(asked) if asked.number == 0 else [Act.HANG], body)


def test_closing_the_pool_stops_a_connection_that_is_being_made():
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        task = asyncio.create_task(fetch(pool))
        while not pool.open:
            await asyncio.sleep(0)
        pool.close()
        with pytest.raises(EngineFailure):
            await task
        assert server.asked == []
        await until(lambda: not server.open)

    play(echo, body, connect=60.0)


# --- an answer's two ways


def test_a_sink_that_comes_late_gets_all_and_the_end():
    async def body(pool: UpstreamPool, _: ScriptedServer) -> None:
        answer = await pool.request(head(), b"")
        await until(lambda: answer.received == 2)
        sink = Collected()
        answer.pipe(sink)
        assert sink.seen == [b"ab", "end"]
        answer.close()
        assert pool.idle == 1

    play(lambda _: [chunked(b"a", b"b")], body)


def test_a_sink_that_comes_after_a_failure_gets_what_came_and_the_failure():
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        answer = await pool.request(head(), b"")
        await until(lambda: not pool.open)
        sink = Collected()
        answer.pipe(sink)
        assert sink.body == b"a"
        assert isinstance(sink.seen[-1], EngineReset)
        with pytest.raises(EngineReset):
            await answer.read(10)
        answer.close()

    play(lambda _: [chunked(b"a", end=b""), 0.02, Act.RESET], body)


def test_a_closed_answer_hears_no_more():
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        answer: Answer = await pool.request(head(), b"")
        sink = Collected()
        answer.pipe(sink)
        answer.close()
        answer.pause()
        answer.resume()
        await until(lambda: not server.open)
        assert sink.seen == []

    play(lambda _: [chunked(end=b""), 0.03, *[b"1\r\nx\r\n"] * 10, Act.HANG], body)


# --- connections that the engine closes while they wait


def lost_with(script: Script, body: Callable[[UpstreamPool, ScriptedServer, list[int]], Awaitable[None]], **more: Any):
    """Run ``body`` with a pool that counts what ``on_lost`` was told."""

    async def main() -> None:
        loop, told = asyncio.get_running_loop(), []
        sweeper = Sweeper(loop, 0.01)
        async with ScriptedServer(script) as server:
            limits = UpstreamLimits(**more)
            pool = UpstreamPool(loop, sweeper, "127.0.0.1", server.port, limits, on_lost=lambda: told.append(1))
            await asyncio.wait_for(body(pool, server, told), 20)
            told_by_then = list(told)
            pool.close()
            await until(lambda: not pool.open and not server.open)
            assert told == told_by_then  # our own end is nobody's loss
        sweeper.close()

    uvloop.run(main())


def test_a_connection_that_the_engine_closes_while_it_waits_is_told_once():
    async def body(pool: UpstreamPool, server: ScriptedServer, told: list[int]) -> None:
        await asyncio.gather(fetch(pool), fetch(pool))
        await until(lambda: not pool.open)
        assert told == [1, 1]
        assert await fetch(pool) == b"t"

    lost_with(lambda asked: [0.02, *echo(asked), 0.05, Act.CLOSE], body)


def test_one_that_the_engine_resets_while_it_waits_is_told_too():
    async def body(pool: UpstreamPool, server: ScriptedServer, told: list[int]) -> None:
        await fetch(pool)
        await until(lambda: told == [1])

    lost_with(lambda asked: [*echo(asked), 0.02, Act.RESET], body)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param([Act.CLOSE], id="before an answer"),
        pytest.param([Act.RESET], id="reset before an answer"),
        pytest.param([b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", Act.CLOSE], id="in an answer"),
        pytest.param([ok(b"ok", b"connection: close"), Act.CLOSE], id="as it said it would"),
        pytest.param([ok(b"ok") + b"more", Act.CLOSE], id="behind bytes that nobody asked for"),
        pytest.param([ok(b"ok"), 0.02, b"more", 0.02, Act.CLOSE], id="after bytes that nobody asked for"),
    ],
)
def test_the_end_of_one_in_use_or_of_one_that_we_closed_is_not_told(script):
    async def body(pool: UpstreamPool, server: ScriptedServer, told: list[int]) -> None:
        with contextlib.suppress(EngineFailure):
            await fetch(pool)
        await until(lambda: not pool.open and not server.open)
        assert told == []

    lost_with(lambda _: script, body)


def test_one_that_has_waited_for_as_long_as_we_keep_it_is_not_told():
    async def body(pool: UpstreamPool, server: ScriptedServer, told: list[int]) -> None:
        await fetch(pool)
        await until(lambda: not pool.open and not server.open)
        assert told == []

    lost_with(echo, body, keep_alive=0.05)


def test_an_answer_that_was_let_go_half_read_is_not_told():
    async def body(pool: UpstreamPool, server: ScriptedServer, told: list[int]) -> None:
        answer = await pool.request(head(), b"")
        answer.close()
        await until(lambda: not pool.open and not server.open)
        assert told == []

    lost_with(lambda _: [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", Act.HANG], body)


# --- fresh connections


def test_a_fresh_request_uses_no_connection_that_was_there_and_leaves_none():
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        await fetch(pool)
        for number in range(5):
            answer = await pool.request(head(f"f{number}"), b"", fresh=True)
            assert await answer.read(10) == b"f%d" % number
            answer.close()
        await until(lambda: server.open == 1)
        assert (server.accepted, pool.open, pool.idle) == (6, 1, 1)
        await fetch(pool)
        assert server.accepted == 6

    play(echo, body)


def test_a_fresh_request_that_fails_is_not_replaced():
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        with pytest.raises(EngineReset):
            await pool.request(head(), b"", fresh=True)
        assert server.accepted == 1

    play(lambda _: [Act.CLOSE], body)


# --- what was heard


def test_only_bytes_of_a_body_are_heard_and_the_newest_of_all_connections_counts():
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        loop = asyncio.get_running_loop()
        never = pool.heard()
        assert never < 0
        one = asyncio.ensure_future(fetch(pool, "head"))
        await until(lambda: server.busy == 0 and len(server.asked) == 1)
        assert pool.heard() == never  # a head comes before any token
        begun = loop.time()
        await fetch(pool, "a")
        first = pool.heard()
        assert begun <= first <= loop.time()
        one.cancel()
        await asyncio.wait({one})
        assert pool.heard() == first
        await until(lambda: loop.time() > first)
        await fetch(pool, "b")
        assert pool.heard() > first

    def script(asked: Asked) -> list[Any]:
        if token_of(asked) == b"head":
            return [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", Act.HANG]
        return list(echo(asked))

    play(script, body)


def test_what_was_heard_outlives_its_connection():
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        await fetch(pool)
        heard = pool.heard()
        await until(lambda: not pool.open)
        assert pool.heard() == heard > 0

    play(lambda asked: [*echo(asked), 0.02, Act.CLOSE], body)


# --- giving up


class Hung(EngineFailure):
    """A failure of the test's own."""


HALF = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([Act.HANG], id="sent"),
        pytest.param([b"HTTP/1.1 100 Continue\r\n\r\n", Act.HANG], id="interim answer"),
        pytest.param([b"HTTP/1.1 200 O", Act.HANG], id="half a head"),
        pytest.param([HALF, Act.HANG], id="head only"),
        pytest.param([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n", Act.HANG], id="chunk size only"),
    ],
)
def test_what_has_got_nothing_is_given_up_each_with_a_failure_of_its_own(steps):
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        waiting = [asyncio.ensure_future(fetch(pool, f"t{number}")) for number in range(3)]
        await until(lambda: len(server.asked) == 3 and not server.busy)
        silent = steps[0] is Act.HANG
        await until(lambda: all(connection.virgin is silent for connection in pool._all))
        pool.give_up(Hung)
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in found] == [Hung] * 3
        assert len(set(map(id, found))) == 3
        assert pool.open == 0

    play(lambda _: steps, body)


def test_what_is_being_connected_is_given_up_before_it_is_sent():
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        waiting = asyncio.ensure_future(fetch(pool))
        while not pool.open:
            await asyncio.sleep(0)
        pool.give_up(Hung)
        with pytest.raises(Hung):
            await waiting
        assert pool.open == 0
        await until(lambda: not server.open)
        assert server.asked == []

    play(echo, body)


def test_what_has_begun_goes_on_and_what_waits_in_the_pool_stays():
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        await asyncio.gather(fetch(pool, "a"), fetch(pool, "b"))
        begun = asyncio.ensure_future(fetch(pool, "slow"))
        await until(lambda: pool.heard() > 0 and server.busy == 1)
        heard = pool.heard()
        await until(lambda: pool.heard() > heard)
        pool.give_up(Hung)
        pool.give_up(Hung)
        assert pool.idle == 1
        assert await begun == b"abcdefghi"
        assert (server.accepted, pool.open, pool.idle) == (2, 2, 2)

    def script(asked: Asked) -> list[Any]:
        if token_of(asked) == b"slow":
            return [0.02, HALF + b"abc", 0.2, b"defghi"]
        return [0.01, *echo(asked)]

    play(script, body)


def test_a_whole_answer_that_nobody_has_read_yet_is_not_given_up():
    async def body(pool: UpstreamPool, server: ScriptedServer) -> None:
        answer = await pool.request(head(), b"")
        await until(lambda: not server.busy)
        pool.give_up(Hung)
        assert await answer.read(10) == b""
        answer.close()
        assert pool.idle == 1

    play(lambda _: [ok(b"")], body)


def test_a_name_that_no_resolver_takes_is_unreachable_and_leaves_nothing():
    async def main() -> None:
        loop = asyncio.get_running_loop()
        sweeper = Sweeper(loop, 0.01)
        pool = UpstreamPool(loop, sweeper, "a" * 64 + ".example", 80, BRIEF)
        with pytest.raises(EngineUnreachable):
            await pool.request(head(), b"")
        assert pool.open == 0
        sweeper.close()

    asyncio.run(main())
    uvloop.run(main())
