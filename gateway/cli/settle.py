"""A change of an alias as a command makes it, and the wait until every gateway serves by it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from gateway.admin.aliasorders import ChangeOrder
from gateway.admin.aliasviews import InstanceList, InstanceView, WrittenView
from gateway.cli.aliasoptions import no_alias
from gateway.cli.backend import Backend, CliFault
from gateway.cli.choose import Where
from gateway.cli.output import note, plain, print_json
from gateway.cli.run import act
from gateway.errors import GatewayError
from gateway.stores.interfaces import StoreError

_POLL = 0.2


def change(
    place: Where,
    name: str,
    order: ChangeOrder,
    words: Callable[[WrittenView], str],
    *,
    seconds: int | None,
    as_json: bool,
) -> None:
    """Make a change and tell; with ``seconds``, wait for every live gateway. Ends with exit code 1 as ``act`` does."""

    async def work(backend: Backend) -> None:
        made = await backend.change_alias(name, order)
        note(plain(words(made)))
        if as_json:
            print_json(made)
        if seconds is not None:
            await wait_for_all(backend, made.generation, seconds)

    act(place, work, missing=no_alias(name))


async def wait_for_all(backend: Backend, generation: int | None, seconds: float) -> None:
    """Wait until every live gateway serves by a generation of the alias table. Raises ``CliFault``, with those that do
    not after ``seconds``."""
    if generation is None:
        raise CliFault("The change is made, but the store failed just after: 'gateway status' tells who serves by it.")
    try:
        listing = await settle(backend.instances, generation, seconds)
    except (CliFault, GatewayError, StoreError) as fault:
        why = fault.message if isinstance(fault, GatewayError) else str(fault)
        raise CliFault(f"The change is made, but who serves by it could not be asked: {why}") from None
    late = lagging(listing, generation)
    if late:
        raise CliFault(
            f"The change is made, but after {seconds:g} s these gateways do not serve by it yet: "
            f"{'; '.join(map(_late, late))}. 'gateway status' shows when they do."
        )
    live = sum(one.live for one in listing.instances)
    note(f"Served by all live gateways ({live})." if live else "No live gateway uses this state: none to wait for.")


async def settle(
    ask: Callable[[], Awaitable[InstanceList]],
    generation: int,
    seconds: float,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> InstanceList:
    """Ask until no live instance lags behind ``generation``, or time is up; what was heard last."""
    deadline = monotonic() + seconds
    while True:
        listing = await ask()
        left = deadline - monotonic()
        if left <= 0 or not lagging(listing, generation):
            return listing
        await sleep(min(_POLL, left))


def lagging(listing: InstanceList, generation: int) -> Sequence[InstanceView]:
    """Live instances that serve by an older table."""
    return [one for one in listing.instances if one.live and one.generation < generation]


def _late(one: InstanceView) -> str:
    return f"{plain(one.name)} ({plain(one.id)}, generation {one.generation}, seen {one.seen_ago:.0f} s ago)"
