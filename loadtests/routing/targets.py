"""What is compared: one entry for each, with how it is put in front of the engines.

An entry needs nothing but `Target.open`: whoever listens on a port and passes requests on to engines can be one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from loadtests.bench.procs import StartFailed, answers
from loadtests.fleet.stand import Gateway, Plan

STRATEGIES = ("estimate", "least-in-flight", "power-of-two", "round-robin", "session")
"""Those of ``balancing.strategy`` in ``routing.yaml``."""

_PATIENCE = 60.0


class UnknownTarget(ValueError):
    """A name that is not in the table."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a target is put: the engines' URLs, a folder to write to, and the cores that it may use."""

    engines: Sequence[str]
    folder: Path
    cores: frozenset[int]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A target that serves. ``key`` is empty where none is asked for, ``pid`` ``None`` where it is no process."""

    port: int
    key: str
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """One thing to compare. ``open`` returns when all engines may get requests, and ends it at its exit.

    It raises `StartFailed` when it cannot, and at its exit when the target has ended meanwhile.
    """

    name: str
    summary: str
    open: Callable[[Place], AbstractContextManager[Endpoint]]


def routing(strategy: str) -> Mapping[str, Any]:
    """Sections of ``routing.yaml``: no warmup, so that a run begins at once, and no inferences but the load's."""
    return {
        "balancing": {"strategy": strategy},
        "warmup": {"shapes": [], "slow_start": 0},
        "health": {"canary_interval": 0},
    }


@contextmanager
def gateway(strategy: str, place: Place) -> Iterator[Endpoint]:
    """This gateway, nothing about the engines told."""
    with Gateway(Plan(place.engines, routing(strategy), place.cores), place.folder) as running:
        running.wait_for_replicas(len(place.engines), _PATIENCE)
        running.wait_until_ready()
        yield Endpoint(running.port, running.key(), running.pid)
        if not answers(f"http://127.0.0.1:{running.port}/readyz"):
            raise StartFailed(f"the gateway does not serve any more: {running.last_words()}")


TARGETS: tuple[Target, ...] = tuple(
    Target(strategy, f"this gateway with the strategy {strategy}", partial(gateway, strategy))
    for strategy in STRATEGIES
)


def select(names: Sequence[str]) -> tuple[Target, ...]:
    """The named ones in the table's order; all without names. Raises `UnknownTarget`."""
    known = [target.name for target in TARGETS]
    if unknown := [name for name in names if name not in known]:
        raise UnknownTarget(f"no target {unknown[0]!r}; there are: {', '.join(known)}")
    return tuple(target for target in TARGETS if not names or target.name in names)
