"""``/admin/aliases``: list, show and set aliases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends

from gateway.admin.callers import Caller, caller_of
from gateway.admin.errors import AdminRefusal
from gateway.admin.operations import assign
from gateway.admin.schemas import AliasList, AliasName, AliasOrder, AliasView, alias_view
from gateway.admin.state import AdminState
from gateway.stores.interfaces import NotFound


def alias_routes(state: AdminState) -> APIRouter:
    """The routes over one state."""
    router = APIRouter(prefix="/admin/aliases")

    @router.get("")
    async def listing() -> AliasList:
        table = await state.store.alias_table()
        return AliasList(generation=table.generation, aliases=[alias_view(one) for one in table.current.values()])

    @router.get("/{name:path}")
    async def show(name: AliasName) -> AliasView:
        revision = (await state.store.alias_table()).current.get(name)
        if revision is None:
            raise NotFound("no alias has that name")
        return alias_view(revision)

    @router.put("/{name:path}")
    async def put(name: AliasName, order: AliasOrder, caller: Annotated[Caller, Depends(caller_of)]) -> AliasView:
        served = state.served_models()
        unserved = order.model not in served
        if unserved and not order.force:
            raise AdminRefusal("model_not_served", _not_served(served), param="model")
        revision = await assign(state.store, name, order, author=caller.author, now=state.clock(), unserved=unserved)
        await state.announce()
        return alias_view(revision)

    return router


def _not_served(served: Sequence[str]) -> str:
    names = ", ".join(sorted(served)[:20])
    return (
        f"No replica serves that model now. Served: {names or 'nothing yet'}. force (--force) assigns it all the same."
    )
