"""The server's protocol on a transport in memory, on controlled time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import GatewayError
from gateway.wire.bodymemory import BodyMemory
from gateway.wire.connection import Connection
from gateway.wire.deadline import Sweeper
from gateway.wire.inbound import UNREAD_WINDOW, Inbound, InboundContext, InboundLimits, ServerClock

LIMITS = InboundLimits(head_bytes=1024, overhead_bytes=2048, write_buffer=1000)
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\n"
BODY_LIMIT = 100_000


class Transport:
    """Takes bytes into memory; what the client has not read counts as unsent once ``stuck`` is set."""

    def __init__(self, protocol: Connection) -> None:
        self._protocol = protocol
        self._high = 0
        self.out = bytearray()
        self.unsent = 0
        self.stuck = False
        self.reading = True
        self.closed = self.aborted = self.eof = False

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.9", 1234) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        self._high = high

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: bytes) -> None:
        assert not self.eof, "a write behind the FIN"
        self.out += data
        if self.stuck:
            before, self.unsent = self.unsent, self.unsent + len(data)
            if before <= self._high < self.unsent:
                self._protocol.pause_writing()

    def take(self, size: int) -> None:
        """The client reads some of what is buffered for it."""
        self.unsent -= size
        if self.unsent <= self._high // 4:
            self._protocol.resume_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        if not self.aborted:
            self.aborted = self.closed = True
            self._protocol.connection_lost(None)


class Flow:
    def __init__(self) -> None:
        self.paused = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


class Clocked:
    """The running loop with a time of its own."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._loop = asyncio.get_running_loop()
        self.create_task = self._loop.create_task
        self.create_future = self._loop.create_future
        self.call_later = self._loop.call_later

    def time(self) -> float:
        return self.now


class Bench:
    """One connection, the requests that its handler got, and what went wrong."""

    def __init__(
        self, handler: Callable[[Inbound], Awaitable[None]] | None = None, body_memory: int = 1 << 20, **limits: Any
    ) -> None:
        self.loop = Clocked()
        self.got: list[Inbound] = []
        self.bodies: list[bytes] = []
        self.faults: list[str] = []
        self.crashes: list[str] = []
        loop: Any = self.loop
        values = {name: getattr(LIMITS, name) for name in LIMITS.__dataclass_fields__}
        self.context = InboundContext(
            loop=loop,
            handler=handler or self.answer,
            render_fault=lambda error: (b"", error.spec.code.encode()),
            on_fault=lambda error: self.faults.append(error.spec.code),
            on_crash=lambda error: self.crashes.append(type(error).__name__),
            limits=InboundLimits(**{**values, **limits}),
            sweeper=Sweeper(loop),
            clock=ServerClock(lambda: 0.0),
            connections=set(),
            max_connections=2,
            bodies=BodyMemory(body_memory),
        )
        self.connection, self.transport = self.connect()

    def connect(self) -> tuple[Connection, Transport]:
        connection = Connection(self.context)
        transport: Any = Transport(connection)
        connection.connection_made(transport)
        return connection, transport

    async def answer(self, exchange: Inbound) -> None:
        self.got.append(exchange)
        try:
            body = await exchange.body(BODY_LIMIT)
        except GatewayError as error:
            exchange.respond(error.spec.status, b"", error.spec.code.encode(), close=error.close)
            return
        self.bodies.append(body)
        exchange.respond(200, b"x-a: 1\r\n", b"fine")

    async def feed(self, *segments: bytes) -> None:
        for segment in segments:
            if self.transport.closed:
                return
            self.connection.data_received(segment)
            await settle()

    async def later(self, seconds: float) -> None:
        """Time passes, and the sweep with it."""
        self.loop.now += seconds
        if self.connection.deadline <= self.loop.now:
            self.connection.on_deadline(self.loop.now)
        await settle()

    @property
    def statuses(self) -> list[int]:
        return [int(part[:3]) for part in bytes(self.transport.out).split(b"HTTP/1.1 ")[1:]]

    @property
    def last_says_close(self) -> bool:
        return b"connection: close\r\n" in bytes(self.transport.out).rpartition(b"HTTP/1.1 ")[2]


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


def test_requests_one_after_the_other() -> None:
    async def body() -> None:
        bench = Bench()
        await bench.feed(GET, POST + b"Content-Length: 3\r\n\r\nabc", GET)
        assert bench.statuses == [200, 200, 200]
        assert bench.bodies == [b"", b"abc", b""]
        assert not bench.transport.closed
        assert b"x-a: 1\r\ncontent-length: 4\r\n\r\nfine" in bench.transport.out
        assert b"date: Thu, 01 Jan 1970 00:00:00 GMT\r\n" in bench.transport.out
        first = bench.got[0]
        assert (first.method, first.target, first.version, first.peer) == ("GET", b"/", "1.1", "127.0.0.9")

    run(body)


