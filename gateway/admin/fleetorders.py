"""What may be ordered of engines, once for the admin API and the command line.

An order stands in the store, so that every instance follows it; the store writes its line of the audit trail with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import NamedTuple

from gateway.admin.errors import AdminRefusal
from gateway.admin.fleetviews import AddOrder, DrainOrder, FleetOrder, RemoveOrder, UndrainOrder, id_of
from gateway.configvalues import engine_fault
from gateway.errors import Refusal
from gateway.fleet.discover.sources import Origin
from gateway.fleet.engines.adapter import ADAPTERS
from gateway.model import EngineOrder, EngineSpec
from gateway.stores.interfaces import NotFound, StateStore, StoreUnavailable

_NEAR = 3


@dataclass(frozen=True, slots=True)
class Listed:
    """The engines that are known where the order is given: by URL, the kind of source that lists each.

    ``leaving`` are URLs of those that are listed no more and finish what they have in hand. ``remote`` is
    ``remote_engines``.
    """

    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    leaving: Collection[str] = ()
    remote: Collection[str] = ()


class Author(NamedTuple):
    """Who gives an order, and when (Unix seconds)."""

    name: str
    at: float


class Outcome(NamedTuple):
    """What an order came to: the engine, the order that stands now, and whether anything changed."""

    url: str
    order: EngineOrder | None
    changed: bool


async def give(store: StateStore, reference: str, order: FleetOrder, listed: Listed, author: Author) -> Outcome:
    """Give an order to remove, drain or undrain an engine that is meant by its id or URL.

    Raises ``Refusal`` (``AdminRefusal``), ``NotFound``, ``Conflict``, ``StoreUnavailable``.
    """
    return await _ACTS[type(order)](store, reference, order, listed, author)


async def add(store: StateStore, order: AddOrder, listed: Listed, author: Author) -> Outcome:
    """Make an engine part of the fleet. Raises what ``give`` raises."""
    spec = permitted(order, listed)
    made = await store.add_engine(spec.url, labels=spec.labels, author=author.name, at=author.at, note=order.note)
    return Outcome(spec.url, made, changed=True)


def permitted(order: AddOrder, listed: Listed) -> EngineSpec:
    """The engine that is to be added, if prompts may go there and nothing else lists it. Raises ``Refusal``."""
    spec = order.spec()
    fault = engine_fault(spec, listed.remote)
    if fault is not None:
        raise Refusal("invalid_request", f"url: expected {fault}.", param="url")
    if spec.labels.get("engine", "vllm") not in ADAPTERS:
        known = ", ".join(ADAPTERS)
        raise Refusal("invalid_request", f"labels: expected engine to be one of {known}.", param="labels")
    origin = listed.origins.get(spec.url)
    if origin is not None and origin != Origin.ORDERS:
        raise AdminRefusal("conflict", f"That engine is there already, listed in {_place(origin)}.")
    return spec


async def remove(store: StateStore, reference: str, order: RemoveOrder, listed: Listed, author: Author) -> Outcome:
    """Take back that an engine was added, and with it its drain. Raises what ``give`` raises."""
    orders = (await store.engine_orders()).engines
    url = _meant(reference, (url for url, one in orders.items() if one.added))
    if url is None or url not in orders:
        raise _not_added(reference, orders, listed)
    await store.remove_engine(url, author=author.name, at=author.at, note=order.note)
    return Outcome(url, None, changed=True)


async def drain(
    store: StateStore, reference: str, order: DrainOrder | UndrainOrder, listed: Listed, author: Author
) -> Outcome:
    """Drain an engine, wherever it is listed, or lift its drain; again changes nothing. Raises what ``give`` raises."""
    orders = (await store.engine_orders()).engines
    draining = isinstance(order, DrainOrder)
    url = _meant(reference, (*listed.origins, *orders))
    if url is None:
        if _meant(reference, listed.leaving) is not None:
            raise AdminRefusal("change_refused", _LEAVING)
        raise unknown(reference, (*listed.origins, *orders))
    now, changed = await store.drain_engine(url, draining=draining, author=author.name, at=author.at, note=order.note)
    return Outcome(url, now if now.added or now.draining else None, changed)


async def orders_generation(store: StateStore) -> int | None:
    """The generation of orders after a write, at least the one that it made. A store that fails just after it committed
    does not undo the write: then nobody knows (``None``)."""
    try:
        return (await store.versions()).fleet
    except StoreUnavailable:
        return None


def unknown(reference: str, urls: Iterable[str]) -> NotFound:
    """No engine is meant by that; which ones nearly are."""
    ids = sorted({id_of(url) for url in urls})
    near = get_close_matches(id_of(reference), ids, n=_NEAR)
    hint = f"near it are {', '.join(near)}" if near else "'gateway fleet list' shows those that are known"
    return NotFound(f"no engine has that id; {hint}")


def _meant(reference: str, urls: Iterable[str]) -> str | None:
    """The first URL with that id; a URL means itself."""
    if "://" in reference:
        return reference
    return next((url for url in urls if id_of(url) == reference), None)


def _not_added(reference: str, orders: Mapping[str, EngineOrder], listed: Listed) -> Exception:
    """Why an engine cannot be removed, and what can be done instead."""
    known = (*listed.origins, *orders)
    url = next((url for url in known if reference in (url, id_of(url))), None)
    if url is None:
        leaving = any(reference in (url, id_of(url)) for url in listed.leaving)
        return AdminRefusal("change_refused", _LEAVING) if leaving else unknown(reference, known)
    origin = listed.origins.get(url)
    if origin is None:
        return AdminRefusal(
            "change_refused",
            f"No order added that engine, there is only a drain of it: 'gateway fleet undrain {id_of(url)}' lifts it.",
        )
    return AdminRefusal(
        "change_refused",
        f"No order added that engine: it is listed in {_place(origin)}. Take it out there, "
        f"or keep requests from it with 'gateway fleet drain {id_of(url)}'.",
    )


_ACTS: Mapping[type[FleetOrder], Callable[..., Awaitable[Outcome]]] = MappingProxyType(
    {RemoveOrder: remove, DrainOrder: drain, UndrainOrder: drain}
)
_LEAVING = "That engine is listed no more: it gets no new requests, and goes when its last one has ended."

_PLACES: Mapping[str, str] = MappingProxyType(
    {
        Origin.CONFIGURATION: "the configuration (engines in gateway.yaml, GATEWAY_ENGINES or --engine)",
        Origin.FILE: "the file that discovery.file names",
        Origin.DNS: "DNS (discovery.dns or discovery.srv)",
        Origin.KUBERNETES: "Kubernetes, as a pod behind the Service in discovery.kubernetes",
        Origin.ORDERS: "the orders",
    }
)


def _place(origin: str) -> str:
    return _PLACES.get(origin, origin)
