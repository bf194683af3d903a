"""Attacks on the admin plane: every role at every route, wider grants, fields that are not the caller's to set."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel

from gateway.admin.aliasorders import (
    AbortOrder,
    AliasOrder,
    CanaryOrder,
    DeleteOrder,
    PromoteOrder,
    RollbackOrder,
)
from gateway.admin.build import build_admin
from gateway.admin.fleetviews import AddOrder, DrainOrder, RemoveOrder, UndrainOrder, WarmOrder
from gateway.admin.operations import Mint, issue_key
from gateway.admin.rules import PolicyView
from gateway.admin.schemas import KeyOrder, LimitsView, NewKeyView, RevokeOrder, RotateOrder
from gateway.admin.state import AdminState
from gateway.admin.verbs import OPEN, TABLE
from gateway.admin.writes import WriteLimit
from gateway.identity.keyring import KeyRing
from gateway.policy.access import parse_access
from gateway.policy.verbs import ALL_VERBS
from gateway.secret import Secret
from gateway.stores.sqlite import SqliteStore

TOKEN = "gwadmin_" + "t" * 43
PEPPER = Secret("p" * 43)
NOW = 1_000.0
ACCESS = parse_access(
    """
roles:
  user: {aliases: ["*"]}
  viewer: {admin: viewer}
  operator: {admin: operator}
  admin: {admin: admin}
  key-maker: {admin: ["keys:read", "keys:write"]}
  auditor: {admin: ["audit:read"]}
