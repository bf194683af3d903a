"""A server of streams that a test plays: whatever it has accepted is served, and over when the server is."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

from loadtests.accepting import Door, bound

HOST = "127.0.0.1"

Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(play: Play, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port of a server that plays ``play`` on each connection, and closes the connection after it.

    A server of asyncio would leave open what it has accepted as it closes, and what a handler holds that is cancelled
    with the loop; the warning then fails whatever test runs as the garbage collector finds them.
    """
    playing: set[asyncio.Task[None]] = set()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        playing.add(task)
        try:
            await play(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            writer.close()
            playing.discard(task)

    def make() -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), served)

    door = Door(make, bound(HOST, 0), tls=tls)
    try:
        yield door.port
    finally:
        door.close()
        await door.wait_entered()
        for task in tuple(playing):
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
