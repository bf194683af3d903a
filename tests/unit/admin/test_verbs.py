"""The table of verbs and the check that it is whole."""

from __future__ import annotations

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import iter_route_contexts

from gateway.admin import build
from gateway.admin.verbs import OPEN, TABLE, Doors
from gateway.errors import Refusal
from gateway.policy.verbs import ALL_VERBS


def routes(*added):
    """The routes of an application with these methods and paths, behind an included router as in the real one."""
    router = APIRouter()
    for method, path in added:
        router.add_api_route(path, lambda: None, methods=[method])
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(router)
    return tuple(iter_route_contexts(app.routes))


def scope(method, path):
    return {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}


def test_every_row_is_a_verb_and_only_what_is_harmless_is_open():
    assert set(TABLE.values()) <= ALL_VERBS | {OPEN}
    assert {path for (_, path), verb in TABLE.items() if verb == OPEN} == {"/healthz", "/readyz", "/metrics"}
    assert all(verb.endswith(":read") == (method == "GET") for (method, _), verb in TABLE.items() if verb != OPEN)


def test_a_route_without_a_row_is_no_application():
    with pytest.raises(ValueError, match="POST /b has no verb"):
        Doors(routes(("GET", "/a"), ("POST", "/b")), {("GET", "/a"): OPEN})


def test_a_row_without_a_route_is_no_application():
    with pytest.raises(ValueError, match="DELETE /a has a verb and no route"):
        Doors(routes(("GET", "/a")), {("GET", "/a"): OPEN, ("DELETE", "/a"): "keys:write"})


def test_a_verb_is_of_the_closed_set_and_a_route_is_there_once():
    with pytest.raises(ValueError, match="keys:wirte is no admin verb"):
        Doors(routes(("GET", "/a")), {("GET", "/a"): "keys:wirte"})
    with pytest.raises(ValueError, match="GET /a is there twice"):
        Doors(routes(("GET", "/a"), ("GET", "/a")), {("GET", "/a"): OPEN})


def test_what_the_check_cannot_read_is_no_application():
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.mount("/files", FastAPI())
    with pytest.raises(ValueError, match="ANY /files has no verb"):
        Doors(tuple(iter_route_contexts(app.routes)), {})


def test_a_new_route_of_the_admin_plane_without_a_verb_fails_its_build(harness, monkeypatch):
    def more(state):
        router = APIRouter(prefix="/admin/keys")
        router.add_api_route("/export", lambda: None, methods=["GET"])
        return router

    async def nothing(plane):
        pass

    harness.run(nothing)
    monkeypatch.setattr(build, "_ROUTES", (*build._ROUTES, more))
    with pytest.raises(ValueError, match="GET /admin/keys/export has no verb"):
        harness.run(nothing)
    monkeypatch.setattr(build, "_ROUTES", build._ROUTES[:-2])
    with pytest.raises(ValueError, match="has a verb and no route"):
        harness.run(nothing)


def test_the_verb_of_a_request_is_that_of_the_route_that_serves_it():
    table = {("GET", "/k/{key_id}"): "keys:read", ("PUT", "/a/{name:path}"): "aliases:write", ("GET", "/open"): OPEN}
    doors = Doors(routes(*table), table)
    for method, path, verb in (
        ("GET", "/k/1", "keys:read"),
        ("PUT", "/a/b/c", "aliases:write"),
        ("GET", "/open", OPEN),
    ):
        assert doors.verb(scope(method, path)) == verb, (method, path)


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("POST", "/open", "method_not_allowed"),
        ("HEAD", "/open", "method_not_allowed"),
        ("get", "/open", "method_not_allowed"),
        ("GET", "/open/", "not_found"),
        ("GET", "//open", "not_found"),
        ("GET", "/Open", "not_found"),
        ("GET", "/k/1/2", "not_found"),
        ("GET", "/open\n", "not_found"),
        ("GET", "/k/1\n", "not_found"),
        ("GET", "/k/\0", "not_found"),
        ("GET", "/k/\x85", "not_found"),
        ("GET", "", "not_found"),
    ],
)
def test_a_request_without_a_route_gets_no_verb(method, path, code):
    table = {("GET", "/k/{key_id}"): "keys:read", ("GET", "/open"): OPEN}
    refusal = Doors(routes(*table), table).verb(scope(method, path))
    assert isinstance(refusal, Refusal)
    assert refusal.spec.code == code