@pytest.mark.parametrize("close", [b"Connection: close", b"Connection: TE, Close", b"Proxy-Connection: close"])
def test_the_clients_close_is_obeyed(close: bytes) -> None:
    async def body() -> None:
        bench = Bench()
        await bench.feed(GET[:-2] + close + b"\r\n\r\n")
        assert bench.last_says_close
        assert bench.transport.closed

    run(body)


def test_answer_to_head_has_no_body() -> None:
    async def body() -> None:
        bench = Bench()
        await bench.feed(GET.replace(b"GET", b"HEAD"))
        assert bytes(bench.transport.out).endswith(b"content-length: 4\r\n\r\n")

    run(body)


def sound(size: int) -> bytes:
    """A request whose head has exactly so many bytes."""
    return GET[:-4] + b"\r\nX: " + b"a" * (size - len(GET) - 5) + b"\r\n\r\n"


@pytest.mark.parametrize("cut", [None, 1, 700])
def test_the_head_is_bounded_to_the_byte(cut: int | None) -> None:
    async def body() -> None:
        for size, status in ((1024, 200), (1025, 431)):
            data = sound(size)
            assert len(data) == size
            bench = Bench()
            await bench.feed(*pieces(data, cut))
            assert bench.statuses == [status]
            assert bench.faults == ([] if status == 200 else ["headers_too_large"])

    run(body)


def pieces(data: bytes, size: int | None) -> list[bytes]:
    step = size or len(data)
    return [data[start : start + step] for start in range(0, len(data), step)]


