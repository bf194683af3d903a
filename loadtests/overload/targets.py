"""What is compared: this gateway with and without its own queue, and a router that has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.bench.named import named
from loadtests.bench.procs import StartFailed, answers
from loadtests.fleet.stand import Gateway, Plan
from loadtests.overload import policies
from loadtests.overload.client import Stand
from loadtests.overload.scenarios import Caller, Scenario
from loadtests.routing import peers
from loadtests.routing.place import Place as RoutingPlace

NO_ADMISSION = "--no-admission"

_PATIENCE = 60.0
_PEER = "vllm-router"
_OPTIONS = ("admission", "priority", "weight")


class UnknownTarget(ValueError):
    """A name that is not in the table."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a target is put: the engines' URLs, a folder to write to, the cores that it may use, and for what."""

    engines: Sequence[str]
    folder: Path
    cores: frozenset[int]
    scenario: Scenario


Open = Callable[[Place], AbstractContextManager[Stand]]


@dataclass(frozen=True, slots=True)
class Target:
    """One thing to compare. ``open`` returns when all engines may get requests, and ends it at its exit.

    It raises `StartFailed` when it cannot, and at its exit when the target has ended meanwhile. ``named``: it is only
    measured where it is asked for by its name.
    """

    name: str
    summary: str
    open: Open
    peer: bool = False
    named: bool = False


def admitting(scenario: Scenario) -> Mapping[str, Any]:
    return scenario.admission


def _shipped(scenario: Scenario) -> Mapping[str, Any]:
    return {}


def _no_limit(scenario: Scenario) -> Mapping[str, Any]:
    return policies.NO_LIMIT


def _without(scenario: Scenario) -> None:
    """A gateway that knows nothing of admission."""


def gateway(admission: Callable[[Scenario], Mapping[str, Any] | None]) -> Open:
    """This gateway with that section ``admission``, or with no option of fairness at all."""

    @contextmanager
    def opened(place: Place) -> Iterator[Stand]:
        section = admission(place.scenario)
        callers = place.scenario.callers
        access = policies.access(callers, fairness=section is not None)
        plan = Plan(place.engines, policies.routing(section), place.cores, access)
        with Gateway(plan, place.folder) as running:
            try:
                running.wait_for_replicas(len(place.engines), _PATIENCE)
                running.wait_until_ready()
            except StartFailed as failed:
                raise StartFailed(explained(str(failed), tried=section is not None)) from failed
            yield Stand(running.port, {name: key(running, name, each) for name, each in callers.items()}, running.pid)
            if not answers(f"http://127.0.0.1:{running.port}/readyz"):
                raise StartFailed(f"the gateway does not serve any more: {running.last_words()}")

    return opened


def key(running: Gateway, name: str, caller: Caller) -> str:
    """A key with the caller's tenant and role."""
    return running.key(name, ["--tenant", caller.tenant, "--role", policies.role(caller)])


def explained(words: str, *, tried: bool) -> str:
    """What a gateway that did not start has said, and what to do when it is one without admission."""
    if tried and any(option in words for option in _OPTIONS):
        return f"this gateway does not take the options of admission; {NO_ADMISSION} runs without them: {words}"
    return words


@contextmanager
def vllm_router(place: Place) -> Iterator[Stand]:
    """vLLM's router as the routing scenarios start it, with its default policy."""
    (peer,) = (each for each in peers.PEERS if each.name == _PEER)
    seat = RoutingPlace(place.engines, place.folder, place.cores)
    with peers.routers(peer, peer.policies[0], seat) as (endpoint,):
        yield Stand(endpoint.port, {}, endpoint.pid)


TARGETS: tuple[Target, ...] = (
    Target("gateway", "this gateway with its own queue, and the scenario's bounds for it", gateway(admitting)),
    Target("unlimited", "this gateway without a limit in flight: the engines' queues hold all", gateway(_no_limit)),
    Target("shipped", "this gateway with the bounds that it has by itself; if named", gateway(_shipped), named=True),
    Target(_PEER, "vLLM's Rust router with its defaults; only for overload", vllm_router, peer=True),
)
PLAIN = Target("gateway", "this gateway, without any option of admission", gateway(_without))


def select(names: Sequence[str], *, others: bool = False, admission: bool = True) -> tuple[Target, ...]:
    """The named ones in the table's order; without names all, peers only if ``others``. Raises `UnknownTarget`.

    Without ``admission`` `PLAIN` stands for those that need it.
    """
    table = TARGETS if admission else (PLAIN, *(target for target in TARGETS if target.peer))
    if names:
        return named(table, names, "target", UnknownTarget)
    return tuple(target for target in table if not target.named and (others or not target.peer))


def suits(scenario: Scenario, target: Target) -> bool:
    """Whether a target can play it: peers know one caller."""
    return not target.peer or len(scenario.callers) == 1
