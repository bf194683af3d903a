"""Replicas that start cold are added under load: what users notice of it, beside a run in which all are warm."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import uvloop

from loadtests.bench.procs import Cores, Process
from loadtests.bench.targets import python_path
from loadtests.fleet import load
from loadtests.fleet.cold import MODEL
from loadtests.fleet.stand import Gateway, Plan

AT_FIRST = 3
"""Replicas that are there, and warm, when the load begins."""

LEAD = 5.0
"""Seconds of load before what counts: the gateway's own first requests are slow as well."""

NO_WARMUP: Mapping[str, Any] = {"warmup": {"shapes": []}}

_SEED = 5
_PATIENCE = 120.0

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked: ``seconds`` of load at ``rate`` requests a second, one more replica each ``every`` seconds."""

    seconds: float = 60.0
    every: float = 10.0
    rate: float = 10.0
    warmup: bool = True

    @property
    def additions(self) -> list[float]:
        """When replicas are added, in seconds from the beginning of what counts."""
        count = max(0, int((self.seconds - 1e-9) // self.every))
        return [self.every * (number + 1) for number in range(count)]


@dataclass(frozen=True, slots=True)
class Added:
    """A replica: when its engine was started and when it became ready, in seconds from the beginning of what counts."""

    port: int
    started: float
    ready: float | None
    user: int
    user_cold: int
    warmup: int


@dataclass(frozen=True, slots=True)
class Side:
    """One run. ``cold`` counts users' requests that reached a cold engine, on all of its engines."""

    samples: Sequence[load.Sample]
    added: Sequence[Added]
    cold: int


class _Engines:
    """The process of simulated engines, asked one thing at a time."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def start(self, count: int, *, cold: bool) -> list[tuple[int, float]]:
        """Ports, and when each was started (Unix seconds)."""
        return [(each["port"], each["started"]) for each in self._ask({"start": count, "cold": cold})]

    def tally(self) -> dict[int, Mapping[str, Any]]:
        return {each["port"]: each for each in self._ask({"tally": True})}

    def _ask(self, order: Mapping[str, Any]) -> list[dict[str, Any]]:
        self._process.tell(json.dumps(dict(order)))
        answered: list[dict[str, Any]] = json.loads(self._process.hear())["engines"]
        return answered


class _Additions:
    """Adds one cold replica after another through the admin API. ``started`` is by port, in Unix seconds."""

    def __init__(self, engines: _Engines, gateway: Gateway, tell: Tell) -> None:
        self._engines = engines
        self._gateway = gateway
        self._tell = tell
        self.started: dict[int, float] = {}

    async def run(self, times: Sequence[float], begun: float) -> None:
        """Add at these times, in seconds after ``begun`` on the monotonic clock."""
        for at in times:
            await asyncio.sleep(max(0.0, begun + at - time.monotonic()))
            await asyncio.to_thread(self._add)
            self._tell(f"{at:.0f} s: a replica is added")

    def _add(self) -> None:
        for port, started in self._engines.start(1, cold=True):
            self.started[port] = started
            self._gateway.admin("POST", "/admin/fleet", {"url": url(port)})


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def became_ready(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """By URL, since when replicas are ready (Unix seconds), of those that are, by the admin API's list."""
    return {row["url"]: float(row["since"]) for row in rows if row["state"] == "ready"}


async def _loaded(gateway: Gateway, additions: _Additions, wish: Wish, key: str, *, add: bool) -> list[load.Sample]:
    random = Random(_SEED)
    loop = asyncio.get_running_loop()

    async def send() -> tuple[float | None, str]:
        return await load.ask(gateway.port, load.request(MODEL, key, gateway.port, random), loop.time)

    times = load.schedule(wish.rate, LEAD + wish.seconds, _SEED)
    adding = additions.run(wish.additions if add else [], time.monotonic() + LEAD)
    samples, _ = await asyncio.gather(load.run(times, send, loop.time), adding)
    return [replace(sample, at=sample.at - LEAD) for sample in samples if sample.at >= LEAD]


def run(wish: Wish, cores: Cores, tell: Tell, *, add: bool) -> Side:
    """One run: with additions, or with all engines there and warm from the start.

    Raises `StartFailed`, `AdminFailed`.
    """
    with tempfile.TemporaryDirectory(prefix="gateway-fleet-") as name:
        folder = Path(name)
        command = [sys.executable, "-m", "loadtests.fleet.cold"]
        with Process("engines", command, folder, cores.engine, environ=python_path(), talk=True) as process:
            engines = _Engines(process)
            warm = engines.start(AT_FIRST + (0 if add else len(wish.additions)), cold=False)
            routing = {} if wish.warmup else NO_WARMUP
            plan = Plan([url(port) for port, _ in warm], routing, cores.target)
            with Gateway(plan, folder) as gateway:
                gateway.wait_for_replicas(len(warm), _PATIENCE)
                gateway.wait_until_ready()
                key = gateway.key()
                additions = _Additions(engines, gateway, tell)
                tell(f"{len(warm)} replicas are ready; {LEAD + wish.seconds:.0f} s of load")
                begun = time.time() + LEAD
                samples = uvloop.run(_loaded(gateway, additions, wish, key, add=add))
                ready = became_ready(gateway.admin("GET", "/admin/fleet")["replicas"])
                return side(samples, engines.tally(), additions.started, ready, begun)


def side(
    samples: Sequence[load.Sample],
    tally: Mapping[int, Mapping[str, Any]],
    started: Mapping[int, float],
    ready: Mapping[str, float],
    begun: float,
) -> Side:
    """What a run came to; ``started`` and ``ready`` are Unix seconds, as is ``begun``."""
    added = [
        Added(
            port=port,
            started=at - begun,
            ready=ready[url(port)] - begun if url(port) in ready else None,
            user=tally[port]["user"],
            user_cold=tally[port]["user_cold"],
            warmup=tally[port]["warmup"],
        )
        for port, at in started.items()
    ]
    return Side(samples, added, sum(each["user_cold"] for each in tally.values()))
