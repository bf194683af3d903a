"""``/admin/fleet`` and the verbs beside it: the replicas of this instance, and orders that every instance follows."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from gateway.admin.callers import Caller, caller_of
from gateway.admin.errors import AdminRefusal
from gateway.admin.fleetorders import Author, Outcome, add, drain, orders_generation, remove, unknown
from gateway.admin.fleetviews import (
    AddOrder,
    DrainOrder,
    EngineChange,
    EngineId,
    FleetList,
    FleetPaging,
    RemoveOrder,
    ReplicaView,
    UndrainOrder,
    WarmOrder,
    id_of,
    order_view,
)
from gateway.admin.state import AdminState
from gateway.fleet.life import Sign, State
from gateway.fleet.replica import Replica
from gateway.model import EngineOrders
from gateway.stores.interfaces import StoreUnavailable

_Caller = Annotated[Caller, Depends(caller_of)]
_REMOVE, _DRAIN, _UNDRAIN, _WARM = RemoveOrder(), DrainOrder(), UndrainOrder(), WarmOrder()
_WARM_AGAIN = (State.READY, State.PROBATION, State.EJECTED)


def fleet_routes(state: AdminState) -> APIRouter:
    """The routes over one state. A verb stands before the id."""
    router = APIRouter(prefix="/admin")
    _reads(router, state)
    _orders(router, state)
    _warming(router, state)
    return router


def _reads(router: APIRouter, state: AdminState) -> None:
    @router.get("/fleet")
    async def listing(paging: Annotated[FleetPaging, Query()]) -> FleetList:
        return state.fleet.page(await _known_orders(state), paging)

    @router.get("/fleet/{replica_id:path}")
    async def shown(replica_id: EngineId) -> ReplicaView:
        orders = await _known_orders(state)
        replica = _found(state, replica_id)
        return state.fleet.view(replica, {} if orders is None else orders.engines)


def _orders(router: APIRouter, state: AdminState) -> None:
    def author(caller: Caller) -> Author:
        return Author(caller.author, state.clock())

    @router.post("/fleet", status_code=201)
    async def addition(order: AddOrder, caller: _Caller) -> EngineChange:
        return await _told(state, await add(state.store, order, state.fleet.listed(), author(caller)))

    @router.post("/fleet-remove/{replica_id:path}")
    async def removal(replica_id: EngineId, caller: _Caller, order: RemoveOrder = _REMOVE) -> EngineChange:
        made = await remove(state.store, replica_id, order, state.fleet.listed(), author(caller))
        return await _told(state, made)

    @router.post("/fleet-drain/{replica_id:path}")
    async def draining(replica_id: EngineId, caller: _Caller, order: DrainOrder = _DRAIN) -> EngineChange:
        made = await drain(state.store, replica_id, order, state.fleet.listed(), author(caller))
        return await _told(state, made)

    @router.post("/fleet-undrain/{replica_id:path}")
    async def undraining(replica_id: EngineId, caller: _Caller, order: UndrainOrder = _UNDRAIN) -> EngineChange:
        made = await drain(state.store, replica_id, order, state.fleet.listed(), author(caller))
        return await _told(state, made)


def _warming(router: APIRouter, state: AdminState) -> None:
    @router.post("/fleet-warm/{replica_id:path}")
    async def warming(replica_id: EngineId, caller: _Caller, order: WarmOrder = _WARM) -> EngineChange:
        replica = _warmable(state, replica_id)
        url = replica.spec.url
        # On record before it is done: a store that fails leaves the replica as it is.
        await state.store.note(
            at=state.clock(), author=caller.author, verb="fleet.warm", subject=url, detail={"note": order.note}
        )
        asked = f"asked by {caller.author}" + (f": {order.note}" if order.note else "")
        if replica.life.state not in _WARM_AGAIN or not replica.take(Sign.RESTARTED, asked):
            raise _not_warmable(replica)
        replica.nudge()
        orders = await _known_orders(state)
        order_now = None if orders is None else orders.engines.get(url)
        return await _told(state, Outcome(url, order_now, changed=True))


def _warmable(state: AdminState, replica_id: str) -> Replica:
    replica = _found(state, replica_id)
    if replica.life.state not in _WARM_AGAIN:
        raise _not_warmable(replica)
    return replica


def _not_warmable(replica: Replica) -> AdminRefusal:
    return AdminRefusal(
        "change_refused",
        f"Only a replica that is ready, in probation or ejected is warmed up again: this one is "
        f"{replica.life.state.value}. What would change that: {replica.life.prospect}.",
    )


def _found(state: AdminState, replica_id: str) -> Replica:
    """Raises ``NotFound``."""
    replica = state.fleet.find(replica_id)
    if replica is None:
        raise unknown(replica_id, (each.spec.url for each in state.fleet.replicas()))
    return replica


async def _known_orders(state: AdminState) -> EngineOrders | None:
    """The orders, or ``None``: how the fleet stands has to be seen in a store's outage as well."""
    try:
        return await state.store.engine_orders()
    except StoreUnavailable:
        return None


async def _told(state: AdminState, made: Outcome) -> EngineChange:
    """What an order came to, once this instance has followed it."""
    await state.announce()
    replica = next((each for each in state.fleet.replicas() if each.spec.url == made.url), None)
    orders = {} if made.order is None else {made.url: made.order}
    return EngineChange(
        id=id_of(made.url),
        url=made.url,
        changed=made.changed,
        watched=True,
        generation=await orders_generation(state.store),
        order=None if made.order is None else order_view(made.order),
        replica=None if replica is None else state.fleet.view(replica, orders),
    )
