"""``/admin/instances``: the gateways that share a store, and which alias table each of them serves by."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.admin.aliasviews import InstanceList, instance_view
from gateway.admin.state import AdminState
from gateway.stores.interfaces import StateStore


def instance_routes(state: AdminState) -> APIRouter:
    """The routes over one state."""
    router = APIRouter(prefix="/admin/instances")

    @router.get("")
    async def listing() -> InstanceList:
        return await read_instances(state.store, state.clock())

    return router


async def read_instances(store: StateStore, now: float) -> InstanceList:
    """The instances of the last hour, as they stand at ``now`` (Unix seconds)."""
    heard = await store.instances()
    # Read last: an instance that is ahead of it does not lag.
    generation = (await store.versions()).aliases
    return InstanceList(generation=generation, instances=[instance_view(one, generation, now) for one in heard])
