"""Whatever clients, handlers and time do in whatever order: the bytes of bodies are counted, bounded and given back."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import GatewayError
from gateway.wire.bodymemory import BodyMemory
from gateway.wire.connection import Connection
from gateway.wire.deadline import Sweeper
from gateway.wire.inbound import Inbound, InboundContext, InboundLimits, ServerClock

WHOLE = 500
LIMIT = 800
LIMITS = InboundLimits(head_bytes=1024, overhead_bytes=2048, body_rate=50.0)
CLIENTS = st.integers(0, 2)
HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n"
CHUNK = b"190\r\n" + b"a" * 400 + b"\r\n"
WHOLES = [
    HEAD + b"Content-Length: 400\r\n\r\n" + b"a" * 400,
    HEAD + b"Content-Length: 100\r\nConnection: close\r\n\r\n" + b"a" * 100,
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNK + b"0\r\n\r\n",
]
PARTS = [
    HEAD + b"Content-Length: 600\r\n\r\n" + b"a" * 300,
    HEAD + b"Content-Length: 900\r\n\r\n",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNK,
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    CHUNK,
    b"0\r\n\r\n",
    b"a" * 300,
    b"\0",
]
EVENTS = st.one_of(
    st.tuples(st.just("send"), CLIENTS, st.sampled_from(WHOLES)),
    st.tuples(st.just("send"), CLIENTS, st.sampled_from(PARTS)),
    st.tuples(st.sampled_from(["leave", "half close", "stop", "cut"]), CLIENTS, st.none()),
    st.tuples(st.just("wait"), st.just(0), st.sampled_from([1.0, 31.0, 100.0])),
    st.tuples(st.just("go"), st.just(0), st.none()),
)
STEPS = st.sampled_from(
    [
        ["body", "respond"],
        ["body", "wait", "respond"],
        ["wait", "body", "respond"],
        ["body", "stream", "wait", "finish"],
        ["stream", "body", "finish"],
        ["respond"],
        ["wait", "abort"],
        ["body", "raise"],
        ["body", "wait"],
    ]
)


class Transport:
    """Drops what is written. As asyncio has it, a connection is lost only after whoever ended it has returned."""

    def __init__(self, protocol: Connection) -> None:
        self.protocol = protocol
        self.over = False

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.9", 1234)

    def write(self, data: bytes) -> None: ...

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None:
        if not self.over:
            self.over = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    close = abort


class Clocked:
    """The running loop with a time of its own."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.now = 1000.0
        self.create_task, self.create_future = loop.create_task, loop.create_future

    def time(self) -> float:
        return self.now


class World:
    """Clients of one listener, whose handlers do as they are told."""

    def __init__(self, scripts: list[list[str]]) -> None:
        self.scripts = scripts
        self.taken: list[Inbound] = []
        self.go = asyncio.Event()
        self.loop: Any = Clocked()
        self.memory = BodyMemory(WHOLE)
        self.context = InboundContext(
            loop=self.loop,
            handler=self.handle,
            render_fault=lambda error: (b"", b""),
            on_fault=lambda error: None,
            on_crash=lambda error: None,
            limits=LIMITS,
            sweeper=Sweeper(asyncio.get_running_loop()),
            clock=ServerClock(lambda: 0.0),
            connections=set(),
            max_connections=10,
            bodies=self.memory,
        )
        self.clients = [self.connect() for _ in range(3)]

    def connect(self) -> Transport:
        protocol = Connection(self.context)
        transport: Any = Transport(protocol)
        protocol.connection_made(transport)
        return transport

    async def handle(self, exchange: Inbound) -> None:
        script = self.scripts[len(self.taken) % len(self.scripts)]
        self.taken.append(exchange)
        try:
            for step in script:
                await self.do(step, exchange)
        except GatewayError as error:
            exchange.respond(error.spec.status, b"", b"", close=error.close)

    async def do(self, step: str, exchange: Inbound) -> None:
        if step == "body" and not exchange.finished:
            await exchange.body(LIMIT)
        elif step == "wait":
            await self.go.wait()
        elif step == "respond":
            exchange.respond(200, b"", b"fine")
        elif step == "stream":
            flow: Any = None
            exchange.start(200, b"", flow)
            exchange.write(b"some")
        elif step == "finish" and exchange.started:
            exchange.finish()
        elif step == "abort":
            exchange.abort()
        elif step == "raise":
            raise LookupError

    async def happens(self, kind: str, which: int, what: Any) -> None:
        client = self.clients[which]
        if kind == "wait":
            self.loop.now += what
            for other in self.clients:
                if not other.over and other.protocol.deadline <= self.loop.now:
                    other.protocol.on_deadline(self.loop.now)
        elif kind == "go":
            self.go.set()
            await settle()
            self.go.clear()
        elif client.over:
            self.clients[which] = self.connect()
        elif kind == "send":
            client.protocol.data_received(what)
        elif kind == "half close":
            client.protocol.eof_received()
            client.close()
        elif kind == "stop":
            client.protocol.cancel()
        else:
            client.abort()
        if kind != "cut":  # otherwise the next event comes before the loop has turned
            await settle()

    def check(self) -> None:
        assert self.memory.held == sum(exchange._held for exchange in self.taken) <= WHOLE
        ended = [each for each in self.taken if each.finished or each.gone or each._body_error is not None]
        assert all(exchange._held == 0 for exchange in ended)
        assert all(len(exchange._body) <= exchange._held for exchange in self.taken)


async def settle() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


@settings(max_examples=250, deadline=None, derandomize=True)
@given(scripts=st.lists(STEPS, min_size=1, max_size=6), events=st.lists(EVENTS, min_size=4, max_size=30))
def test_what_bodies_hold_is_bounded_and_comes_back(scripts: list[list[str]], events: list[Any]) -> None:
    async def body() -> None:
        world = World(scripts)
        for event in events:
            await world.happens(*event)
            world.check()
        for client in world.clients:
            client.abort()
        await settle()
        world.check()
        assert world.memory.held == 0
        world.go.set()
        await settle()
        assert len(asyncio.all_tasks()) == 1
        world.context.sweeper.close()

    asyncio.run(body())


def test_the_events_reach_the_bound_and_the_usual_end() -> None:
    """Or the test above would look at nothing."""

    async def body() -> None:
        world = World([["body", "wait", "respond"], ["body", "respond"]])
        for which in (0, 1):
            await world.happens("send", which, HEAD + b"Content-Length: 400\r\n\r\n" + b"a" * 399)
            assert world.memory.held == 399
        await world.happens("send", 0, b"a")
        assert (world.memory.held, world.taken[1].finished) == (400, True)
        await world.happens("go", 0, None)
        assert (world.memory.held, world.taken[0].finished, world.clients[0].over) == (0, True, False)
        world.context.sweeper.close()

    asyncio.run(body())
