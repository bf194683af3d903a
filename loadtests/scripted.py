"""A server that plays a script for each request: bytes, pauses and ends, exactly as told. For tests of clients."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from loadtests.accepting import Door, bound


class Act(Enum):
    """What a script may do besides sending bytes (``bytes``) and waiting (``float``, in seconds)."""

    CLOSE = "end the connection in order"
    RESET = "end it with a TCP reset"
    HANG = "do nothing more until the peer sends on, or has gone; then end it"


Step = bytes | float | Act


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it came. ``number`` counts the requests of the server from 0."""

    number: int
    head: bytes
    body: bytes


Script = Callable[[Asked], Iterable[Step]]


def ok(body: bytes, *headers: bytes) -> bytes:
    """A whole answer with its length."""
    lines = (b"HTTP/1.1 200 OK", *headers, b"content-length: %d" % len(body), b"", body)
    return b"\r\n".join(lines)


def chunked(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    """A whole answer in chunks."""
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + end


class ScriptedServer:
    """Listens on loopback. ``async with`` starts and ends it; ``open`` counts connections, ``busy`` scripts at work."""

    def __init__(self, script: Script, *, read_body: bool = True) -> None:
        self.asked: list[Asked] = []
        self.accepted = 0
        self.open = 0
        self.busy = 0
        self.sent = 0
        self._script = script
        self._read_body = read_body
        self._door: Door | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """Where it listens."""
        if self._door is None:
            raise RuntimeError("the server has not been started")
        return self._door.port

    async def __aenter__(self) -> ScriptedServer:
        self._door = Door(self._protocol, bound("127.0.0.1", 0))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._door is not None:
            self._door.close()
            await self._door.wait_entered()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit=1 << 26), self._serve)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self.accepted += 1
        self.open += 1
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._one(reader, writer):
                    pass
        finally:
            self.open -= 1
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Take one request and play its script; whether the connection goes on."""
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(_length_of(head)) if self._read_body else b""
        asked = Asked(len(self.asked), head, body)
        self.asked.append(asked)
        self.busy += 1
        try:
            for step in self._script(asked):
                if not await self._do(step, reader, writer):
                    return False
        finally:
            self.busy -= 1
        return True

    async def _do(self, step: Step, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if isinstance(step, bytes):
            writer.write(step)
            await writer.drain()
            self.sent += len(step)
        elif isinstance(step, float):
            await asyncio.sleep(step)
        elif step is Act.HANG:
            self.busy -= 1
            try:
                await reader.read(1)
            finally:
                self.busy += 1
            return False
        else:
            if step is Act.RESET:
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            else:
                writer.close()
                await writer.wait_closed()
            return False
        return True


def _length_of(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0
