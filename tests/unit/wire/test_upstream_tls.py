"""The client half over TLS: real servers with every kind of certificate, and some that speak no TLS at all."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from gateway.errors import EngineReset, EngineUnreachable
from gateway.wire.deadline import Sweeper
from gateway.wire.tls import client_tls
from gateway.wire.upstream import UpstreamLimits, UpstreamPool
from tests.authority import Authority

NAME = "engines.test"
HEAD = b"POST /v1 HTTP/1.1\r\nhost: engines.test\r\ncontent-length: %d\r\n\r\n"


class Engine:
    """A TLS server that answers each request with its body, in pieces of ``piece`` bytes."""

    def __init__(self, tls: ssl.SSLContext | None, *, cut: bool = False) -> None:
        self._tls = tls
        self._cut = cut
        self.requests = 0
        self.accepted = 0
        self.open = 0
        self.asked_for: list[str | None] = []
        if tls is not None:
            tls.sni_callback = lambda _, name, __: self.asked_for.append(name)

    async def __aenter__(self) -> Engine:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls, limit=1 << 24)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.open += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests += 1
                body = await reader.readexactly(int(head.rpartition(b"content-length: ")[2]))
                if self._cut:
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\nhalf" % len(body))
                    return
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            writer.close()


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


async def fetch(pool: UpstreamPool, body: bytes = b"hello") -> bytes:
    answer = await pool.request(HEAD % len(body), body)
    try:
        return await answer.read(1 << 24)
    finally:
        answer.close()


def play(
    tls: ssl.SSLContext | None,
    trusted: ssl.SSLContext,
    body: Callable[[UpstreamPool, Engine], Awaitable[None]],
    *,
    server_name: str | None = NAME,
    cut: bool = False,
) -> None:
    """Run ``body`` with a pool at a server; afterwards neither has a connection left."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        sweeper = Sweeper(loop, 0.01)
        async with Engine(tls, cut=cut) as engine:
            limits = UpstreamLimits(connect=2.0)
            pool = UpstreamPool(loop, sweeper, "127.0.0.1", engine.port, limits, tls=trusted, server_name=server_name)
            await asyncio.wait_for(body(pool, engine), 10)
            pool.close()
            await until(lambda: not pool.open and not engine.open)
            sweeper.close()

    uvloop.run(main())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def impostor(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("impostor"), "authority")


@pytest.fixture
def trusted(authority: Authority) -> ssl.SSLContext:
    return client_tls(authority.ca)


def test_requests_pass_on_one_connection_to_the_name_that_was_asked_for(authority, trusted):
    async def body(pool: UpstreamPool, engine: Engine) -> None:
        for size in (0, 5, 70_000, 3_000_000):
            assert await fetch(pool, b"x" * size) == b"x" * size
            assert (pool.open, pool.idle) == (1, 1)
        assert engine.accepted == 1
        assert engine.asked_for == [NAME]

    play(authority.server("other.test", NAME), trusted, body)


def test_a_wildcard_stands_for_one_label(authority, trusted):
    async def good(pool: UpstreamPool, engine: Engine) -> None:
        assert await fetch(pool) == b"hello"

    async def bad(pool: UpstreamPool, engine: Engine) -> None:
        with pytest.raises(EngineUnreachable):
            await fetch(pool)

    play(authority.server("*.engines.test"), trusted, good, server_name="a.engines.test")
    play(authority.server("*.engines.test"), trusted, bad, server_name="b.a.engines.test")


def test_without_a_name_the_address_has_to_be_in_the_certificate(authority, trusted):
    async def good(pool: UpstreamPool, engine: Engine) -> None:
        assert await fetch(pool) == b"hello"

    async def bad(pool: UpstreamPool, engine: Engine) -> None:
        with pytest.raises(EngineUnreachable):
            await fetch(pool)

    play(authority.server("127.0.0.1"), trusted, good, server_name=None)
    play(authority.server(NAME), trusted, bad, server_name=None)


