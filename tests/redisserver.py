"""A real redis-server that a test owns, a proxy that hurts what passes it, and a server that says one thing only."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from socket import socket
from typing import Any, Self

import redis

from loadtests.accepting import Door, bound
from loadtests.vllm.engine import held_port
from tests.streams import HOST, serving

_PATIENCE = 10.0


class RedisServer:
    """A redis-server on a port of loopback that is its own until ``close``, with its own folder and nothing on disk.

    Made running.
    """

    def __init__(self, folder: Path, *options: str, password: str = "") -> None:
        self.folder = folder
        self._held = held_port()
        self.port = port_of(self._held)
        self.password = password
        self._options = [*options, *(("--requirepass", password) if password else ())]
        self._process: subprocess.Popen[bytes] | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self.port

    def url(self, db: int = 0, credentials: str = "", scheme: str = "redis") -> str:
        """A state URL. ``credentials`` is ``user:password@``; the server's own password is in it when none is given."""
        own = f":{self.password}@" if self.password else ""
        return f"{scheme}://{credentials or own}{HOST}:{self.port}/{db}"

    def start(self) -> None:
        """Start it, again after ``kill``, and wait until it answers."""
        command = ["redis-server", "--bind", HOST, "--port", str(self.port), "--dir", str(self.folder)]
        command += ["--save", "", "--appendonly", "no", "--protected-mode", "no"]
        command += ["--repl-diskless-sync-delay", "0", *self._options]
        with (self.folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + _PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"redis-server did not start: {(self.folder / 'redis.log').read_text()[-2_000:]}")
            time.sleep(0.01)

    def command(self, *parts: str | bytes | int | float) -> Any:
        """The answer to one command, outside of everything that is tested."""
        with contextlib.closing(self._client()) as client:
            return client.execute_command(*parts)

    def freeze(self) -> None:
        """Stop it where it stands: connections stay open and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it without a word. What it held is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End it and let its port go. Idempotent."""
        self.kill()
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _client(self) -> redis.Redis:
        return redis.Redis(HOST, self.port, password=self.password or None, protocol=2, socket_timeout=5.0, retry=None)

    def _answers(self) -> bool:
        # A server of another test could still listen there by a mistake of ours, hence the look at whose it is.
        try:
            assert self._process is not None
            told = self.command("INFO")
            return told["process_id"] == self._process.pid and not told["loading"]
        except (redis.ConnectionError, redis.TimeoutError):
            return False


class RedisSentinel:
    """A sentinel that watches one server as ``mymaster`` and follows it to a replica when it is gone. Made running."""

    def __init__(self, folder: Path, server: RedisServer) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._held = held_port()
        port = port_of(self._held)
        self.url = f"redis+sentinel://{HOST}:{port}/mymaster/0"
        config = folder / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind {HOST}\ndir {folder}\nprotected-mode no\n"
            f"sentinel monitor mymaster {HOST} {server.port} 1\n"
            "sentinel down-after-milliseconds mymaster 300\nsentinel failover-timeout mymaster 2000\n"
        )
        with (folder / "sentinel.log").open("ab") as log:
            self._process = subprocess.Popen(["redis-server", str(config), "--sentinel"], stdout=log, stderr=log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._held.close()


class Proxy:
    """Passes bytes between a store and a server. Its fields may be set at any time.

    ``target`` is where new connections go, ``delay`` seconds for everything that the server says. The answer to a
    request with ``trap`` in it is cut off after two bytes, and its connection reset or, with ``stalls``, left as it is;
    the trap works once.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.delay = 0.0
        self.trap = b""
        self.stalls = False
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    async def __aenter__(self) -> Self:
        self._door = Door(lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._serve), bound(HOST, 0))
        self.port = self._door.port
        return self

    async def __aexit__(self, *_: object) -> None:
        self._door.close()
        await self._door.wait_entered()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            there = await asyncio.open_connection(*self.target)
            try:
                await self._pass(reader, there[1], there[0], writer)
            finally:
                there[1].transport.abort()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _pass(
        self,
        asked: asyncio.StreamReader,
        onward: asyncio.StreamWriter,
        answered: asyncio.StreamReader,
        back: asyncio.StreamWriter,
    ) -> None:
        trapped = asyncio.Event()

        async def up() -> None:
            while data := await asked.read(1 << 16):
                if self.trap and self.trap in data:
                    self.trap = b""
                    trapped.set()
                onward.write(data)

        async def down() -> None:
            while data := await answered.read(1 << 16):
                await asyncio.sleep(self.delay)
                back.write(data[:2] if trapped.is_set() else data)
                await back.drain()
                if trapped.is_set() and self.stalls:
                    await asyncio.get_running_loop().create_future()
                if trapped.is_set():
                    return

        both = [asyncio.create_task(up()), asyncio.create_task(down())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)


@contextlib.asynccontextmanager
async def server_that_says(answer: bytes) -> AsyncIterator[str]:
    """The state URL of a server that gives the same answer to everything it is asked."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while await reader.read(1 << 16):
                writer.write(answer)

    async with serving(serve) as port:
        yield f"redis://{HOST}:{port}/0"


def port_of(held: socket) -> int:
    """The port that a socket is bound to."""
    port: int = held.getsockname()[1]
    return port
