"""How one engine is reached: two pools, headers of ours alone, looks that have their patience."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from gateway.errors import EngineHung, EngineProtocolError, EngineReset, EngineTimeout, EngineUnreachable
from gateway.fleet.link import EngineLink
from gateway.model import EngineSpec
from gateway.secret import Secret
from gateway.wire.answer import UpstreamLimits
from gateway.wire.deadline import Sweeper
from loadtests.engine.harness import until
from loadtests.scripted import Act, Asked, Script, ScriptedServer, chunked, ok

JSON = b"application/json"


@contextlib.asynccontextmanager
async def linked(port: int, limits: UpstreamLimits | None = None, **more: Any) -> AsyncIterator[EngineLink]:
    loop = asyncio.get_running_loop()
    sweeper = Sweeper(loop, 0.01)
    link = EngineLink(loop, sweeper, EngineSpec(f"http://127.0.0.1:{port}"), limits or UpstreamLimits(), **more)
    try:
        yield link
    finally:
        link.close()
        link.close()
        await until(lambda: not len(sweeper))
        sweeper.close()


def play(script: Script, body: Callable[[EngineLink, ScriptedServer], Awaitable[None]], **more: Any) -> None:
    """Run a body with a link to a server of that script; afterwards no connection is open at either end."""

    async def main() -> None:
        async with asyncio.timeout(20), ScriptedServer(script) as server:
            async with linked(server.port, **more) as link:
                await body(link, server)
            await until(lambda: not server.open)

    asyncio.run(main())


async def send(link: EngineLink, path: str = "/v1/x", body: bytes = b"{}") -> bytes:
    answer = await link.send(path, JSON, body, "req_1-1", total=None)
    try:
        return await answer.read(100)
    finally:
        answer.close()


def fine(_: Asked) -> list[bytes]:
    return [ok(b"ok")]


def test_a_request_has_headers_of_ours_alone():
    async def body(link, server):
        assert await send(link) == b"ok"
        assert server.asked[0].head == (
            b"POST /v1/x HTTP/1.1\r\nhost: 127.0.0.1:%d\r\naccept-encoding: identity\r\n"
            b"content-type: application/json\r\ncontent-length: 2\r\nx-request-id: req_1-1\r\n\r\n" % server.port
        )
        assert server.asked[0].body == b"{}"
        assert await send(link, "/v1/y", b"") == b"ok"
        assert server.asked[1].head.startswith(b"POST /v1/y HTTP/1.1\r\n")
        assert server.accepted == link.open_connections == 1

    play(fine, body)


def test_an_engine_with_a_key_gets_it_with_requests_and_looks():
    async def body(link, server):
        await send(link)
        await link.get("/v1/models", 1.0)
        assert all(asked.head.count(b"\r\nauthorization: Bearer k-1\r\n") == 1 for asked in server.asked)

    play(fine, body, key=Secret("k-1"))


def test_looks_and_requests_have_connections_of_their_own():
    async def body(link, server):
        for _ in range(3):
            assert await link.get("/metrics", 1.0) == (200, b"ok")
            await send(link)
        assert server.accepted == 2
        assert link.open_connections == 1
        head = b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1:%d\r\naccept-encoding: identity\r\n\r\n" % server.port
        assert server.asked[0].head == head

    play(fine, body)


def test_a_look_does_not_wait_behind_requests():
    async def body(link, server):
        waiting = asyncio.ensure_future(send(link))
        await until(lambda: len(server.asked) == 1)
        assert await link.get("/metrics", 1.0) == (200, b"ok")
        waiting.cancel()
        await asyncio.wait({waiting})

    play(
        lambda asked: [Act.HANG] if b"POST" in asked.head else [ok(b"ok")],
        body,
        limits=UpstreamLimits(max_connections=1),
    )


def test_a_fresh_look_never_uses_a_connection_that_was_there_and_leaves_none():
    async def body(link, server):
        await link.get("/health", 1.0)
        for _ in range(2):
            await link.get("/health", 1.0, fresh=True)
        assert server.accepted == 3
        assert [b"connection: close" in asked.head for asked in server.asked] == [False, True, True]
        await until(lambda: server.open == 1)
        await link.get("/health", 1.0)
        assert server.accepted == 3

    play(fine, body)


def test_a_fresh_look_finds_out_that_no_new_connection_is_taken():
    async def main():
        async with ScriptedServer(fine) as server, linked(server.port) as link:
            await link.get("/health", 1.0)
            server._door.close()
            assert await link.get("/health", 1.0) == (200, b"ok")
            with pytest.raises(EngineUnreachable) as refused:
                await link.get("/health", 1.0, fresh=True)
            assert not refused.value.slow

    asyncio.run(main())


def test_a_status_is_no_failure_of_a_look():
    async def body(link, server):
        assert await link.get("/health", 1.0) == (503, b"")

    play(lambda _: [b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n"], body)


DRIP = [b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n", *[step for _ in range(500) for step in (0.02, b"x")]]


@pytest.mark.parametrize(
    ("steps", "failure"),
    [
        ([Act.HANG], EngineTimeout),
        (DRIP, EngineTimeout),
        ([Act.CLOSE], EngineReset),
        ([Act.RESET], EngineReset),
        ([b"nonsense\r\n\r\n", 0.01, Act.CLOSE], EngineProtocolError),
        ([chunked(*[b"x" * 65536] * 33, end=b""), Act.HANG], EngineProtocolError),
    ],
    ids=["silence", "drip", "close", "reset", "nonsense", "2 MiB and more"],
)
@pytest.mark.parametrize("fresh", [True, False])
def test_a_look_ends_in_time_and_within_its_bound(steps, failure, fresh):
    async def body(link, server):
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with pytest.raises(failure):
            await link.get("/metrics", 0.3, fresh=fresh)
        assert loop.time() - begun < 3.0
        await until(lambda: not server.open)

    play(lambda _: steps, body)


def test_a_look_that_is_given_up_leaves_no_connection():
    async def body(link, server):
        look = asyncio.ensure_future(link.get("/metrics", 10.0))
        await until(lambda: len(server.asked) == 1)
        look.cancel()
        await asyncio.wait({look})
        await until(lambda: not server.open)

    play(lambda _: [Act.HANG], body)


def test_however_long_requests_may_wait_for_a_connection_a_look_does_not():
    async def main():
        with socket.socket() as full, contextlib.ExitStack() as held:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for _ in range(4):  # fill the backlog: connections beyond it are left hanging
                one = held.enter_context(socket.socket())
                one.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    one.connect(full.getsockname())
            async with linked(full.getsockname()[1], UpstreamLimits(connect=60.0)) as link:
                loop = asyncio.get_running_loop()
                begun = loop.time()
                with pytest.raises(EngineUnreachable) as slow:
                    await link.get("/health", 5.0, fresh=True)
                assert slow.value.slow
                assert loop.time() - begun < 5.0

    asyncio.run(main())


def test_a_connection_of_the_looks_that_the_engine_closes_is_told():
    told: list[int] = []

    async def body(link, server):
        await link.get("/metrics", 1.0)
        await until(lambda: told == [1])

    play(lambda _: [ok(b"ok"), 0.01, Act.CLOSE], body, on_lost=lambda: told.append(1))


def test_one_of_the_requests_is_not_told_nor_a_look_that_ends_by_itself():
    told: list[int] = []

    async def body(link, server):
        await send(link)
        await until(lambda: not server.open)
        await link.get("/metrics", 1.0, fresh=True)
        await until(lambda: not server.open)
        link.close()
        assert told == []

    play(lambda _: [ok(b"ok"), 0.01, Act.CLOSE], body, on_lost=lambda: told.append(1))


def test_only_requests_are_heard_and_given_up():
    async def body(link, server):
        never = link.heard()
        await link.get("/metrics", 1.0)
        assert link.heard() == never
        waiting = asyncio.ensure_future(send(link))
        looking = asyncio.ensure_future(link.get("/hangs", 0.5))
        await until(lambda: len(server.asked) == 3)
        link.give_up(EngineHung)
        with pytest.raises(EngineHung):
            await waiting
        with pytest.raises(EngineTimeout):
            await looking

    play(lambda asked: [ok(b"ok")] if b"metrics" in asked.head else [Act.HANG], body)


def test_an_answer_is_heard():
    async def body(link, server):
        never = link.heard()
        begun = asyncio.get_running_loop().time()
        await send(link)
        assert never < begun <= link.heard()

    play(fine, body)


def test_after_close_nothing_is_sent():
    async def body(link, server):
        link.close()
        with pytest.raises(EngineUnreachable):
            await send(link)
        with pytest.raises(EngineUnreachable):
            await link.get("/health", 1.0)

    play(fine, body)


def test_an_https_engine_is_never_reached_in_the_clear():
    async def main():
        loop = asyncio.get_running_loop()
        sweeper = Sweeper(loop)
        with pytest.raises(ValueError, match="without a TLS context"):
            EngineLink(loop, sweeper, EngineSpec("https://gpu.example:8443"), UpstreamLimits())
        sweeper.close()

    asyncio.run(main())
