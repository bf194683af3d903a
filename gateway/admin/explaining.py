"""``/admin/fleet-explain``: why a recent request went where it went, as this instance has it."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Query

from gateway.admin.explainviews import DecisionView, ExplainScope, decision_view
from gateway.admin.state import AdminState
from gateway.fleet.balance.explained import Decision
from gateway.stores.interfaces import NotFound

_NOT_KEPT = (
    "that request is not among the last ones that this instance has placed; ask the instance that served it "
    "('gateway status' lists them), soon after the request"
)
_NONE = (
    "no such request has been placed by this instance lately; other instances ('gateway status' lists them) may have "
    "placed one"
)
_REQUEST_ID = re.compile(r"req_[0-9a-f]{24}").fullmatch


def explain_routes(state: AdminState) -> APIRouter:
    """The routes over one state."""
    router = APIRouter(prefix="/admin/fleet-explain")

    @router.get("")
    async def latest(scope: Annotated[ExplainScope, Query()]) -> DecisionView:
        return _shown(state, state.fleet.decisions.latest(scope.alias), _NONE)

    @router.get("/{request_id:path}")
    async def of_request(request_id: str) -> DecisionView:
        found = state.fleet.decisions.of(request_id) if _REQUEST_ID(request_id) else None
        return _shown(state, found, _NOT_KEPT)

    return router


def _shown(state: AdminState, decision: Decision | None, otherwise: str) -> DecisionView:
    """Raises ``NotFound``."""
    if decision is None:
        raise NotFound(otherwise)
    return decision_view(decision, state.clock() - (state.fleet.now() - decision.now))
