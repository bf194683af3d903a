"""A canned engine for benchmarks: it computes nothing, so that what a run measures is the target.

``python -m loadtests.bench.engine`` listens on a free loopback port and prints ``{"port": N}`` on stdout.

A streamed answer goes out one event per step, all streams in the same step, as vLLM emits one token for each running
request. The pause between steps is what makes a chunk cost the target one read: events written back to back would
reach it several at a time and look cheaper than they are.
"""

import argparse
import asyncio
import json
from collections.abc import Iterator
from typing import cast

import httptools
import uvloop

from loadtests.bench.answers import STREAM_HEAD, Canned, canned

CHAT = b"/v1/chat/completions"
RENDER = b"/v1/chat/completions/render"
STREAM_ASKED = (b'"stream":true', b'"stream": true')
USAGE_ASKED = (b'"include_usage":true', b'"include_usage": true')
TAIL_BYTES = 4096
"""How much of either end of a body is searched for its flags: a scan of 256 KiB would cost more than the answer."""


class Stepper:
    """Writes one piece of every running stream at each step."""

    def __init__(self, loop: asyncio.AbstractEventLoop, step_seconds: float) -> None:
        self._loop = loop
        self._step = step_seconds
        self._running: dict[asyncio.Transport, Iterator[bytes]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self, transport: asyncio.Transport, pieces: Iterator[bytes]) -> None:
        """The first piece goes out in the next turn of the loop: a write of its own, at once."""
        self._loop.call_soon(self._first, transport, pieces)

    def stop(self, transport: asyncio.Transport) -> None:
        self._running.pop(transport, None)

    def _first(self, transport: asyncio.Transport, pieces: Iterator[bytes]) -> None:
        self._running[transport] = pieces
        self._write(transport, pieces)
        if self._timer is None:
            self._timer = self._loop.call_later(self._step, self._turn)

    def _write(self, transport: asyncio.Transport, pieces: Iterator[bytes]) -> None:
        piece = next(pieces, None)
        if piece is None or transport.is_closing():
            self.stop(transport)
        else:
            transport.write(piece)

    def _turn(self) -> None:
        for transport, pieces in tuple(self._running.items()):
            self._write(transport, pieces)
        self._timer = self._loop.call_later(self._step, self._turn) if self._running else None


class Connection(asyncio.Protocol):
    """One client of the engine. Requests are answered in the order in which they end."""

    def __init__(self, answers: Canned, stepper: Stepper) -> None:
        self._answers = answers
        self._stepper = stepper
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._body: list[bytes] = []
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods, not by its class

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._stepper.stop(self._transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if self._transport is not None:
                self._transport.close()

    def on_message_begin(self) -> None:
        self._path = b""
        self._body = []

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        transport = self._transport
        if transport is None:
            return
        path = self._path.partition(b"?")[0]
        if path == CHAT:
            self._chat(transport)
        elif path == RENDER:
            transport.write(self._answers.render)
        else:
            transport.write(self._answers.get.get(path, self._answers.not_found))

    def _chat(self, transport: asyncio.Transport) -> None:
        flags = ends(self._body)
        if not any(flag in flags for flag in STREAM_ASKED):
            transport.write(self._answers.chat)
            return
        transport.write(STREAM_HEAD)
        with_usage = any(flag in flags for flag in USAGE_ASKED)
        self._stepper.start(transport, iter(self._answers.streams[with_usage]))


def ends(pieces: list[bytes]) -> bytes:
    """The beginning and the end of a body: its flags stand there, whoever wrote it, and the prompt in between."""
    body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return body if len(body) <= 2 * TAIL_BYTES else body[:TAIL_BYTES] + body[-TAIL_BYTES:]


async def serve(port: int, chunks: int, step_seconds: float) -> None:
    loop = asyncio.get_running_loop()
    stepper = Stepper(loop, step_seconds)
    answers = canned(chunks)
    server = await loop.create_server(lambda: Connection(answers, stepper), "127.0.0.1", port, backlog=1024)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description="Canned engine for benchmarks.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (default)")
    parser.add_argument("--chunks", type=int, default=200, help="events of a streamed answer (default 200)")
    parser.add_argument("--step-ms", type=float, default=4.0, help="pause between two events of a stream (default 4)")
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.port, arguments.chunks, arguments.step_ms / 1000))


if __name__ == "__main__":
    main()
