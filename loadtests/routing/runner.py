"""Runs scenarios on targets in turns, each run with new engines, whose caches are empty."""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import uvloop

from loadtests.bench.procs import Cores, Process, StartFailed
from loadtests.bench.targets import python_path
from loadtests.routing.client import Answered, play
from loadtests.routing.engines import Fleet, Told, since
from loadtests.routing.figures import Run, figures
from loadtests.routing.place import Endpoint, Place, Target
from loadtests.routing.scenarios import Scenario
from loadtests.routing.starved import share, waited
from loadtests.routing.traffic import Turn

LEAD = 5.0
"""Seconds of load before what counts: caches are empty and nobody knows the engines' speed then."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked: seconds that count in one run, runs of each kind, and the seed of the first ones.

    A run that the host disturbed is made anew, up to ``again`` times; the last one counts.
    """

    seconds: float = 20.0
    repeat: int = 1
    seed: int = 6
    again: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent in one run: requests, and for each of them the instance that gets it. Seconds without the lead."""

    turns: Sequence[Turn]
    doors: Sequence[int]
    seconds: float


def load_of(scenario: Scenario, seconds: float, seed: int) -> Load:
    """A seed decides everything, so that each target gets the same."""
    turns = scenario.traffic.turns(Random(seed), LEAD + seconds)
    doors = Random(seed).choices(range(scenario.instances), k=len(turns))
    return Load(turns, doors, seconds)


@dataclass(frozen=True, slots=True)
class Measured:
    """All runs of one scenario on one target, up to the one that ``failed``, if one did, and why."""

    scenario: Scenario
    target: Target
    runs: Sequence[Run]
    failed: str = ""


def run_all(
    scenarios: Sequence[Scenario], targets: Sequence[Target], wish: Wish, cores: Cores, tell: Tell
) -> list[Measured]:
    """In turns (A B C, A B C), so that a noisy minute hits all alike. A target that fails is left out from there on."""
    measured = []
    for scenario in scenarios:
        runs: dict[str, list[Run]] = {target.name: [] for target in targets}
        failed: dict[str, str] = {}
        for repeat in range(wish.repeat):
            load = load_of(scenario, wish.seconds, wish.seed + repeat)
            for target in [each for each in targets if each.name not in failed]:
                tell(f"{scenario.name} {repeat + 1}/{wish.repeat} {target.name}: {len(load.turns)} requests")
                try:
                    made = run(scenario, target, load, cores)
                    for _ in range(wish.again):
                        if figures([made]).trusted:
                            break
                        tell("the host was too busy: once more")
                        made = run(scenario, target, load, cores)
                    runs[target.name].append(made)
                except StartFailed as why:
                    failed[target.name] = str(why)
        measured += [Measured(scenario, each, runs[each.name], failed.get(each.name, "")) for each in targets]
    return measured


def run(scenario: Scenario, target: Target, load: Load, cores: Cores) -> Run:
    """One run from the start of the engines to their end. Raises `StartFailed`."""
    command = [sys.executable, "-m", "loadtests.routing.engines", scenario.name]
    with tempfile.TemporaryDirectory(prefix="gateway-routing-") as name:
        folder = Path(name)
        with Process("engines", command, folder, cores.engine, environ=python_path(), talk=True) as process:
            fleet = Fleet(process)
            place = Place(fleet.urls, folder, cores.target, fleet.oracle, scenario.instances)
            with target.open(place) as endpoints:
                watch = Watch(fleet, [fleet.pid, *(each.pid for each in endpoints if each.pid is not None)])
                answered, before = uvloop.run(_loaded(load, endpoints, watch))
                return counted(answered, before, watch.look(), load.seconds)


@dataclass(frozen=True, slots=True)
class Look:
    """What engines and host have counted up to a moment of the monotonic clock; the stall is since the look before."""

    at: float
    told: Told
    waited: Sequence[float] | None


@dataclass(frozen=True, slots=True)
class Watch:
    """Looks at engines and host. ``pids`` are the processes that must not wait for a core."""

    fleet: Fleet
    pids: Sequence[int]

    def look(self) -> Look:
        """Blocks; raises `StartFailed`."""
        return Look(time.monotonic(), self.fleet.ask(), waited(self.pids))


async def _loaded(load: Load, endpoints: Sequence[Endpoint], watch: Watch) -> tuple[list[Answered], Look]:
    async def at_the_end_of_the_lead() -> Look:
        await asyncio.sleep(LEAD)
        return await asyncio.to_thread(watch.look)

    clock = asyncio.get_running_loop().time
    playing = [play(turns, each, clock) for each, turns in zip(endpoints, shares(load, len(endpoints)), strict=True)]
    answered, before = await asyncio.gather(asyncio.gather(*playing), at_the_end_of_the_lead())
    return sorted(itertools.chain.from_iterable(answered), key=lambda each: each.at), before


def shares(load: Load, instances: int) -> list[list[Turn]]:
    """What each instance gets. A target of fewer instances than were meant gets all the same."""
    return [
        [turn for turn, door in zip(load.turns, load.doors, strict=True) if door % instances == number]
        for number in range(instances)
    ]


def counted(answered: Sequence[Answered], before: Look, after: Look, seconds: float) -> Run:
    """What is behind the lead, its times from there."""
    return Run(
        answered=[replace(each, at=each.at - LEAD) for each in answered if each.at >= LEAD],
        engines=since(after.told.engines, before.told.engines),
        stall=after.told.stall,
        starved=share(before.waited, after.waited, after.at - before.at),
        seconds=seconds,
    )