@pytest.mark.parametrize("cut", [None, 1000])
def test_framing_may_not_outweigh_the_body(cut: int | None) -> None:
    async def body() -> None:
        head = POST + b"Transfer-Encoding: chunked\r\n\r\n"
        bench = Bench()
        await bench.feed(*pieces(head + b"1;" + b"a" * 40_000 + b"\r\nx\r\n0\r\n\r\n", cut))
        assert bench.statuses == [400]
        assert bench.transport.eof
        crumbs = Bench()
        await crumbs.feed(*pieces(head + b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n", cut))
        assert crumbs.statuses == [200]
        assert crumbs.bodies == [b"x" * 5000]

    run(body)


def test_a_body_that_grows_past_its_limit_is_dropped() -> None:
    async def body() -> None:
        bench = Bench()
        piece = b"8000\r\n" + b"a" * 0x8000 + b"\r\n"
        await bench.feed(POST + b"Transfer-Encoding: chunked\r\n\r\n", *[piece] * 6)
        assert bench.statuses == [413]
        assert bench.transport.eof

    run(body)


def test_reading_stops_while_nobody_asks_for_the_body() -> None:
    async def body() -> None:
        asked = asyncio.Event()

        async def handler(exchange: Inbound) -> None:
            await asked.wait()
            received.append(len(await exchange.body(10 * UNREAD_WINDOW)))
            exchange.respond(200, b"", b"")

        received: list[int] = []
        bench = Bench(handler)
        size = UNREAD_WINDOW + 1000
        await bench.feed(POST + b"Content-Length: %d\r\n\r\n" % size, b"a" * UNREAD_WINDOW)
        assert bench.transport.reading
        await bench.feed(b"a")
        assert not bench.transport.reading
        asked.set()
        await settle()
        assert bench.transport.reading
        await bench.feed(b"a" * 999)
        assert received == [size]

    run(body)


def test_continue_comes_when_the_body_is_asked_for_and_once() -> None:
    async def body() -> None:
        bench = Bench()
        await bench.feed(POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n", b"a", b"b")
        assert bench.statuses == [100, 200]
        early = Bench()
        await early.feed(POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\nab")
        assert early.statuses == [200]

    run(body)


def test_bytes_behind_a_request_end_the_connection() -> None:
    async def body() -> None:
        for surplus in (b"P", GET, b"\x00garbage"):
            bench = Bench()
            await bench.feed(GET + surplus)
            assert bench.statuses == [200]
            assert bench.last_says_close
            assert bench.transport.eof
            await bench.feed(GET)
            assert len(bench.got) == 1

    run(body)


def test_a_flood_behind_a_request_ends_it() -> None:
    async def body() -> None:
        bench = Bench(lambda exchange: asyncio.Event().wait())  # type: ignore[arg-type,return-value]
        await bench.feed(GET, b"a" * 2048)
        assert not bench.transport.aborted
        await bench.feed(b"a")
        assert bench.transport.aborted

    run(body)


def test_trailers_are_dropped() -> None:
    async def body() -> None:
        for cut in (None, 1):
            bench = Bench()
            data = POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nAuthorization: x\r\nHost: b\r\n\r\n"
            await bench.feed(*pieces(data, cut))
            assert [name for name, _ in bench.got[0].headers] == [b"host", b"transfer-encoding"]
            assert bench.statuses == [200]

    run(body)


# --- time


def test_deadlines_of_the_head() -> None:
    async def body() -> None:
        silent = Bench()
        await silent.later(LIMITS.head_timeout - 0.1)
        assert not silent.transport.closed
        await silent.later(0.2)
        assert (silent.transport.closed, silent.statuses) == (True, [])
        dripping = Bench()
        for byte in pieces(GET, 1)[:10]:
            await dripping.feed(byte)
            await dripping.later(LIMITS.head_timeout / 9)
        assert dripping.statuses == [408]
        assert dripping.faults == ["request_timeout"]

    run(body)


def test_deadlines_of_the_body() -> None:
    async def body() -> None:
        bench = Bench()
        await bench.feed(POST + b"Content-Length: 20000\r\n\r\n")
        await bench.later(LIMITS.body_timeout - 1)
        await bench.feed(b"a" * 10_240)
        await bench.later(2)
        assert bench.statuses == [], "ten seconds more at the minimum rate"
        await bench.later(10)
        assert bench.statuses == [408]
        assert bench.transport.eof
        await bench.later(1)
        assert not bench.transport.aborted
        await bench.later(3)
        assert bench.transport.aborted, "lingering ends"

    run(body)


def test_idle_connections_are_closed() -> None:
    async def body() -> None:
        bench = Bench()
        await bench.feed(GET)
        await bench.later(LIMITS.idle_timeout - 1)
        assert not bench.transport.closed
        await bench.later(2)
        assert bench.transport.closed

    run(body)


# --- clients that read slowly


async def large(exchange: Inbound) -> None:
    exchange.respond(200, b"", b"a" * 1_000_000)


def test_a_reader_at_the_minimum_rate_is_waited_for_and_one_below_is_not() -> None:
    async def body() -> None:
        bench = Bench(large)
        bench.transport.stuck = True
        await bench.feed(GET)
        await bench.later(0.1)
        enough = int(LIMITS.body_rate * LIMITS.write_timeout)
        for _ in range(5):
            bench.transport.take(enough)
            await bench.later(LIMITS.write_timeout)
            assert not bench.transport.aborted
        bench.transport.take(enough - 1)
        await bench.later(LIMITS.write_timeout)
        assert bench.transport.aborted

    run(body)


def test_no_request_is_read_from_a_client_that_does_not_read_answers() -> None:
    async def body() -> None:
        bench = Bench(large)
        bench.transport.stuck = True
        await bench.feed(GET)
        assert not bench.transport.reading
        bench.transport.take(bench.transport.unsent)
        assert bench.transport.reading
        await bench.later(LIMITS.idle_timeout + 1)
        assert bench.transport.closed

    run(body)


def test_a_last_answer_is_not_held_for_ever() -> None:
    async def body() -> None:
        bench = Bench(large)
        bench.transport.stuck = True
        await bench.feed(GET[:-2] + b"Connection: close\r\n\r\n")
        assert (bench.transport.closed, bench.transport.aborted) == (True, False)
        await bench.later(0.1)
        await bench.later(LIMITS.write_timeout)
        assert bench.transport.aborted

    run(body)


def test_a_stream_pauses_its_source() -> None:
    async def body() -> None:
        flow, streams = Flow(), []

        async def handler(exchange: Inbound) -> None:
            streams.append(exchange)
            exchange.start(200, b"", flow)
            await asyncio.Event().wait()

        bench = Bench(handler)
        await bench.feed(GET)
        bench.transport.stuck = True
        streams[0].write(b"a" * 2000)
        assert flow.paused
        bench.transport.take(bench.transport.unsent)
        assert not flow.paused
        streams[0].write(b"")
        streams[0].finish()
        streams[0].finish()
        assert bytes(bench.transport.out).endswith(b"7d0\r\n" + b"a" * 2000 + b"\r\n0\r\n\r\n")

    run(body)


# --- ends


def test_a_client_that_leaves_cancels_its_request() -> None:
    async def body() -> None:
        for leave in (lambda b: b.connection.connection_lost(None), lambda b: b.connection.eof_received()):
            seen: list[bool] = []

            async def handler(exchange: Inbound, seen: list[bool] = seen) -> None:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    seen.append(exchange.gone)
                    exchange.respond(500, b"", b"nobody reads this")

            bench = Bench(handler)
            await bench.feed(GET)
            leave(bench)
            await settle()
            assert seen == [True]
            assert not bench.context.connections
            assert bench.transport.out == b""

    run(body)


def test_a_handler_that_raises_or_forgets_to_answer_ends_the_connection() -> None:
    async def body() -> None:
        async def raising(exchange: Inbound) -> None:
            raise KeyError("a prompt")

        async def forgetting(exchange: Inbound) -> None:
            return

        for handler, crashes in ((raising, ["KeyError"]), (forgetting, [])):
            bench = Bench(handler)
            await bench.feed(GET)
            assert bench.transport.aborted
            assert bench.crashes == crashes

    run(body)


def test_only_so_many_connections() -> None:
    async def body() -> None:
        bench = Bench()
        bench.connect()
        _, third = bench.connect()
        assert third.aborted
        assert len(bench.context.connections) == 2

    run(body)


def test_draining() -> None:
    async def body() -> None:
        flow, streams = Flow(), []

        async def handler(exchange: Inbound) -> None:
            streams.append(exchange)
            exchange.start(200, b"", flow)
            await asyncio.Event().wait()

        bench = Bench(handler)
        idle, idle_transport = bench.connect()
        await bench.feed(GET)
        bench.context.draining = True
        assert streams[0].draining
        idle.close_if_idle()
        bench.connection.close_if_idle()
        assert (idle_transport.closed, bench.transport.closed) == (True, False)
        streams[0].finish()
        assert bench.transport.closed, "a stream that began before is the connection's last answer all the same"

    run(body)


def test_stopping_cancels_what_is_handled_and_closes_what_is_received() -> None:
    async def body() -> None:
        seen: list[bool] = []

        async def handler(exchange: Inbound) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append(exchange.gone)
                exchange.respond(503, b"", b"")

        handled, received = Bench(handler), Bench(handler)
        await handled.feed(GET)
        await received.feed(GET[:5])
        handled.connection.cancel()
        received.connection.cancel()
        await settle()
        assert (seen, handled.statuses) == ([False], [503])
        assert received.transport.closed

    run(body)


# --- segmentation

REQUESTS = {
    "plain": GET,
    "sized": POST + b"Content-Length: 10\r\n\r\n0123456789",
    "chunked": POST + b"Transfer-Encoding: chunked\r\n\r\n4\r\n0123\r\n6;x=y\r\n456789\r\n0\r\nt: 1\r\n\r\n",
    "both": POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "bad-chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n0x4\r\n0123\r\n0\r\n\r\n",
    "bad-line": GET.replace(b"\r\n", b"\n"),
    "nul": POST + b"X: \x00\r\n\r\n",
    "upgrade": GET[:-2] + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    "h2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "large-head": sound(1100),
    "largest-head": sound(1024),
    "large-body": POST + b"Content-Length: 100001\r\n\r\n" + b"a" * 100_001,
    "large-chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n186a1\r\n" + b"a" * 100_001 + b"\r\n0\r\n\r\n",
    "extension": POST + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"a" * 60_000 + b"\r\nx\r\n0\r\n\r\n",
}


async def outcome(segments: list[bytes]) -> tuple[list[int], list[bytes], list[Any], bool]:
    bench = Bench()
    await bench.feed(*segments)
    ended = bench.transport.eof or bench.transport.closed
    return bench.statuses, bench.bodies, [exchange.headers for exchange in bench.got[:1] if bench.bodies], ended


@pytest.mark.parametrize("name", REQUESTS)
@settings(max_examples=25, deadline=None)
@given(places=st.lists(st.floats(0, 1), max_size=8), near_the_start=st.lists(st.integers(1, 200), max_size=8))
def test_no_verdict_depends_on_segmentation(name: str, places: list[float], near_the_start: list[int]) -> None:
    data = REQUESTS[name]
    edges = sorted({0, len(data), *(int(p * len(data)) for p in places), *(p for p in near_the_start if p < len(data))})

    async def body() -> None:
        whole = await outcome([data])
        assert len(whole[0]) == 1
        assert await outcome([data[a:b] for a, b in itertools.pairwise(edges)]) == whole

    run(body)


def test_faults_are_rendered_by_whom_the_listener_chose() -> None:
    async def body() -> None:
        bench = Bench()
        shown: list[GatewayError] = []
        bench.context.render_fault = lambda error: (shown.append(error), (b"x-f: 1\r\n", b"fault"))[1]
        await bench.feed(b"\x16\x03\x01")
        assert [error.spec.code for error in shown] == ["invalid_request"]
        assert bytes(bench.transport.out).endswith(b"x-f: 1\r\nconnection: close\r\ncontent-length: 5\r\n\r\nfault")

    run(body)
