"""A process of simulated engines, those of one scenario, that tells what its caches and queues have done.

``python -m loadtests.routing.engines SCENARIO`` prints ``{"ports": [...], "oracle": PORT}``; then each line on its
standard input is answered with one (`Told`): the `Counters` of each engine since its start, and the longest stall of
the process since the line before. One process for all: what it costs to have four interpreters would be taken from the
gateway.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import uvloop

from loadtests.bench.procs import Process
from loadtests.engine.server import SimulatedEngine
from loadtests.routing.oracle import Oracle
from loadtests.routing.scenarios import Scenario, by_name

_BEAT = 0.02


@dataclass(frozen=True, slots=True)
class Counters:
    """What one engine has done: sequences begun and preempted; prompt tokens looked up in the cache and found there."""

    queries: int = 0
    hits: int = 0
    preemptions: int = 0

    def since(self, before: Counters) -> Counters:
        """What was added since an earlier reading of the same engine."""
        return Counters(self.queries - before.queries, self.hits - before.hits, self.preemptions - before.preemptions)


class Told(NamedTuple):
    """One answer of the process. ``stall`` is in seconds: so much later than it should did its event loop do something.

    Engines that stall answer late, whatever the reason: the host, or more work than one core can do.
    """

    engines: list[Counters]
    stall: float


class Stalls:
    """The longest stall since it was last taken."""

    def __init__(self) -> None:
        self._worst = 0.0

    def note(self, seconds: float) -> None:
        self._worst = max(self._worst, seconds)

    def take(self) -> float:
        taken, self._worst = self._worst, 0.0
        return taken


def since(after: Sequence[Counters], before: Sequence[Counters]) -> list[Counters]:
    """The same for all engines of a fleet, in their order."""
    return [now.since(then) for now, then in zip(after, before, strict=True)]


class Counted(SimulatedEngine):
    """An engine whose scheduler's counters can be read without a scrape."""

    @property
    def counters(self) -> Counters:
        totals = self._scheduler.totals
        return Counters(totals.prefix_queries, totals.prefix_hits, totals.preemptions)


def said(line: str) -> Told:
    """Reads one answer of the process."""
    told = json.loads(line)
    return Told([Counters(**each) for each in told["engines"]], told["stall"])


class Fleet:
    """The process, asked one thing at a time. Blocks; raises `StartFailed`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        told = json.loads(process.hear())
        self.urls = [f"http://127.0.0.1:{port}" for port in told["ports"]]
        self.oracle = int(told["oracle"])
        """The port at which the `Oracle` listens in front of them."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self) -> Told:
        """What the engines have done up to now."""
        self._process.tell("tell")
        return said(self._process.hear())


async def watch(
    stalls: Stalls,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """For ever: note by how much each short sleep was too long."""
    while True:
        due = clock() + _BEAT
        await sleep(_BEAT)
        stalls.note(clock() - due)


async def serve(scenario: Scenario) -> None:
    """Until standard input ends."""
    engines = [Counted(spec) for spec in scenario.replicas]
    oracle = Oracle(engines)
    stalls = Stalls()
    watching = asyncio.ensure_future(watch(stalls))
    try:
        for engine in engines:
            await engine.start()
        await oracle.start()
        say({"ports": [engine.port for engine in engines], "oracle": oracle.port})
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, sys.stdin.readline):
            say({"engines": [asdict(engine.counters) for engine in engines], "stall": stalls.take()})
    finally:
        watching.cancel()
        oracle.close()
        for engine in engines:
            await engine.close()


def say(message: object) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    uvloop.run(serve(by_name(sys.argv[1])))
