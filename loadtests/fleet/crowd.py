"""One process that plays many engines, each at a port of its own, as cheaply as it can.

``python -m loadtests.fleet.crowd --engines N --busy M`` prints ``{"ports": [...]}``; then each line on its standard
input is answered with one line: what has reached the engines since the last (`Tally`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict, dataclass, field
from time import monotonic
from typing import cast

import httptools
import uvloop

from loadtests.fleet.canned import Canned, canned, metrics_response

BUSY_STEPS = 40
"""Steps that an engine with work does from one scrape to the next."""

_KINDS = {b"/metrics": "metrics", b"/health": "health", b"/v1/models": "models", b"/version": "version"}
_MARKS = {b"warmup": "warmup", b"canary": "canary"}


@dataclass(slots=True)
class Tally:
    """What came since the last tally: the kind of each request, and when it came, in seconds of the monotonic clock."""

    kinds: list[str] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)

    def note(self, kind: str, at: float) -> None:
        self.kinds.append(kind)
        self.arrivals.append(at)


class Crowd:
    """What all engines of the process share."""

    def __init__(self, answers: Canned) -> None:
        self.answers = answers
        self.tally = Tally()

    def take(self) -> Tally:
        taken, self.tally = self.tally, Tally()
        return taken


@dataclass(slots=True)
class Engine:
    """One played engine: ``busy`` engines have requests of others running, and their counters move on their own."""

    busy: bool
    steps: int = 0

    def metrics(self, answers: Canned) -> bytes:
        if self.busy:
            self.steps += BUSY_STEPS
        page = answers.busy if self.busy else answers.idle
        return metrics_response(page.at(self.steps))


class Connection(asyncio.Protocol):
    """One client of an engine. The gateway never pipelines, so that answers need no queue."""

    def __init__(self, crowd: Crowd, engine: Engine) -> None:
        self._crowd = crowd
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._mark = b""
        self._closing = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods, not by its class

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if self._transport is not None:
                self._transport.close()

    def on_message_begin(self) -> None:
        self._path = self._mark = b""
        self._closing = False

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == b"x-request-id":
            self._mark = value.partition(b"-")[0]
        elif name == b"connection":
            self._closing = value == b"close"

    def on_message_complete(self) -> None:
        transport = self._transport
        if transport is None:
            return
        mark = _MARKS.get(self._mark, "")
        self._crowd.tally.note(mark or _KINDS.get(self._path, "other"), monotonic())
        transport.write(self._answer(mark))
        if self._closing:
            transport.close()

    def _answer(self, mark: str) -> bytes:
        answers = self._crowd.answers
        if mark:
            self._engine.steps += 2
            return answers.completion
        if self._path == b"/metrics":
            return self._engine.metrics(answers)
        return answers.get.get(self._path, answers.not_found)


async def serve(engines: int, busy: int) -> None:
    loop = asyncio.get_running_loop()
    crowd = Crowd(canned())
    ports: list[int] = []
    for number in range(engines):
        engine = Engine(busy=number < busy)
        server = await loop.create_server(lambda engine=engine: Connection(crowd, engine), "127.0.0.1", 0, backlog=64)  # type: ignore[misc]
        ports.append(server.sockets[0].getsockname()[1])
    say({"ports": ports})
    while await loop.run_in_executor(None, sys.stdin.readline):
        say(asdict(crowd.take()))


def say(message: object) -> None:
    print(json.dumps(message), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Plays many engines at once.")
    parser.add_argument("--engines", type=int, default=256, help="how many, each at a free port (default 256)")
    parser.add_argument("--busy", type=int, default=0, help="how many of them have work (default 0)")
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.engines, arguments.busy))


if __name__ == "__main__":
    main()
