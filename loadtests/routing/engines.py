"""A process of simulated engines, those of one scenario, that tells what its caches and queues have done.

``python -m loadtests.routing.engines SCENARIO`` prints ``{"ports": [...]}``; then each line on its standard input is
answered with ``{"engines": [...]}``, the `Counters` of each since its start. One process for all: what it costs to have
four interpreters would be taken from the gateway.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import uvloop

from loadtests.bench.procs import Process
from loadtests.engine.server import SimulatedEngine
from loadtests.routing.scenarios import Scenario, by_name


@dataclass(frozen=True, slots=True)
class Counters:
    """What one engine has done: sequences begun and preempted; prompt tokens looked up in the cache and found there."""

    queries: int = 0
    hits: int = 0
    preemptions: int = 0

    def since(self, before: Counters) -> Counters:
        """What was added since an earlier reading of the same engine."""
        return Counters(self.queries - before.queries, self.hits - before.hits, self.preemptions - before.preemptions)


def since(after: Sequence[Counters], before: Sequence[Counters]) -> list[Counters]:
    """The same for all engines of a fleet, in their order."""
    return [now.since(then) for now, then in zip(after, before, strict=True)]


class Counted(SimulatedEngine):
    """An engine whose scheduler's counters can be read without a scrape."""

    @property
    def counters(self) -> Counters:
        totals = self._scheduler.totals
        return Counters(totals.prefix_queries, totals.prefix_hits, totals.preemptions)


def said(line: str) -> list[Counters]:
    """Reads one answer of the process."""
    return [Counters(**each) for each in json.loads(line)["engines"]]


class Fleet:
    """The process, asked one thing at a time. Blocks; raises `StartFailed`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.urls = [f"http://127.0.0.1:{port}" for port in json.loads(process.hear())["ports"]]

    @property
    def pid(self) -> int:
        return self._process.pid

    def counters(self) -> list[Counters]:
        """Of each engine since its start."""
        self._process.tell("counters")
        return said(self._process.hear())


async def serve(scenario: Scenario) -> None:
    """Until standard input ends."""
    engines = [Counted(spec) for spec in scenario.replicas]
    try:
        for engine in engines:
            await engine.start()
        say({"ports": [engine.port for engine in engines]})
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, sys.stdin.readline):
            say({"engines": [asdict(engine.counters) for engine in engines]})
    finally:
        for engine in engines:
            await engine.close()


def say(message: object) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    uvloop.run(serve(by_name(sys.argv[1])))
