"""A connection that was accepted is served or closed, whatever happens to the listener at that moment."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from loadtests.accepting import Door, bound
from tests.authority import Authority

LOOPS = pytest.mark.parametrize("new_loop", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
HOST = "127.0.0.1"


class Greeting(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(b"hello")  # type: ignore[attr-defined]
        transport.close()


class Hooked(socket.socket):
    """A listening socket that calls `hook` with each connection it accepts, before the door has it."""

    hook: Callable[[socket.socket], None]

    def accept(self) -> tuple[socket.socket, object]:
        connection, address = super().accept()
        self.hook(connection)
        return connection, address


def hooked(hook: Callable[[socket.socket], None]) -> Hooked:
    plain = bound(HOST, 0)
    listening = Hooked(fileno=plain.detach())
    listening.setblocking(False)
    listening.hook = hook
    return listening


async def greeting_of(port: int) -> bytes:
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        return await reader.read()
    finally:
        writer.close()


@LOOPS
def test_what_was_accepted_as_the_door_closed_is_served(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        listening = hooked(lambda _: asyncio.get_running_loop().call_soon(door.close))
        door = Door(Greeting, listening)
        assert await greeting_of(door.port) == b"hello"
        with pytest.raises(ConnectionRefusedError):
            await greeting_of(door.port)
        door.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


@LOOPS
def test_what_was_accepted_as_the_loop_ends_is_closed(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    accepted: list[socket.socket] = []

    async def main() -> None:
        over = asyncio.get_running_loop().create_future()

        def end(connection: socket.socket) -> None:
            accepted.append(connection)
            over.set_result(None)

        door = Door(Greeting, hooked(end))
        client = socket.create_connection((HOST, door.port))
        await over
        door.close()
        client.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
    assert [connection.fileno() for connection in accepted] == [-1]


@LOOPS
def test_it_goes_on_after_the_system_had_no_descriptor_left(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    refused = []

    def refuse_once(connection: socket.socket) -> None:
        if not refused:
            refused.append(connection.getpeername())
            connection.close()
            raise OSError(errno.EMFILE, "too many open files")

    async def main() -> None:
        door = Door(Greeting, hooked(refuse_once), pause=0.01)
        assert await greeting_of(door.port) == b""
        assert await greeting_of(door.port) == b"hello"
        door.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
    assert len(refused) == 1


def test_it_waits_until_each_accepted_connection_has_its_protocol() -> None:
    made: list[Greeting] = []

    def make() -> Greeting:
        made.append(Greeting())
        return made[-1]

    async def main() -> None:
        accepted = asyncio.Event()
        door = Door(make, hooked(lambda _: accepted.set()))
        with socket.create_connection((HOST, door.port)):
            await accepted.wait()
            door.close()
            await door.wait_entered()
            assert len(made) == 1

    asyncio.run(main())


def test_a_taken_port_is_an_error_and_leaves_nothing_open() -> None:
    with bound(HOST, 0) as first, pytest.raises(OSError, match="in use"):
        bound(HOST, first.getsockname()[1])


def test_whoever_speaks_no_tls_is_closed_and_holds_up_nobody(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def main() -> None:
        door = Door(Greeting, bound(HOST, 0), tls=authority.server("engine.test"))
        with socket.create_connection((HOST, door.port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            trusted = ssl.create_default_context(cafile=authority.ca)
            reader, writer = await asyncio.open_connection(HOST, door.port, ssl=trusted, server_hostname="engine.test")
            assert await reader.read() == b"hello"
            writer.close()
            door.close()
            await door.wait_entered()

    asyncio.run(main())
