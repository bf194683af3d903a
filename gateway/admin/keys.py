"""``/admin/keys``: make, list, show and revoke API keys."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.admin.operations import issue_key
from gateway.admin.schemas import KeyList, KeyOrder, KeyView, NewKeyView, key_view, new_key_view
from gateway.admin.state import AUTHOR, AdminState


def key_routes(state: AdminState) -> APIRouter:
    """The routes over one state."""
    router = APIRouter(prefix="/admin/keys")

    @router.post("", status_code=201)
    async def create(order: KeyOrder) -> NewKeyView:
        now = state.clock()
        record, text = await issue_key(state.store, state.pepper, order, author=AUTHOR, now=now, random=state.random)
        await state.announce()
        return new_key_view(record, now, text.reveal())

    @router.get("")
    async def listing() -> KeyList:
        now = state.clock()
        return KeyList(keys=[key_view(record, now) for record in await state.store.list_keys()])

    @router.get("/{key_id}")
    async def show(key_id: str) -> KeyView:
        return key_view(await state.store.get_key(key_id), state.clock())

    @router.post("/{key_id}/revoke")
    async def revoke(key_id: str) -> KeyView:
        now = state.clock()
        record = await state.store.revoke_key(key_id, at=now, author=AUTHOR)
        await state.announce()
        return key_view(record, now)

    return router
