"""The steps that are measured: what each is, what it may cost, and how a run of it is made ready."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple

from loadtests.micro import balancing, callers

Run = Callable[[], object]
Ready = AbstractAsyncContextManager[tuple[Run, int]]
"""Holds what a run needs, and gives it with how many steps it makes."""


class Step(NamedTuple):
    """``bound`` is in microseconds; ``None``: told, but not promised. ``per`` divides, so that a step may be a KiB."""

    name: str
    what: str
    bound: float | None
    ready: Callable[[], Ready]
    per: float = 1.0


def _decision(replicas: int, void: int, held: int) -> Callable[[], Ready]:
    @asynccontextmanager
    async def ready() -> AsyncIterator[tuple[Run, int]]:
        yield balancing.decisions(replicas, void=void, held=held)

    return ready


def _hashing(kib: int) -> Callable[[], Ready]:
    @asynccontextmanager
    async def ready() -> AsyncIterator[tuple[Run, int]]:
        yield balancing.hashing(kib * 1024)

    return ready


def _request(replicas: int) -> Callable[[], Ready]:
    @asynccontextmanager
    async def ready() -> AsyncIterator[tuple[Run, int]]:
        yield balancing.requests(replicas)

    return ready


STEPS: Sequence[Step] = (
    Step("decide-8", "choose among 8 replicas, nothing changed", 15, _decision(8, 0, 0)),
    Step("decide-8-renewed", "the same, 3 quotes have changed", 15, _decision(8, 3, 0)),
    Step("decide-8-held", "the same, all hold how the prompt begins", 15, _decision(8, 3, 8)),
    Step("decide-8-all", "the same, all 8 have: the first request in a while", None, _decision(8, 8, 8)),
    Step("decide-256", "choose among 256 replicas, nothing changed", 60, _decision(256, 0, 0)),
    Step("decide-256-renewed", "the same, 8 quotes have changed", 60, _decision(256, 8, 0)),
    Step("decide-256-held", "the same, all hold how the prompt begins", 60, _decision(256, 8, 256)),
    Step("decide-256-all", "the same, all 256 have", None, _decision(256, 256, 256)),
    Step("request-8", "all that an estimate costs a request of 700 bytes, first token to end", None, _request(8)),
    Step("hash-1k", "read and hash a prompt of 1 KiB, for each KiB", None, _hashing(1), 1),
    Step("hash-32k", "the same of 32 KiB, for each KiB", 2, _hashing(32), 32),
    Step("hash-1m", "the same of 1 MiB, for each KiB", 2, _hashing(1024), 1024),
    Step("key", "check an API key that is known", 5, callers.key),
    Step("jwt", "check a token that is known", 8, callers.token),
    Step("limits", "admit and settle in process, four kinds of limit for key and tenant", 10, callers.limits),
)


class UnknownStep(ValueError):
    """There is no step of that name."""


def select(names: Sequence[str]) -> Sequence[Step]:
    """The steps of these names, all if there are none. Raises ``UnknownStep``."""
    known = {step.name for step in STEPS}
    unknown = sorted(set(names) - known)
    if unknown:
        raise UnknownStep(f"no step {', '.join(unknown)}; there are {', '.join(step.name for step in STEPS)}")
    return [step for step in STEPS if not names or step.name in names]
