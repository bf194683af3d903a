"""``/admin/instances``: the gateways that share a store, and which alias table each of them serves by."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.admin.aliasviews import InstanceList
from gateway.admin.reads import read_instances
from gateway.admin.state import AdminState


def instance_routes(state: AdminState) -> APIRouter:
    """The routes over one state."""
    router = APIRouter(prefix="/admin/instances")

    @router.get("")
    async def listing() -> InstanceList:
        return await read_instances(state.store, state.clock())

    return router
