"""``/admin/audit``: read the audit trail, and prove it whole."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query

from gateway.admin.state import AdminState
from gateway.admin.trail import (
    AuditExpectation,
    AuditPage,
    AuditPaging,
    Point,
    VerdictView,
    audit_view,
    point,
    verify,
)
from gateway.errors import Refusal


def audit_routes(state: AdminState) -> APIRouter:
    """The routes over one state."""
    router = APIRouter(prefix="/admin/audit")
    walking = asyncio.Lock()

    @router.get("")
    async def listing(paging: Annotated[AuditPaging, Query()]) -> AuditPage:
        number, seal = await state.store.audit_head()
        lines = await state.store.audit(after=paging.after, limit=paging.limit)
        return AuditPage(lines=[audit_view(line) for line in lines], head=Point(number=number, hash=seal.hex()))

    @router.get("/verify")
    async def proof(expectation: Annotated[AuditExpectation, Query()]) -> VerdictView:
        # A walk reads the whole trail: readers who ask for many at once would keep the store from its work.
        if walking.locked():
            raise Refusal("rate_limited", "The trail is being verified already.", retry_after=5)
        async with walking:
            expect = None if expectation.expect is None else point(expectation.expect)
            return await verify(state.store, expect)

    return router
