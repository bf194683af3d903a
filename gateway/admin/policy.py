"""``/admin/policy``: how the policy in force stands, and what it makes of a key and an alias."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from gateway.admin.rules import ExplainQuery, ExplanationView, PolicyView, explanation
from gateway.admin.state import AdminState


def policy_routes(state: AdminState) -> APIRouter:
    """The routes over one state."""
    router = APIRouter(prefix="/admin/policy")

    @router.get("")
    async def standing() -> PolicyView:
        return state.policy()

    @router.get("/explain")
    async def explained(asked: Annotated[ExplainQuery, Query()]) -> ExplanationView:
        key = await state.store.get_key(asked.key)
        exists = asked.alias in (await state.store.alias_table()).current
        return explanation(state.access(), key, asked.alias, exists=exists, now=state.clock())

    return router
