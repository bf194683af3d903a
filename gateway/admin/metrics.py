"""``/metrics``: the Prometheus exposition. Open to whoever reaches the listener: it holds no text and no key."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from gateway.admin.state import AdminState


def metrics_routes(state: AdminState) -> APIRouter:
    """The route over one state."""
    router = APIRouter()

    @router.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        return Response(state.render_metrics(), media_type=CONTENT_TYPE_LATEST)

    return router
