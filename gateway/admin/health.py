"""``/healthz``: the process lives. ``/readyz``: it can serve. Open to whoever reaches the listener."""

from __future__ import annotations

from fastapi import APIRouter, Response

from gateway.admin.state import AdminState


def health_routes(state: AdminState) -> APIRouter:
    """The routes over one state."""
    router = APIRouter()

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @router.get("/readyz")
    async def readyz(response: Response) -> dict[str, str]:
        ready = state.ready()
        response.status_code = 200 if ready else 503
        return {"status": "ready" if ready else "not ready"}

    return router
