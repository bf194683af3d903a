"""What it costs to look after many replicas while no user asks for anything."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from loadtests.bench.procs import Cores, Process, Usage, usage
from loadtests.bench.targets import python_path
from loadtests.fleet.looks import Spread, spread
from loadtests.fleet.stand import Gateway, Plan

FEW = 3
"""Replicas of the run that the large one is compared with."""

SETTLE = 5.0
"""Seconds from the moment when all are ready to the beginning of the measured time."""

_PATIENCE = 600.0

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Phase:
    """What came to the engines in ``seconds``, and what the gateway spent in them. ``looks`` leave inferences out."""

    seconds: float
    cpu_seconds: float
    waited_seconds: float
    """For how long its threads were ready to run and did not: the host's other work."""
    counts: Mapping[str, int]
    looks: Spread
    canaries: Spread

    @property
    def core_share(self) -> float:
        """CPU time as a share of one core."""
        return self.cpu_seconds / self.seconds

    @property
    def per_request_us(self) -> float:
        """CPU microseconds for one request to an engine, which a starved gateway sends fewer of."""
        return self.cpu_seconds / max(sum(self.counts.values()), 1) * 1e6

    def per_replica_us(self, replicas: int) -> float:
        """CPU microseconds for one replica in one second."""
        return self.core_share / replicas * 1e6


@dataclass(frozen=True, slots=True)
class Run:
    """One fleet: until all were ready, the seconds behind that, and the measured time."""

    replicas: int
    busy: int
    start: Phase
    settling: Phase
    steady: Phase
    rss_bytes: int
    played_share: float
    """What the process that plays the engines used in the measured time, as a share of a core."""


@dataclass(frozen=True, slots=True)
class Said:
    """A tally of the process that plays the engines."""

    kinds: Sequence[str]
    arrivals: Sequence[float]


def said(line: str) -> Said:
    """Reads one line of that process."""
    told = json.loads(line)
    return Said(kinds=told["kinds"], arrivals=told["arrivals"])


INFERENCES = frozenset({"warmup", "canary"})


def phase(told: Said, seconds: float, cpu_seconds: float, waited_seconds: float = 0.0) -> Phase:
    """A phase from what came in it."""
    counts: dict[str, int] = {}
    for kind in told.kinds:
        counts[kind] = counts.get(kind, 0) + 1
    pairs = list(zip(told.kinds, told.arrivals, strict=True))
    return Phase(
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        waited_seconds=waited_seconds,
        counts=counts,
        looks=spread([at for kind, at in pairs if kind not in INFERENCES], seconds),
        canaries=spread([at for kind, at in pairs if kind == "canary"], seconds),
    )


def waited(schedstats: Sequence[str]) -> float:
    """Seconds that threads have waited for a core, by the lines of their /proc/PID/task/TID/schedstat."""
    return sum(int(line.split()[1]) for line in schedstats) / 1e9


def waited_of(pid: int) -> float:
    """The same for a process that runs."""
    lines: list[str] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # the thread ended between the listing and the read
            lines.append((task / "schedstat").read_text())
    return waited(lines)


def fleets(replicas: int) -> tuple[int, ...]:
    """The sizes that are measured, in this order."""
    return (FEW, replicas) if replicas > FEW else (replicas,)


class _Watch:
    """Reads both processes at the borders of phases."""

    def __init__(self, gateway: Gateway, crowd: Process, began: float) -> None:
        self._gateway = gateway
        self._crowd = crowd
        self._at = began
        self._used = Usage(0.0, 0)
        self._waited = 0.0

    def phase(self) -> Phase:
        """What has happened since the last border."""
        now, used, late = time.monotonic(), usage(self._gateway.pid), waited_of(self._gateway.pid)
        self._crowd.tell("take")
        told = said(self._crowd.hear())
        ended = phase(told, now - self._at, used.cpu_seconds - self._used.cpu_seconds, late - self._waited)
        self._at, self._used, self._waited = now, used, late
        return ended


def measure(replicas: int, busy_share: float, seconds: float, cores: Cores, tell: Tell) -> Run:
    """One fleet from its start to its end. Raises `StartFailed`."""
    busy = round(replicas * busy_share)
    command = [sys.executable, "-m", "loadtests.fleet.crowd", "--engines", str(replicas), "--busy", str(busy)]
    with tempfile.TemporaryDirectory(prefix="gateway-fleet-") as name:
        folder = Path(name)
        with Process("crowd", command, folder, cores.engine, environ=python_path(), talk=True) as crowd:
            ports = json.loads(crowd.hear())["ports"]
            tell(f"{replicas} replicas: starting")
            plan = Plan([f"http://127.0.0.1:{port}" for port in ports], {}, cores.target)
            with Gateway(plan, folder) as gateway:
                watch = _Watch(gateway, crowd, gateway.started)
                gateway.wait_for_replicas(replicas, _PATIENCE)
                start = watch.phase()
                tell(f"{replicas} replicas: ready after {start.seconds:.1f} s; measuring {seconds:.0f} s")
                time.sleep(SETTLE)
                settling = watch.phase()
                played = usage(crowd.pid).cpu_seconds
                time.sleep(seconds)
                steady = watch.phase()
                return Run(
                    replicas=replicas,
                    busy=busy,
                    start=start,
                    settling=settling,
                    steady=steady,
                    rss_bytes=usage(gateway.pid).rss_bytes,
                    played_share=(usage(crowd.pid).cpu_seconds - played) / steady.seconds,
                )
