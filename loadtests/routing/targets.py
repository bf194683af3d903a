"""What is compared: one entry for each, with how it is put in front of the engines.

An entry needs little but `Target.open`: whoever listens on a port and passes requests on to engines can be one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from loadtests.bench.named import named
from loadtests.bench.procs import StartFailed, answers
from loadtests.fleet.stand import Gateway, Plan
from loadtests.routing import peers
from loadtests.routing.instances import sharing
from loadtests.routing.place import Endpoint, Kind, Place, Target

STRATEGIES = ("estimate", "least-in-flight", "power-of-two", "round-robin", "session")
"""Those of ``balancing.strategy`` in ``routing.yaml``."""

_PATIENCE = 60.0


class UnknownTarget(ValueError):
    """A name that is not in the table."""


def routing(strategy: str) -> Mapping[str, Any]:
    """Sections of ``routing.yaml``: no warmup, so that a run begins at once, and no inferences but the load's."""
    return {
        "balancing": {"strategy": strategy},
        "warmup": {"shapes": [], "slow_start": 0},
        "health": {"canary_interval": 0},
    }


@contextmanager
def gateway(strategy: str, place: Place) -> Iterator[Sequence[Endpoint]]:
    """This gateway, nothing about the engines told; several instances share a Redis."""
    if place.instances > 1:
        with sharing(routing(strategy), place) as endpoints:
            yield endpoints
        return
    with Gateway(Plan(place.engines, routing(strategy), place.cores), place.folder) as running:
        running.wait_for_replicas(len(place.engines), _PATIENCE)
        running.wait_until_ready()
        yield (Endpoint(running.port, running.key(), running.pid),)
        if not answers(f"http://127.0.0.1:{running.port}/readyz"):
            raise StartFailed(f"the gateway does not serve any more: {running.last_words()}")


@contextmanager
def oracle(place: Place) -> Iterator[Sequence[Endpoint]]:
    """What listens in the engines' own process: one, however many instances there should be, for it knows all."""
    yield (Endpoint(place.oracle, ""),)


OURS = STRATEGIES[0]
"""The target that is held against the others."""

TARGETS: tuple[Target, ...] = (
    *(
        Target(strategy, f"this gateway with the strategy {strategy}", partial(gateway, strategy))
        for strategy in STRATEGIES
    ),
    Target(
        "oracle", "sees the engines' queues and caches, and takes the one that answers soonest", oracle, Kind.ORACLE
    ),
    *peers.TARGETS,
)


def select(names: Sequence[str], *, others: bool = False) -> tuple[Target, ...]:
    """The named ones in the table's order; without names all but the peers, and those too with ``others``.

    Raises `UnknownTarget`.
    """
    if names:
        wanted = [*names, *(each.name for each in TARGETS if others and each.kind is Kind.PEER)]
        return named(TARGETS, wanted, "target", UnknownTarget)
    return tuple(target for target in TARGETS if others or target.kind is not Kind.PEER)
