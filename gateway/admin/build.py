"""The admin plane as one application: what FastAPI would give away by default is turned off here."""

from __future__ import annotations

from fastapi import Depends, FastAPI, Response
from fastapi.routing import iter_route_contexts

from gateway.admin.aliases import alias_routes
from gateway.admin.audit import audit_routes
from gateway.admin.callers import Knowledge
from gateway.admin.explaining import explain_routes
from gateway.admin.fleet import fleet_routes
from gateway.admin.gate import Gate
from gateway.admin.handlers import install
from gateway.admin.health import health_routes
from gateway.admin.instances import instance_routes
from gateway.admin.keys import key_routes
from gateway.admin.metrics import metrics_routes
from gateway.admin.policy import policy_routes
from gateway.admin.state import AdminState
from gateway.admin.verbs import Doors

_ROUTES = (
    health_routes,
    metrics_routes,
    key_routes,
    alias_routes,
    fleet_routes,
    explain_routes,
    instance_routes,
    audit_routes,
    policy_routes,
)


def build_admin(state: AdminState) -> FastAPI:
    """The application for the admin listener.

    No documentation pages, no redirects built from the Host header, no telemetry of the framework's own (its logs hold
    request bodies), one error form. Raises ``ValueError`` for a route without a row in the table of verbs, or a row
    without a route.
    """
    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},
        dependencies=[Depends(_no_store)],
    )
    for routes in _ROUTES:
        app.include_router(routes(state))
    install(app)
    known = Knowledge(
        admin_token=state.admin_token,
        callers=state.callers,
        failures=state.failures,
        verbs=lambda principal: state.access().grant(principal).verbs,
    )
    app.add_middleware(Gate, doors=Doors(tuple(iter_route_contexts(app.routes))), known=known, writes=state.writes)
    return app


async def _no_store(response: Response) -> None:
    response.headers["cache-control"] = "no-store"
