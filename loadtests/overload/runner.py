"""Runs scenarios on targets, each run with new engines and a new target."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import uvloop

from loadtests.bench.procs import Cores, Process, StartFailed
from loadtests.bench.targets import python_path
from loadtests.overload.arrivals import arrivals, groups, unending
from loadtests.overload.client import Attempt, Client, Stand
from loadtests.overload.figures import Capacity, capacity
from loadtests.overload.result import Host, Run, Span, rows, spans
from loadtests.overload.scenarios import CLOSED_LOOP, REPLICAS, Phase, Scenario, Stream
from loadtests.overload.targets import Place, Target, suits
from loadtests.routing.engines import Fleet
from loadtests.routing.starved import share, waited

CAPACITY = 10.0
"""Seconds of the closed loop, the first `LEAD` of which do not count."""

LEAD = 3.0

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked: runs of each kind, the seed of the first ones, and whether clients obey Retry-After."""

    repeat: int = 1
    seed: int = 6
    obey: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """All runs of one scenario on one target, up to the one that ``failed``, if one did, and why."""

    scenario: Scenario
    target: Target
    runs: Sequence[Run]
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Before:
    """What one has to know to play phases: the capacity that their loads are shares of, if it is known yet."""

    random: Random
    obey: bool
    capacity: Capacity | None = None


def run_all(
    scenarios: Sequence[Scenario], targets: Sequence[Target], wish: Wish, cores: Cores, tell: Tell
) -> list[Measured]:
    """Every scenario on every target that can play it. A target that fails is left out from there on."""
    measured = []
    for scenario in scenarios:
        for target in [each for each in targets if suits(scenario, each)]:
            runs: list[Run] = []
            failed = ""
            try:
                for repeat in range(wish.repeat):
                    tell(f"{scenario.name} {repeat + 1}/{wish.repeat} {target.name}")
                    runs.append(run(scenario, target, replace(wish, seed=wish.seed + repeat), cores))
            except StartFailed as why:
                failed = str(why)
            measured.append(Measured(scenario, target, runs, failed))
    return measured


def run(scenario: Scenario, target: Target, wish: Wish, cores: Cores) -> Run:
    """One run from the start of the engines to their end, and that of its reference. Raises `StartFailed`."""
    before = Before(Random(wish.seed), wish.obey)
    measured = _run(scenario, target, before, cores, REPLICAS)
    if scenario.reference is None:
        return measured
    alone = replace(scenario, phases=(scenario.reference,))
    reference = _run(alone, target, replace(before, capacity=measured.capacity), cores, REPLICAS // 2)
    return replace(measured, reference=reference.rows[0])


def _run(scenario: Scenario, target: Target, before: Before, cores: Cores, replicas: int) -> Run:
    with (
        _engines(cores) as (fleet, folder),
        target.open(Place(fleet.urls[:replicas], folder, cores.target, scenario)) as stand,
    ):
        known = before.capacity or uvloop.run(_capacity(stand, scenario, before.random))
        if not known.requests:
            raise StartFailed("nothing was served while capacity was measured")
        pids = [pid for pid in (fleet.pid, stand.pid) if pid is not None]
        fleet.ask()  # what stood still until now is not the phases'
        at, starved = time.monotonic(), waited(pids)
        attempts, when = uvloop.run(_played(stand, scenario.phases, known, before))
        host = Host(share(starved, waited(pids), time.monotonic() - at), fleet.ask().stall)
        return Run(scenario, known, attempts, when, rows(attempts, when), host)


@contextmanager
def _engines(cores: Cores) -> Iterator[tuple[Fleet, Path]]:
    command = [sys.executable, "-m", "loadtests.overload.engines"]
    with tempfile.TemporaryDirectory(prefix="gateway-overload-") as name:
        folder = Path(name)
        with Process("engines", command, folder, cores.engine, environ=python_path(), talk=True) as process:
            yield Fleet(process), folder


async def _capacity(stand: Stand, scenario: Scenario, random: Random) -> Capacity:
    requests = unending(random, Stream(next(iter(scenario.callers)), 1.0), "capacity")
    attempts = await Client(stand, time.monotonic).saturate(requests, CLOSED_LOOP, CAPACITY)
    return capacity(attempts, LEAD, CAPACITY)


async def _played(
    stand: Stand, phases: Sequence[Phase], known: Capacity, before: Before
) -> tuple[list[Attempt], list[Span]]:
    """All phases, with pauses between those that shall find idle engines; times are from the first one's beginning."""
    attempts: list[Attempt] = []
    when: list[Span] = []
    begun = time.monotonic()
    for together in groups(phases):
        requests = arrivals(before.random, together, known.requests)
        begin = time.monotonic() - begun
        client = Client(stand, time.monotonic, obey=before.obey)
        played = await client.play(requests, sum(phase.seconds for phase in together))
        attempts += [replace(each, at=each.at + begin) for each in played]
        when += spans(together, begin)
    return attempts, when