default_roles: [user]
""",
    "access.yaml",
)
SAMPLES = {
    "key_id": "app1", "name:path": "chat", "replica_id:path": "127.0.0.1:8001", "request_id:path": "req_" + "0" * 24,
}  # fmt: skip
ORDERS: dict[type[BaseModel], dict[str, Any]] = {
    KeyOrder: {"name": "app2"},
    RotateOrder: {"overlap": 60},
    RevokeOrder: {},
    AliasOrder: {"model": "model-a"},
    RollbackOrder: {"to": 1},
    CanaryOrder: {"model": "model-a", "weight": 5},
    PromoteOrder: {},
    AbortOrder: {},
    DeleteOrder: {},
    AddOrder: {"url": "http://127.0.0.1:8001"},
    RemoveOrder: {},
    DrainOrder: {},
    UndrainOrder: {},
    WarmOrder: {},
}


class Patience:
    """A failure gate that blocks nobody and counts."""

    def __init__(self) -> None:
        self.sources: list[str] = []

    def blocked(self, source: str) -> int | None:
        return None

    def failed(self, source: str) -> None:
        self.sources.append(source)


@dataclass
class Plane:
    app: Any
    client: httpx.AsyncClient
    store: SqliteStore
    failures: Patience

    async def key(self, name: str, *roles: str) -> str:
        order = KeyOrder(name=name, roles=list(roles))
        mint = Mint(PEPPER, 1, random.Random(name))
        return (await issue_key(self.store, mint, order, author="test", now=NOW))[1].reveal()

    async def ask(self, method: str, path: str, credential: str | None, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {credential}"} if credential else {}
        return await self.client.request(method, path, headers={**headers, **more.pop("headers", {})}, **more)

    async def held(self) -> Any:
        """All that a write could have changed."""
        return await self.store.versions(), await self.store.audit_head()


def attack(folder: Path, body: Callable[[Plane], Awaitable[None]]) -> None:
    """Run an attack on a plane of its own."""

    async def run() -> None:
        store = await SqliteStore.open(folder / "state.db")
        ring = KeyRing(store, {1: PEPPER}, lambda: NOW)
        await ring.refresh()
        failures = Patience()
        app = build_admin(
            AdminState(
                store=store,
                pepper=PEPPER,
                admin_token=Secret(TOKEN),
                changed=ring.refresh,
                render_metrics=lambda: b"",
                ready=lambda: True,
                served_models=lambda: ["model-a"],
                callers=ring,
                failures=failures,
                access=lambda: ACCESS,
                policy=lambda: PolicyView(valid=True, epoch=0, loaded_at=NOW, faults=[]),
                writes=WriteLimit(monotonic=lambda: 0.0),
                clock=lambda: NOW,
                random=random.Random(7),
            )
        )
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
                await body(Plane(app, client, store, failures))
        finally:
            await ring.close()
            await store.close()

    asyncio.run(run())


def concrete(path: str) -> str:
    for name, value in SAMPLES.items():
        path = path.replace(f"{{{name}}}", value)
    assert "{" not in path, f"{path} needs a sample"
    return path


def routes(app: Any) -> Any:
    return [(method, route) for route in iter_route_contexts(app.routes) for method in route.methods or ()]


def order_of(route: Any) -> type[BaseModel] | None:
    """The schema of what a route takes as its body."""
    found = [field.field_info.annotation for field in route.original_route.dependant.body_params]
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize("role", ["user", "viewer", "operator", "admin", "key-maker", "auditor"])
def test_a_role_opens_the_routes_of_its_verbs_and_no_other(tmp_path: Path, role: str) -> None:
    async def body(plane: Plane) -> None:
        text = await plane.key("caller", role)
        verbs = ACCESS.verbs_of([role])
        for (method, path), verb in TABLE.items():
            answer = await plane.ask(method, concrete(path), text)
            if verb == OPEN or verb in verbs:
                assert answer.status_code not in {401, 403}, (method, path)
                continue
            said = answer.json()["error"]
            assert (answer.status_code, said["code"]) == (403, "verb_forbidden"), (method, path)
            assert verb in said["message"]
            assert not [held for held in ALL_VERBS - {verb} if held in said["message"]]

    attack(tmp_path, body)


def test_nobody_opens_what_is_not_open_and_hears_always_the_same(tmp_path: Path) -> None:
    async def body(plane: Plane) -> None:
        revoked = await plane.key("gone", "admin")
        await plane.store.revoke_key("gone", at=NOW, author="test")
        unknown = (await plane.key("x", "admin"))[:-1] + "0"
        said = set()
        for credential in (None, "x", revoked, unknown, TOKEN[:-1], "a.b.c", "x" * 9_000):
            for (method, path), verb in TABLE.items():
                answer = await plane.ask(method, concrete(path), credential, content=b"{not json")
                if verb == OPEN:
                    assert answer.status_code == 200
                else:
                    assert answer.status_code == 401, (method, path)
                    said.add((answer.content, answer.headers["www-authenticate"]))
        assert len(said) == 1
        assert plane.failures.sources

    attack(tmp_path, body)


def test_a_revoked_key_is_out_at_the_next_request(tmp_path: Path) -> None:
    async def body(plane: Plane) -> None:
        text = await plane.key("ops", "admin")
        assert (await plane.ask("GET", "/admin/keys", text)).status_code == 200
        assert (await plane.ask("POST", "/admin/keys/ops/revoke", text)).status_code == 200
        assert (await plane.ask("GET", "/admin/keys", text)).status_code == 401

    attack(tmp_path, body)


def test_a_body_is_not_read_for_whoever_may_not_send_it(tmp_path: Path) -> None:
    async def body(plane: Plane) -> None:
        viewer = await plane.key("viewer", "viewer")

        async def never() -> Any:
            raise AssertionError("the body was read")

        for credential, status in ((None, 401), (viewer, 403)):
            sent: list[Any] = []

            async def send(message: Any, into: list[Any] = sent) -> None:
                into.append(message)

            headers = [(b"host", b"admin"), (b"content-type", b"application/json")]
            headers += [(b"x-api-key", credential.encode())] if credential else []
            scope = {
                "type": "http",
                "method": "POST",
                "path": "/admin/keys",
                "root_path": "",
                "query_string": b"",
                "headers": headers,
                "client": ("192.0.2.1", 1),
            }
            await plane.app(scope, never, send)
            assert sent[0]["status"] == status

    attack(tmp_path, body)


@pytest.mark.parametrize(
    "path",
    [
        "//healthz",
        "/healthz/",
        "/healthz/../admin/keys",
        "/healthz%2f..%2fadmin%2fkeys",
        "/metrics/%2e%2e/admin/keys",
        "/admin/keys?/healthz",
        "/admin/keys;/healthz",
        "/admin%2fkeys",
        "/ADMIN/KEYS",
        "/admin/keys/",
        "/readyz%00",
        "/healthz%0a",
    ],
)
def test_no_spelling_of_a_path_opens_a_closed_door(tmp_path: Path, path: str) -> None:
    async def body(plane: Plane) -> None:
        assert (await plane.client.get(path)).status_code == 401
        text = await plane.key("caller", "user")
        assert (await plane.ask("GET", path, text)).status_code in {403, 404}

    attack(tmp_path, body)


def test_neither_host_nor_another_header_moves_a_request_to_another_route(tmp_path: Path) -> None:
    async def body(plane: Plane) -> None:
        viewer = await plane.key("viewer", "viewer")
        for headers in (
            {"host": "admin/healthz?"},
            {"host": "admin#"},
            {"x-forwarded-prefix": "/healthz"},
            {"x-original-url": "/healthz"},
            {"x-rewrite-url": "/healthz"},
        ):
            assert (await plane.client.get("/admin/keys", headers=headers)).status_code == 401
            assert (await plane.ask("POST", "/admin/keys", viewer, headers=headers)).status_code == 403
        for name in ("x-http-method-override", "x-method-override", "x-http-method"):
            answer = await plane.ask("GET", "/admin/keys", viewer, headers={name: "POST"}, params={"_method": "POST"})
            assert answer.status_code == 400
            answer = await plane.ask("GET", "/admin/keys", viewer, headers={name: "POST"})
            assert set(answer.json()) == {"keys", "next"}
        # The slash arrives decoded: gate and router have to see the same route in it.
        assert (await plane.ask("POST", "/admin/keys/x%2frevoke", viewer)).status_code == 403

    attack(tmp_path, body)


def test_nobody_hands_out_more_than_it_has(tmp_path: Path) -> None:
    async def body(plane: Plane) -> None:
        maker = await plane.key("maker", "key-maker")
        await plane.key("boss", "admin")
        await plane.key("mate", "key-maker")
        before = await plane.held()
        for roles in (["admin"], ["viewer"], ["user", "operator"], ["key-maker", "auditor"]):
            refused = await plane.ask("POST", "/admin/keys", maker, json={"name": "mine", "roles": roles})
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "grant_too_wide")
        # Whoever rotates a key is given its text, and with it all that the key may do.
        refused = await plane.ask("POST", "/admin/keys/boss/rotate", maker)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "grant_too_wide")
        assert "gw_" not in refused.text
        assert await plane.held() == before
        for roles in ([], ["user"], ["key-maker"], ["user", "key-maker"]):
            order = {"name": f"mine{len(roles)}{roles[:1] == ['user']}", "roles": roles}
            assert (await plane.ask("POST", "/admin/keys", maker, json=order)).status_code == 201
        assert (await plane.ask("POST", "/admin/keys/mate/rotate", maker)).status_code == 201
        assert (await plane.ask("POST", "/admin/keys/boss/revoke", maker)).status_code == 200

    attack(tmp_path, body)


def test_a_role_that_the_policy_does_not_know_is_refused_with_those_that_it_knows(tmp_path: Path) -> None:
    async def body(plane: Plane) -> None:
        for credential in (TOKEN, await plane.key("boss", "admin")):
            before = await plane.held()
            refused = await plane.ask("POST", "/admin/keys", credential, json={"name": "a", "roles": ["canary"]})
            said = refused.json()["error"]
            assert (refused.status_code, said["code"], said["param"]) == (400, "invalid_request", "roles")
            assert "admin, auditor, key-maker, operator, user, viewer" in said["message"]
            assert "canary" not in refused.text
            assert await plane.held() == before

    attack(tmp_path, body)


def foreign_fields(order: type[BaseModel]) -> list[str]:
    """Names that some object of the plane has and this order has not."""
    known = {"admin", "verbs", "grants", "author", "digest", "pepper", "is_admin", "__proto__", "allowed_routes"}
    for model in (*ORDERS, *NewKeyView.__mro__[:-2], LimitsView):
        known |= set(getattr(model, "model_fields", {}))
    return sorted(known - set(order.model_fields))


def test_a_field_that_is_not_the_callers_to_set_is_refused_at_every_write(tmp_path: Path) -> None:
    async def body(plane: Plane) -> None:
        await plane.key("app1")
        before, seen = await plane.held(), set()
        credentials = [await plane.key(f"boss{number}", "admin") for number in range(16)]
        before = await plane.held()
        tries = 0
        for method, route in routes(plane.app):
            if method in {"GET", "HEAD"}:
                continue
            order = order_of(route)
            assert order is not None, f"{method} {route.path} takes no closed order"
            seen.add(order)
            for name in foreign_fields(order):
                tries += 1
                body = {**ORDERS[order], name: 1}
                credential = credentials[tries // 50]
                refused = await plane.ask(method, concrete(route.path), credential, json=body)
                assert refused.status_code == 400, (method, route.path, name)
                assert refused.json()["error"]["code"] == "invalid_request"
        assert seen == set(ORDERS)
        nested = {"name": "app2", "limits": {"requests_per_minute": 1, "roles": ["admin"]}}
        assert (await plane.ask("POST", "/admin/keys", TOKEN, json=nested)).status_code == 400
        assert await plane.held() == before

    attack(tmp_path, body)


def test_every_answer_has_a_closed_schema_and_only_two_hold_a_text(tmp_path: Path) -> None:
    async def body(plane: Plane) -> None:
        texts = set()
        for method, route in routes(plane.app):
            model = route.response_model
            if TABLE[method, route.path] == OPEN:
                continue
            assert issubclass(model, BaseModel), route.path
            assert model.model_config["extra"] == "forbid", route.path
            assert model.model_config["strict"] is True, route.path
            if issubclass(model, NewKeyView):
                texts.add((method, route.path))
        assert texts == {("POST", "/admin/keys"), ("POST", "/admin/keys/{key_id}/rotate")}

    attack(tmp_path, body)


def test_no_list_and_no_trail_holds_a_secret(tmp_path: Path) -> None:
    async def body(plane: Plane) -> None:
        made = (await plane.ask("POST", "/admin/keys", TOKEN, json={"name": "app1"})).json()
        rotated = (await plane.ask("POST", "/admin/keys/app1/rotate", TOKEN)).json()
        shown = [await plane.ask("GET", concrete(path), TOKEN) for method, path in TABLE if method == "GET"]
        shown.append(await plane.ask("GET", "/admin/policy/explain?key=app1&alias=chat", TOKEN))
        for text in (made["key"], rotated["key"], TOKEN, PEPPER.reveal()):
            for answer in shown:
                assert text not in answer.text
                assert text.split("_")[-1][:20] not in answer.text

    attack(tmp_path, body)


def test_an_id_of_another_kind_or_of_nothing_is_not_found_alike(tmp_path: Path) -> None:
    async def body(plane: Plane) -> None:
        await plane.key("app1")
        assert (await plane.ask("PUT", "/admin/aliases/chat", TOKEN, json={"model": "model-a"})).is_success
        text = await plane.key("app2")
        for method, path in (("GET", ""), ("POST", "/revoke"), ("POST", "/rotate")):
            said = set()
            for key_id in ("none", "chat", "jwt_0123456789abcdef", text, "..%2fapp1", "%00", "1", "app1'--", "x" * 300):
                answer = await plane.ask(method, f"/admin/keys/{key_id}{path}", TOKEN)
                assert answer.status_code == 404, key_id
                said.add(answer.content)
            assert len(said) <= 2, "one for what is no path of ours, one for what is no key"
        said = {(await plane.ask("GET", f"/admin/aliases/{name}", TOKEN)).content for name in ("none", "app1", "a/b")}
        assert len(said) == 1

    attack(tmp_path, body)


def test_an_author_who_writes_too_much_waits_and_others_do_not(tmp_path: Path) -> None:
    async def body(plane: Plane) -> None:
        boss = await plane.key("boss", "admin")
        statuses = [
            (await plane.ask("POST", "/admin/keys", boss, json={"name": f"a{number}"})).status_code
            for number in range(62)
        ]
        assert statuses == [201] * 60 + [429] * 2
        refused = await plane.ask("PUT", "/admin/aliases/chat", boss, json={"model": "model-a"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited")
        assert refused.headers["retry-after"] == "1"
        assert (await plane.ask("GET", "/admin/keys", boss)).status_code == 200
        assert (await plane.ask("PUT", "/admin/aliases/chat", TOKEN, json={"model": "model-a"})).status_code == 200
        trail = [line for line in await plane.store.audit() if line.verb == "key.create"]
        assert len(trail) == 61

    attack(tmp_path, body)


def test_nothing_is_given_away_by_default(tmp_path: Path) -> None:
    async def body(plane: Plane) -> None:
        for path in ("/docs", "/redoc", "/openapi.json", "/debug", "/admin"):
            assert (await plane.ask("GET", path, TOKEN)).status_code == 404
        origin = {"origin": "https://evil.example", "access-control-request-method": "POST"}
        answers = [
            await plane.ask("OPTIONS", "/admin/keys", None, headers=origin),
            await plane.ask("OPTIONS", "/admin/keys", TOKEN, headers=origin),
            await plane.ask("GET", "/admin/keys", TOKEN, headers=origin),
            await plane.ask("GET", "/healthz", None, headers=origin),
        ]
        assert [answer.status_code for answer in answers] == [401, 405, 200, 200]
        for answer in answers:
            names = {name.lower() for name in answer.headers}
            assert not {name for name in names if name.startswith("access-control")}
            assert not names & {"server", "x-powered-by", "set-cookie", "location"}
            assert answer.headers["cache-control"] == "no-store"

    attack(tmp_path, body)


def test_the_audit_trail_takes_no_text_that_a_caller_chose_freely(tmp_path: Path) -> None:
    async def body(plane: Plane) -> None:
        evil = "a\x1b[31m\n2026 admin-token key.create"
        for order in ({"name": evil}, {"name": "a", "tenant": evil}, {"name": "a", "roles": [evil]}):
            assert (await plane.ask("POST", "/admin/keys", TOKEN, json=order)).status_code == 400
        put = {"model": "model-a", "note": evil}
        assert (await plane.ask("PUT", "/admin/aliases/chat", TOKEN, json=put)).status_code == 400
        assert json.dumps([line.detail for line in await plane.store.audit()]) == "[]"

    attack(tmp_path, body)
