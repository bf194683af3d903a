"""A listener on a real socket, with a handler of the test's own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from gateway.server import Listener, bind, crash_line
from gateway.wire.certificate import Certificate
from gateway.wire.deadline import Sweeper
from gateway.wire.exchange import Exchange
from gateway.wire.inbound import InboundLimits
from gateway.wire.tls import client_tls
from tests.authority import Authority

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
Handler = Callable[[Exchange], Awaitable[None]]


async def fine(exchange: Exchange) -> None:
    exchange.respond(200, b"", b"fine")


class Held:
    """A handler that answers when told, and keeps how it was ended."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.go = asyncio.Event()
        self.cancelled = 0

    async def __call__(self, exchange: Exchange) -> None:
        self.entered.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            exchange.respond(503, b"", b"stopping")
            return
        exchange.respond(200, b"", b"fine")


@contextlib.asynccontextmanager
async def listening(handler: Handler, **options: Any) -> AsyncIterator[tuple[Listener, int]]:
    loop = asyncio.get_running_loop()
    sweeper = Sweeper(loop, 0.02)
    bounds = {"limits": InboundLimits(), "max_connections": 10, "body_memory": 1 << 20}
    listener = Listener(loop, sweeper, handler, **{**bounds, **options})
    bound = bind("127.0.0.1", 0)
    await listener.start(bound)
    try:
        yield listener, bound.getsockname()[1]
    finally:
        listener.close()
        listener.close()
        sweeper.close()
        await until(lambda: not listener.connections)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def connected(port: int, data: bytes = b"") -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        yield reader
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


def test_it_serves_and_counts_its_connections() -> None:
    async def body() -> None:
        async with listening(fine) as (listener, port), connected(port, GET) as reader:
            assert (await reader.readuntil(b"fine")).startswith(b"HTTP/1.1 200 OK\r\n")
            assert listener.connections == 1

    run(body)


def test_faults_of_the_bytes_are_counted() -> None:
    async def body() -> None:
        faults: list[str] = []
        options = {"on_fault": lambda error: faults.append(error.spec.code)}
        async with listening(fine, **options) as (_, port), connected(port, b"\x00\r\n\r\n") as reader:
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
            assert b'"code":"invalid_request"' in answer
        assert faults == ["invalid_request"]

    run(body)


def test_a_crash_is_reported_without_its_message(capsys: pytest.CaptureFixture[str]) -> None:
    async def crashing(exchange: Exchange) -> None:
        raise KeyError("a prompt")

    async def body() -> None:
        async with listening(crashing) as (_, port), connected(port, GET) as reader:
            assert await reader.read() == b""

    run(body)
    said = capsys.readouterr()
    assert "KeyError in crashing (" in said.err
    assert "a prompt" not in said.err + said.out


def test_a_line_on_an_error_that_was_never_raised() -> None:
    assert crash_line(ValueError("a prompt")) == "a request handler failed: ValueError in "


def test_draining_ends_when_the_last_answer_is_out() -> None:
    async def body() -> None:
        held = Held()
        async with listening(held) as (listener, port), connected(port) as idle, connected(port, GET) as reader:
            await held.entered.wait()
            await until(lambda: listener.connections == 2)
            assert not listener.draining
            draining = asyncio.ensure_future(listener.drain(60))
            assert await idle.read() == b""
            assert listener.draining
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
            held.go.set()
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"connection: close\r\n" in answer
            async with asyncio.timeout(5):
                await draining
            assert held.cancelled == 0

    run(body)


def test_what_outlasts_the_patience_is_cancelled_and_may_say_so() -> None:
    async def body() -> None:
        held = Held()
        async with listening(held) as (listener, port), connected(port, GET) as reader:
            await held.entered.wait()
            await listener.drain(0.05)
            assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
            assert held.cancelled == 1
            assert listener.connections == 0

    run(body)


def test_announcing_a_drain_still_accepts() -> None:
    async def body() -> None:
        async with listening(fine) as (listener, port):
            listener.announce_drain()
            async with connected(port, GET) as reader:
                assert b"connection: close\r\n" in await reader.read()

    run(body)


def test_closing_ends_everything_at_once() -> None:
    async def body() -> None:
        held = Held()
        async with listening(held) as (listener, port), connected(port, GET) as reader:
            await held.entered.wait()
            listener.close()
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            await until(lambda: held.cancelled == 1)

    run(body)


def test_deadlines_are_swept() -> None:
    async def body() -> None:
        limits = InboundLimits(head_timeout=0.05)
        async with listening(fine, limits=limits) as (_, port), connected(port) as reader, asyncio.timeout(5):
            assert await reader.read() == b""

    run(body)


def test_a_taken_address_is_an_error_and_leaves_nothing_open() -> None:
    with contextlib.closing(bind("127.0.0.1", 0)) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use") as raised:
            bind("127.0.0.1", port)
        assert raised.value.filename == f"127.0.0.1:{port}"


@pytest.mark.skipif(not socket.has_ipv6, reason="this host has no IPv6")
def test_ipv6() -> None:
    try:
        bound = bind("::1", 0)
    except OSError:
        pytest.skip("::1 is not configured")
    with contextlib.closing(bound):
        assert bound.family is socket.AF_INET6


def test_with_a_certificate_it_speaks_nothing_but_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pem = authority.pem("127.0.0.1")

    async def body() -> None:
        loop, strangers = asyncio.get_running_loop(), []
        sweeper = Sweeper(loop, 0.02)
        listener = Listener(
            loop,
            sweeper,
            fine,
            limits=InboundLimits(),
            max_connections=1,
            body_memory=1 << 20,
            on_stranger=lambda: strangers.append(1),
        )
        bound = bind("127.0.0.1", 0)
        port = bound.getsockname()[1]
        await listener.start(bound, Certificate(pem, pem, lambda _: None))
        try:
            async with connected(port, GET) as plain:
                assert b"HTTP" not in await plain.read()
            await until(lambda: len(strangers) == 1)
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_tls(authority.ca))
            writer.write(GET)
            assert (await reader.readuntil(b"fine")).startswith(b"HTTP/1.1 200")
            async with connected(port) as beyond:
                assert await beyond.read() == b""
            await listener.drain(1.0)
            assert await reader.read() == b""
            writer.close()
        finally:
            listener.close()
            sweeper.close()

    run(body)
