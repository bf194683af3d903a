"""A process of simulated engines that start cold, and that count who has met them cold.

``python -m loadtests.fleet.cold`` reads orders as lines of JSON and answers each with one line:
``{"start": N, "cold": true}`` with ``{"engines": [{"port": ..., "started": Unix seconds}, ...]}``, and
``{"tally": true}`` with ``{"engines": [...]}``, one `Met` for each engine. One process and not one each: the start of
an interpreter would take more of the machine than the engine it plays.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass

import uvloop

from loadtests.engine.exchange import ReceivedRequest
from loadtests.engine.protocol import Connection
from loadtests.engine.server import SimulatedEngine
from loadtests.engine.spec import EngineSpec

MODEL = "fleet-model"
COLD_FACTOR = 60.0
COLD_REQUESTS = 2
STEP = 0.025

_OWN = {b"warmup": "warmup", b"canary": "canary"}


@dataclass(slots=True)
class Met:
    """Inferences that reached one engine, and how many of a user's came while it was cold. ``cold``: it still is."""

    port: int
    user: int = 0
    user_cold: int = 0
    warmup: int = 0
    canary: int = 0
    cold: bool = False


def spec(*, cold: bool) -> EngineSpec:
    """40 tokens a second for each stream, prompts at 40,000; cold, everything takes 60 times as long."""
    return EngineSpec(
        model=MODEL,
        max_model_len=1024,
        step_time=STEP,
        cold_factor=COLD_FACTOR,
        cold_requests=COLD_REQUESTS if cold else 0,
    )


def sender(request_id: bytes | None) -> str:
    """Whose an inference is, by its id: the gateway marks its own."""
    return _OWN.get((request_id or b"").partition(b"-")[0], "user")


class Counting(SimulatedEngine):
    """An engine that counts whose inferences it gets, and whether they find it cold."""

    def __init__(self, settings: EngineSpec) -> None:
        super().__init__(settings)
        self._met = Met(0)

    @property
    def met(self) -> Met:
        self._met.port, self._met.cold = self.port, self._cold
        return self._met

    @property
    def _cold(self) -> bool:
        return self._scheduler.pace.factor > 1.0

    def handle(self, request: ReceivedRequest, connection: Connection, persistent: bool) -> None:
        if request.method == "POST":
            self._note(sender(request.header(b"x-request-id")))
        super().handle(request, connection, persistent)

    def _note(self, whose: str) -> None:
        met = self._met
        setattr(met, whose, getattr(met, whose) + 1)
        if whose == "user" and self._cold:
            met.user_cold += 1


async def _start(count: int, *, cold: bool) -> list[tuple[Counting, float]]:
    started: list[tuple[Counting, float]] = []
    for _ in range(count):
        at = time.time()
        engine = Counting(spec(cold=cold))
        await engine.start()
        started.append((engine, at))
    return started


async def serve() -> None:
    loop = asyncio.get_running_loop()
    engines: list[Counting] = []
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        if "start" in order:
            started = await _start(order["start"], cold=order["cold"])
            engines += [engine for engine, _ in started]
            say({"engines": [{"port": engine.port, "started": at} for engine, at in started]})
        else:
            say({"engines": [asdict(engine.met) for engine in engines]})
    for engine in engines:
        await engine.close()


def say(message: object) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    uvloop.run(serve())
