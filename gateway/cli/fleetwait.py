"""Waiting for what an order about an engine leads to, with its progress in words."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from gateway.admin.fleetviews import ReplicaView
from gateway.cli.backend import Backend, CliFault, NotThere
from gateway.cli.fleetrows import outlook, why
from gateway.cli.output import note, plain
from gateway.fleet.life import State
from gateway.stores.interfaces import StoreError

POLL = 0.5

Ask = Callable[[], Awaitable[ReplicaView | None]]


def is_gone(one: ReplicaView | None) -> bool:
    """Whether nothing of the gateway that was asked is left at an engine."""
    return one is None or one.state == State.GONE


def is_ready(one: ReplicaView | None) -> bool:
    """Whether a replica gets requests as any other."""
    return one is not None and one.state == State.READY


async def settle(
    ask: Ask,
    done: Callable[[ReplicaView | None], bool],
    seconds: float,
    tell: Callable[[str], None],
    *,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> ReplicaView | None:
    """Ask until it is done, or time is up; what was heard last. Progress is told when it differs from before."""
    deadline, told = monotonic() + seconds, ""
    while True:
        one = await ask()
        left = deadline - monotonic()
        if done(one) or left <= 0:
            return one
        words = "" if one is None else progress(one)
        if words != told:
            tell(words)
            told = words
        await sleep(min(POLL, left))


def progress(one: ReplicaView) -> str:
    """How a replica that is waited for stands."""
    if one.state == State.DRAINING:
        return f"{one.id}: draining, {left_over(one)}"
    return f"{one.id}: {one.state}" + (f", {why(one)}" if why(one) else "")


def left_over(one: ReplicaView) -> str:
    """What is still in hand: this gateway's requests, and what the engine had of all when it was last looked at."""
    here = f"{one.in_flight} requests of this gateway are left"
    running, waiting = one.signals.get("running"), one.signals.get("waiting")
    if running is None or one.signals_age is None:
        return here
    return f"{here}; when last looked at, its engine ran {running:.0f} and {waiting or 0:.0f} waited"


async def wait_until_gone(backend: Backend, reference: str, seconds: float) -> None:
    """Wait until the gateway that is asked has nothing left there. Raises ``CliFault``, with what is left."""
    one = await _settled(backend, reference, is_gone, seconds, "The drain stands")
    if one is not None and not is_gone(one):
        raise CliFault(
            f"The drain stands, but after {seconds:g} s it is not over: {plain(left_over(one))}. Nothing is cut, they "
            f"finish; 'gateway fleet show {one.id}' tells when."
        )
    note("Gone: nothing of this gateway is left there.")


async def wait_until_ready(backend: Backend, reference: str, seconds: float) -> None:
    """Wait until a replica is ready. Raises ``CliFault``, with what it waits for."""
    one = await _settled(backend, reference, is_ready, seconds, "The order stands")
    if one is None:
        raise CliFault("The order stands, but the engine is not among the replicas: 'gateway fleet list' tells more.")
    if not is_ready(one):
        raise CliFault(
            f"The order stands, but after {seconds:g} s the replica is {one.state}: {plain(why(one) or '-')}. "
            f"What would change that: {plain(outlook(one))}."
        )
    note(plain(f"{one.id} is ready."))


async def _settled(
    backend: Backend, reference: str, done: Callable[[ReplicaView | None], bool], seconds: float, stands: str
) -> ReplicaView | None:
    async def ask() -> ReplicaView | None:
        try:
            return await backend.show_replica(reference)
        except NotThere:
            return None

    try:
        return await settle(ask, done, seconds, lambda words: note(plain(words)))
    except (CliFault, StoreError) as fault:
        raise CliFault(f"{stands}, but how it goes could not be asked: {fault}") from None
