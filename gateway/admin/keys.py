"""``/admin/keys``: make, list, show, rotate and revoke API keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from gateway.admin.callers import Caller, caller_of
from gateway.admin.errors import AdminRefusal
from gateway.admin.operations import Mint, issue_key, rotate_key
from gateway.admin.rules import unknown_roles
from gateway.admin.schemas import (
    KeyList,
    KeyOrder,
    KeyPaging,
    KeyView,
    NewKeyView,
    RevokeOrder,
    RotateOrder,
    key_view,
    new_key_view,
)
from gateway.admin.state import AdminState
from gateway.errors import Refusal
from gateway.stores.interfaces import KeyRecord, NotFound

_Caller = Annotated[Caller, Depends(caller_of)]
_ROTATE, _REVOKE = RotateOrder(), RevokeOrder()


def key_routes(state: AdminState) -> APIRouter:
    """The routes over one state."""
    router = APIRouter(prefix="/admin/keys")
    mint = Mint(state.pepper, state.pepper_version, state.random)

    @router.post("", status_code=201)
    async def create(order: KeyOrder, caller: _Caller) -> NewKeyView:
        fault = unknown_roles(state.access(), order.roles)
        if fault is not None:
            raise Refusal("invalid_request", f"roles: {fault}", param="roles")
        _no_wider(state, caller, order.roles)
        now = state.clock()
        record, text = await issue_key(state.store, mint, order, author=caller.author, now=now)
        await state.announce()
        return new_key_view(record, now, text.reveal())

    @router.get("")
    async def listing(paging: Annotated[KeyPaging, Query()]) -> KeyList:
        page, following = _page(await state.store.list_keys(), paging)
        now = state.clock()
        return KeyList(keys=[key_view(record, now) for record in page], next=following)

    @router.get("/{key_id}")
    async def show(key_id: str) -> KeyView:
        return key_view(await state.store.get_key(key_id), state.clock())

    @router.post("/{key_id}/rotate", status_code=201)
    async def rotate(key_id: str, caller: _Caller, order: RotateOrder = _ROTATE) -> NewKeyView:
        # Whoever is given a key's new text has all that the key may do.
        found = await state.store.get_key(key_id)
        _no_wider(state, caller, found.roles)
        now = state.clock()
        record, text = await rotate_key(state.store, mint, found.id, order, author=caller.author, now=now)
        await state.announce()
        return new_key_view(record, now, text.reveal())

    @router.post("/{key_id}/revoke")
    async def revoke(key_id: str, caller: _Caller, _: RevokeOrder = _REVOKE) -> KeyView:
        now = state.clock()
        record = await state.store.revoke_key(key_id, at=now, author=caller.author)
        await state.announce()
        return key_view(record, now)

    return router


def _no_wider(state: AdminState, caller: Caller, roles: Sequence[str]) -> None:
    """Nobody hands out what it does not have: a key's verbs are all its giver's."""
    more = state.access().verbs_of(roles) - caller.verbs
    if more:
        raise AdminRefusal("grant_too_wide", f"The key's roles give more than you have: {', '.join(sorted(more))}.")


def _page(keys: Sequence[KeyRecord], paging: KeyPaging) -> tuple[Sequence[KeyRecord], str | None]:
    start = 0
    if paging.after is not None:
        start = next((place for place, key in enumerate(keys, 1) if key.id == paging.after), 0)
        if start == 0:
            raise NotFound("no key has that id or name")
    page = keys[start : start + paging.limit]
    return page, page[-1].id if start + len(page) < len(keys) else None
