"""The admin plane as one application: what FastAPI would give away by default is turned off here."""

from __future__ import annotations

from fastapi import Depends, FastAPI, Response

from gateway.admin.aliases import alias_routes
from gateway.admin.errors import install
from gateway.admin.gate import Gate
from gateway.admin.health import health_routes
from gateway.admin.keys import key_routes
from gateway.admin.metrics import metrics_routes
from gateway.admin.state import AdminState


def build_admin(state: AdminState) -> FastAPI:
    """The application for the admin listener.

    No documentation pages, no redirects built from the Host header, no telemetry of the framework's own (its logs hold
    request bodies), one error form.
    """
    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},
        dependencies=[Depends(_no_store)],
    )
    for routes in (health_routes, metrics_routes, key_routes, alias_routes):
        app.include_router(routes(state))
    install(app)
    app.add_middleware(Gate, token=state.admin_token)
    return app


async def _no_store(response: Response) -> None:
    response.headers["cache-control"] = "no-store"