def test_a_server_that_cannot_be_trusted_gets_no_byte_of_a_request(authority, impostor, trusted):
    async def body(pool: UpstreamPool, engine: Engine) -> None:
        for _ in range(2):
            with pytest.raises(EngineUnreachable):
                await fetch(pool)
        assert engine.requests == pool.open == 0

    for tls in (
        authority.server("other.test"),
        authority.server("other.test", "127.0.0.1"),  # the address is right, the name is not
        authority.server(NAME, expired=True),
        authority.server(NAME, self_signed=True),
        impostor.server(NAME),
    ):
        play(tls, trusted, body)


def test_a_server_without_tls_gets_no_request(trusted):
    async def body(pool: UpstreamPool, engine: Engine) -> None:
        with pytest.raises(EngineUnreachable):
            await fetch(pool)
        assert engine.requests == 0

    play(None, trusted, body)


def test_the_system_does_not_know_the_authority(authority):
    async def body(pool: UpstreamPool, engine: Engine) -> None:
        with pytest.raises(EngineUnreachable):
            await fetch(pool)

    play(authority.server(NAME), client_tls(), body)


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x16\x03\x03", b"\x00" * 5])
def test_a_handshake_that_hangs_ends_with_the_time_to_connect(trusted, says):
    async def main() -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(says)
            while await reader.read(4096):
                pass
            ended.set()
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            sweeper = Sweeper(loop, 0.01)
            port = server.sockets[0].getsockname()[1]
            limits = UpstreamLimits(connect=0.2)
            pool = UpstreamPool(loop, sweeper, "127.0.0.1", port, limits, tls=trusted, server_name=NAME)
            began = loop.time()
            with pytest.raises(EngineUnreachable):
                await fetch(pool)
            assert loop.time() - began < 2
            assert pool.open == 0
            await asyncio.wait_for(ended.wait(), 5)  # the socket is closed, not left to time out by itself
            pool.close()
            sweeper.close()

    uvloop.run(main())


def test_a_request_given_up_during_the_handshake_leaves_nothing_open(trusted):
    async def main() -> None:
        loop = asyncio.get_running_loop()
        began, ended = asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            began.set()
            while await reader.read(4096):
                pass
            ended.set()
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            sweeper = Sweeper(loop, 0.01)
            port = server.sockets[0].getsockname()[1]
            pool = UpstreamPool(loop, sweeper, "127.0.0.1", port, UpstreamLimits(), tls=trusted, server_name=NAME)
            asking = loop.create_task(fetch(pool))
            await asyncio.wait_for(began.wait(), 5)
            asking.cancel()
            await asyncio.wait({asking})
            assert asking.cancelled()
            assert pool.open == 0
            await asyncio.wait_for(ended.wait(), 5)
            sweeper.close()

    uvloop.run(main())


def test_an_answer_that_is_cut_is_no_answer(authority, trusted):
    async def body(pool: UpstreamPool, engine: Engine) -> None:
        with pytest.raises(EngineReset):
            await fetch(pool)

    play(authority.server(NAME), trusted, body, cut=True)


def test_an_idle_connection_that_the_server_closes_is_told_and_replaced(authority, trusted, tmp_path: Path):
    async def main() -> None:
        loop = asyncio.get_running_loop()
        sweeper, lost = Sweeper(loop, 0.01), []
        writers: list[asyncio.StreamWriter] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            await reader.readuntil(b"hello")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

        async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=authority.server(NAME)) as server:
            pool = UpstreamPool(
                loop,
                sweeper,
                "127.0.0.1",
                server.sockets[0].getsockname()[1],
                UpstreamLimits(),
                tls=trusted,
                server_name=NAME,
                on_lost=lambda: lost.append(1),
            )
            assert await fetch(pool) == b"ok"
            writers[0].close()
            await until(lambda: not pool.open)
            assert lost == [1]
            assert await fetch(pool) == b"ok"
            pool.close()
            await until(lambda: not pool.open)
            for writer in writers:
                writer.close()
            sweeper.close()

    uvloop.run(main())
