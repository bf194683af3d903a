"""Handshakes: bounded in time and number, and whoever speaks no TLS is gone without an answer."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from gateway.wire.accepting import TlsAcceptor
from gateway.wire.tls import client_tls, server_tls
from tests.authority import Authority

HOST = "127.0.0.1"


class Greeting(asyncio.Protocol):
    """Says hello, and counts who is there."""

    here: int = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Greeting.here += 1
        transport.write(b"hello")  # type: ignore[attr-defined]

    def connection_lost(self, exc: Exception | None) -> None:
        Greeting.here -= 1


class Scene:
    """An acceptor on a port of its own, and who it turned away."""

    def __init__(self, folder: Path, *, room: int, patience: float, listening: socket.socket | None = None) -> None:
        authority = Authority(folder)
        pem = authority.pem(HOST)
        self.client = client_tls(authority.ca)
        self.failed = 0
        self.room = room
        listening = listening or socket.create_server((HOST, 0))
        listening.setblocking(False)
        self.port = listening.getsockname()[1]
        context = server_tls(pem, pem)
        self.acceptor = TlsAcceptor(
            asyncio.get_running_loop(),
            listening,
            Greeting,
            lambda: context,
            room=lambda: self.room - Greeting.here,
            patience=patience,
            on_failed=self.count,
        )

    def count(self) -> None:
        self.failed += 1

    async def hello(self) -> bytes:
        reader, writer = await asyncio.open_connection(HOST, self.port, ssl=self.client)
        try:
            return await reader.readexactly(5)
        finally:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def raw(port: int, data: bytes = b"") -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(data)
    try:
        yield reader
    finally:
        writer.transport.abort()


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the server has ended the connection, with nothing but perhaps an alert."""
    with contextlib.suppress(ConnectionError):
        return len(await asyncio.wait_for(reader.read(), 5)) < 16
    return True


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


def play(
    folder: Path,
    body: Callable[[Scene], Awaitable[None]],
    *,
    room: int = 8,
    patience: float = 5.0,
    listening: socket.socket | None = None,
) -> None:
    async def main() -> None:
        scene = Scene(folder, room=room, patience=patience, listening=listening)
        try:
            await body(scene)
        finally:
            scene.acceptor.close()
            scene.acceptor.close()
            await until(lambda: not Greeting.here)

    uvloop.run(main())


def test_a_handshake_makes_a_connection(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        assert [await scene.hello() for _ in range(3)] == [b"hello"] * 3
        assert scene.failed == 0

    play(tmp_path, body)


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 64, b"\0" * 4096, b"SSH-2.0-x\r\n"]
)
def test_who_speaks_no_tls_is_gone_and_counted(tmp_path: Path, data: bytes) -> None:
    async def body(scene: Scene) -> None:
        async with raw(scene.port, data) as reader:
            assert await ended(reader)
        await until(lambda: scene.failed == 1)
        assert await scene.hello() == b"hello"

    play(tmp_path, body, patience=0.5)


def test_who_leaves_in_the_handshake_is_counted_and_keeps_nothing(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        for _ in range(20):
            async with raw(scene.port, b"\x16\x03\x01"):
                pass
        await until(lambda: scene.failed == 20)

    play(tmp_path, body)


def test_who_says_nothing_has_so_long(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        async with raw(scene.port) as reader:
            assert await ended(reader)
        await until(lambda: scene.failed == 1)

    play(tmp_path, body, patience=0.05)


def test_handshakes_count_among_the_connections_that_there_may_be(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        async with contextlib.AsyncExitStack() as stack:
            first = [await stack.enter_async_context(raw(scene.port)) for _ in range(2)]
            beyond = await stack.enter_async_context(raw(scene.port))
            assert await ended(beyond)
            assert not any(reader.at_eof() for reader in first)
        await until(lambda: scene.failed == 2)
        assert await scene.hello() == b"hello"

    play(tmp_path, body, room=2)


def test_a_handshake_that_has_begun_goes_on_when_nobody_more_is_accepted(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        shaking = scene.client.wrap_bio(there, back, server_hostname=HOST)
        reader, writer = await asyncio.open_connection(HOST, scene.port)
        with pytest.raises(ssl.SSLWantReadError):
            shaking.do_handshake()
        writer.write(back.read())
        there.write(await reader.read(1 << 16))
        scene.acceptor.stop()
        shaking.do_handshake()
        writer.write(back.read())
        heard = b""
        async with asyncio.timeout(5):
            while not heard:
                there.write(await reader.read(1 << 16))
                with contextlib.suppress(ssl.SSLWantReadError):
                    heard = shaking.read(16)
        assert heard == b"hello"
        writer.transport.abort()
        with pytest.raises(ConnectionRefusedError):
            await scene.hello()

    play(tmp_path, body)


def test_closing_ends_the_handshakes(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        async with raw(scene.port, b"\x16\x03\x01") as reader:
            async with raw(scene.port, b"GET / HTTP/1.1\r\n") as other:
                await ended(other)  # the one before was accepted by then
            scene.acceptor.close()
            assert await ended(reader)

    play(tmp_path, body)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_versions_are_refused(tmp_path: Path, version: ssl.TLSVersion) -> None:
    async def body(scene: Scene) -> None:
        scene.client.set_ciphers("ALL:@SECLEVEL=0")
        scene.client.minimum_version = ssl.TLSVersion.TLSv1
        scene.client.maximum_version = version
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await scene.hello()
        await until(lambda: scene.failed == 1)

    play(tmp_path, body)


class Scarce(socket.socket):
    """A listening socket of a system that has no descriptor left, once."""

    refused = False

    def accept(self) -> tuple[socket.socket, object]:
        if not self.refused:
            self.refused = True
            raise OSError(errno.EMFILE, "too many open files")
        return super().accept()


def test_it_goes_on_after_the_system_had_no_descriptor_left(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        assert await scene.hello() == b"hello"

    play(tmp_path, body, listening=Scarce(fileno=socket.create_server((HOST, 0)).detach()))
