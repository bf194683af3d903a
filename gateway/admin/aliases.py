"""``/admin/aliases`` and the verbs beside it: what may be read of aliases, and done to them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from gateway.admin.aliasing import Actor, change, current, pair, show
from gateway.admin.aliasorders import (
    AbortOrder,
    AliasOrder,
    CanaryOrder,
    ChangeOrder,
    DeleteOrder,
    PromoteOrder,
    RollbackOrder,
)
from gateway.admin.aliasviews import (
    AliasList,
    AliasReference,
    AliasView,
    DiffPair,
    DiffView,
    HistoryPage,
    HistoryPaging,
    WrittenView,
    alias_list,
    alias_view,
    diff_view,
    split_reference,
    written_view,
)
from gateway.admin.callers import Caller, caller_of
from gateway.admin.comparison import ComparisonView, comparison_view
from gateway.admin.errors import AdminRefusal
from gateway.admin.reads import generation_now, read_history
from gateway.admin.schemas import AliasName
from gateway.admin.state import AdminState

_Caller = Annotated[Caller, Depends(caller_of)]
_ROLLBACK, _PROMOTE, _ABORT, _DELETE = RollbackOrder(), PromoteOrder(), AbortOrder(), DeleteOrder()


def alias_routes(state: AdminState) -> APIRouter:
    """The routes over one state. A verb stands before the name, which may hold slashes."""
    router = APIRouter(prefix="/admin")
    _reads(router, state)
    _writes(router, state)
    return router


def _reads(router: APIRouter, state: AdminState) -> None:
    @router.get("/aliases")
    async def listing() -> AliasList:
        return alias_list(await state.store.alias_table())

    @router.get("/aliases/{name:path}")
    async def shown(name: AliasReference) -> AliasView:
        return alias_view(await show(state.store, *split_reference(name)))

    @router.get("/alias-history/{name:path}")
    async def past(name: AliasName, paging: Annotated[HistoryPaging, Query()]) -> HistoryPage:
        return await read_history(state.store, name, paging)

    @router.get("/alias-diff/{name:path}")
    async def difference(name: AliasName, asked: Annotated[DiffPair, Query()]) -> DiffView:
        return diff_view(*await pair(state.store, name, asked.old, asked.new))

    @router.get("/alias-compare/{name:path}")
    async def comparison(name: AliasName) -> ComparisonView:
        now = await current(state.store, name)
        if now.canary_of is None:
            raise AdminRefusal("change_refused", "No canary of that alias runs: there is nothing to compare.")
        return comparison_view(now, state.compare(name))


def _writes(router: APIRouter, state: AdminState) -> None:
    async def write(name: str, order: ChangeOrder, caller: Caller) -> WrittenView:
        actor = Actor(caller.author, state.clock(), frozenset(state.served_models()))
        made = await change(state.store, name, order, actor)
        await state.announce()
        return written_view(made, await generation_now(state.store))

    @router.put("/aliases/{name:path}")
    async def put(name: AliasName, order: AliasOrder, caller: _Caller) -> WrittenView:
        return await write(name, order, caller)

    @router.delete("/aliases/{name:path}")
    async def remove(name: AliasName, caller: _Caller, order: DeleteOrder = _DELETE) -> WrittenView:
        return await write(name, order, caller)

    @router.post("/alias-rollback/{name:path}")
    async def rollback(name: AliasName, caller: _Caller, order: RollbackOrder = _ROLLBACK) -> WrittenView:
        return await write(name, order, caller)

    @router.post("/alias-canary/{name:path}")
    async def canary(name: AliasName, order: CanaryOrder, caller: _Caller) -> WrittenView:
        return await write(name, order, caller)

    @router.post("/alias-promote/{name:path}")
    async def promote(name: AliasName, caller: _Caller, order: PromoteOrder = _PROMOTE) -> WrittenView:
        return await write(name, order, caller)

    @router.post("/alias-abort/{name:path}")
    async def abort(name: AliasName, caller: _Caller, order: AbortOrder = _ABORT) -> WrittenView:
        return await write(name, order, caller)
