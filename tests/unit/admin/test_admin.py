"""The admin API as its clients see it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.admin.build import build_admin
from gateway.admin.gate import MAX_BODY, OPEN
from gateway.admin.state import AdminState
from gateway.identity.keys import digest, well_formed
from gateway.secret import Secret
from gateway.stores.interfaces import StoreUnavailable
from gateway.stores.sqlite import SqliteStore

TOKEN = "gwadmin_" + "t" * 43
PEPPER = "p" * 43
CANARY = "canary-my-ssn-is-078-05-1120"


@dataclass
class Plane:
    """An admin plane over a real store, with what the tests turn and count."""

    store: SqliteStore
    client: httpx.AsyncClient
    seen: dict[str, Any]


@dataclass
class Harness:
    """Runs a test body against a plane of its own."""

    folder: Path
    seen: dict[str, Any] = field(
        default_factory=lambda: {"changed": 0, "ready": True, "served": ["model-a"], "now": 1_000.0, "fault": None}
    )

    def run(self, body: Callable[[Plane], Awaitable[Any]], token: str | None = TOKEN) -> Any:
        return asyncio.run(self._run(body, token))

    async def _run(self, body: Callable[[Plane], Awaitable[Any]], token: str | None) -> Any:
        async def changed() -> None:
            self.seen["changed"] += 1
            if self.seen["fault"]:
                raise self.seen["fault"]

        store = await SqliteStore.open(self.folder / "state.db")
        state = AdminState(
            store=store,
            pepper=Secret(PEPPER),
            admin_token=Secret(TOKEN),
            changed=changed,
            render_metrics=lambda: b"# HELP x x\n",
            ready=lambda: bool(self.seen["ready"]),
            served_models=lambda: self.seen["served"],
            clock=lambda: self.seen["now"],
            random=random.Random(7),
        )
        headers = {"authorization": f"Bearer {token}"} if token else {}
        transport = httpx.ASGITransport(build_admin(state), raise_app_exceptions=False)
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://admin", headers=headers) as client:
                return await body(Plane(store, client, self.seen))
        finally:
            await store.close()


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


def test_a_key_is_made_shown_once_listed_and_revoked(harness: Harness) -> None:
    async def body(plane: Plane) -> None:
        order = {"name": "app1", "tenant": "t1", "roles": ["r"], "aliases": ["chat-*"], "expires_in": 60}
        made = await plane.client.post("/admin/keys", json=order)
        assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
        key = made.json().pop("key")
        view = {name: value for name, value in made.json().items() if name != "key"}
        assert well_formed(key)
        assert view == {
            "id": key.split("_")[2],
            "name": "app1",
            "tenant": "t1",
            "roles": ["r"],
            "aliases": ["chat-*"],
            "created_at": 1_000.0,
            "expires_at": 1_060.0,
            "revoked_at": None,
            "state": "live",
        }
        record = await plane.store.find_key(digest(PEPPER.encode(), key))
        assert record is not None
        assert record.name == "app1"
        assert plane.seen["changed"] == 1
        assert (await plane.client.get("/admin/keys")).json() == {"keys": [view]}
        assert (await plane.client.get("/admin/keys/app1")).json() == view
        plane.seen["now"] = 1_060.0
        assert (await plane.client.get(f"/admin/keys/{view['id']}")).json()["state"] == "expired"
        revoked = await plane.client.post("/admin/keys/app1/revoke")
        assert revoked.json() == {**view, "revoked_at": 1_060.0, "state": "revoked"}
        assert plane.seen["changed"] == 2

    harness.run(body)


def test_defaults_of_a_key(harness: Harness) -> None:
    async def body(plane: Plane) -> None:
        made = (await plane.client.post("/admin/keys", json={"name": "app1"})).json()
        assert (made["tenant"], made["roles"], made["aliases"], made["expires_at"]) == ("default", [], ["*"], None)

    harness.run(body)


def test_an_alias_is_set_shown_and_listed(harness: Harness) -> None:
    async def body(plane: Plane) -> None:
        made = await plane.client.put("/admin/aliases/team/chat", json={"model": "model-a", "note": "first"})
        assert made.json() == {
            "name": "team/chat",
            "revision": 1,
            "targets": [{"model": "model-a", "weight": 1}],
            "author": "admin-token",
            "created_at": 1_000.0,
            "note": "first",
            "source": "api",
        }
        assert (await plane.client.get("/admin/aliases/team/chat")).json() == made.json()
        assert (await plane.client.get("/admin/aliases")).json() == {"generation": 1, "aliases": [made.json()]}
        assert plane.seen["changed"] == 1

    harness.run(body)


def error(response: httpx.Response, status: int, code: str) -> str:
    """The message of an error answer, its form checked."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["code"] == code
    return str(body["error"]["message"])


def test_a_model_that_nobody_serves_needs_force(harness: Harness) -> None:
    async def body(plane: Plane) -> None:
        refused = await plane.client.put("/admin/aliases/chat", json={"model": "model-b"})
        assert "Served: model-a." in error(refused, 409, "model_not_served")
        assert (await plane.store.alias_table()).current == {}
        assert (await plane.client.put("/admin/aliases/chat", json={"model": "model-b", "force": True})).is_success

    harness.run(body)


def test_conflicts_and_missing_things(harness: Harness) -> None:
    async def body(plane: Plane) -> None:
        put = {"model": "model-a", "expect_revision": 0}
        assert (await plane.client.put("/admin/aliases/chat", json=put)).is_success
        lost = error(await plane.client.put("/admin/aliases/chat", json=put), 409, "conflict")
        assert "revision 1" in lost
        await plane.client.post("/admin/keys", json={"name": "app1"})
        assert "already" in error(await plane.client.post("/admin/keys", json={"name": "app1"}), 409, "conflict")
        for asked in ("/admin/keys/none", "/admin/aliases/none"):
            error(await plane.client.get(asked), 404, "no_such_object")
        error(await plane.client.post("/admin/keys/none/revoke"), 404, "no_such_object")
        assert plane.seen["changed"] == 2

    harness.run(body)


PATHS = [
    ("GET", "/admin/keys"),
    ("POST", "/admin/keys"),
    ("GET", "/admin/keys/x"),
    ("POST", "/admin/keys/x/revoke"),
    ("GET", "/admin/aliases"),
    ("PUT", "/admin/aliases/x"),
    ("GET", "/nowhere"),
    ("GET", "/healthz/"),
    ("POST", "/metrics"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
]


@pytest.mark.parametrize("token", [None, "", "x", TOKEN + "x", TOKEN[:-1], TOKEN.upper(), "Bearer " + TOKEN])
def test_nothing_but_health_and_metrics_opens_without_the_token(harness: Harness, token: str | None) -> None:
    async def body(plane: Plane) -> None:
        for method, path in PATHS:
            refused = await plane.client.request(method, path, content=b"{not json")
            error(refused, 401, "invalid_admin_token")
            assert refused.headers["www-authenticate"] == "Bearer"

    harness.run(body, token)


def test_only_one_bearer_header_counts(harness: Harness) -> None:
    async def body(plane: Plane) -> None:
        for headers in (
            [("authorization", f"Basic {TOKEN}")],
            [("authorization", TOKEN)],
            [("x-api-key", TOKEN)],
            [("authorization", f"Bearer {TOKEN}"), ("authorization", f"Bearer {TOKEN}")],
            [("cookie", f"token={TOKEN}")],
        ):
            error(await plane.client.get("/admin/keys", headers=headers), 401, "invalid_admin_token")
        error(await plane.client.get(f"/admin/keys?token={TOKEN}"), 401, "invalid_admin_token")
        assert (await plane.client.get("/admin/keys", headers={"authorization": f"bEaReR {TOKEN}"})).is_success

    harness.run(body, None)


def test_health_readiness_and_metrics_are_open(harness: Harness) -> None:
    async def body(plane: Plane) -> None:
        assert {path for _, path in OPEN} == {"/healthz", "/readyz", "/metrics"}
        assert (await plane.client.get("/healthz")).json() == {"status": "ok"}
        assert (await plane.client.get("/readyz")).status_code == 200
        plane.seen["ready"] = False
        assert (await plane.client.get("/readyz")).status_code == 503
        metrics = await plane.client.get("/metrics")
        assert metrics.content == b"# HELP x x\n"
        assert metrics.headers["content-type"].startswith("text/plain; version=")

    harness.run(body, None)


@pytest.mark.parametrize(
    "order",
    [
        {"name": CANARY + " "},
        {"name": 5},
        {"name": "ok", "roles": CANARY},
        {"name": "ok", "roles": [CANARY + " "]},
        {"name": "ok", "aliases": []},
        {"name": "ok", "aliases": ["a b"]},
        {"name": "ok", "expires_in": CANARY},
        {"name": "ok", "expires_in": "60"},
        {"name": "ok", "expires_in": 0},
        {"name": "ok", "expires_in": 1.5},
        {"name": "ok", "tenant": None},
        {"name": "ok", CANARY + " ": 1},
        {"name": "ok", "admin": True},
        {"name": "x\n"},
        {"name": "../x"},
        {"name": "x" * 65},
        [CANARY],
        CANARY,
        None,
    ],
)
def test_a_bad_order_is_refused_without_an_echo(harness: Harness, order: Any) -> None:
    async def body(plane: Plane) -> None:
        refused = await plane.client.post("/admin/keys", json=order)
        error(refused, 400, "invalid_request")
        assert CANARY not in refused.text
        assert (await plane.store.list_keys()) == ()
        assert plane.seen["changed"] == 0

    harness.run(body)


@pytest.mark.parametrize("content", [CANARY.encode(), b"{", b'{"name": "x', b"\xff\xfe", b"", b'{"name": NaN}'])
def test_what_is_no_json_is_refused_without_an_echo(harness: Harness, content: bytes) -> None:
    async def body(plane: Plane) -> None:
        headers = {"content-type": "application/json"}
        refused = await plane.client.post("/admin/keys", content=content, headers=headers)
        error(refused, 400, "invalid_request")
        assert CANARY not in refused.text

    harness.run(body)


@pytest.mark.parametrize(
    "name", ["a@1", "a b", "%00", "x" * 65, "a//b", "a/..%2fb", "%2e%2e", "é", "/a", "a/", CANARY + "@"]
)
def test_a_bad_alias_name_is_refused_without_an_echo(harness: Harness, name: str) -> None:
    async def body(plane: Plane) -> None:
        refused = await plane.client.put(f"/admin/aliases/{name}", json={"model": "model-a"})
        error(refused, 400, "invalid_request")
        assert CANARY not in refused.text
        assert (await plane.store.alias_table()).current == {}

    harness.run(body)


@pytest.mark.parametrize("field_name", ["note", "model"])
@pytest.mark.parametrize("text", ["a\x1b[31mb", "a\nb", "a\x00", "x" * 300])
def test_text_that_would_act_on_a_terminal_is_refused(harness: Harness, field_name: str, text: str) -> None:
    async def body(plane: Plane) -> None:
        order = {"model": "model-a", "force": True, field_name: text}
        error(await plane.client.put("/admin/aliases/chat", json=order), 400, "invalid_request")

    harness.run(body)


def test_a_validation_message_helps(harness: Harness) -> None:
    async def body(plane: Plane) -> None:
        assert error(await plane.client.post("/admin/keys", json={}), 400, "invalid_request") == "name: Field required."
        refused = await plane.client.post("/admin/keys", json={"name": "ok", "rpm": 5})
        assert error(refused, 400, "invalid_request") == "rpm: Extra inputs are not permitted."
        refused = await plane.client.put("/admin/aliases/a@1", json={"model": "m"})
        assert error(refused, 400, "invalid_request").startswith("name: an alias name is 1 to 64 of")

    harness.run(body)


def test_a_large_body_is_refused_before_it_is_parsed(harness: Harness) -> None:
    async def body(plane: Plane) -> None:
        async def pieces() -> Any:
            for _ in range(100):
                yield b" " * MAX_BODY

        error(await plane.client.post("/admin/keys", content=pieces()), 413, "body_too_large")

    harness.run(body)


def test_unknown_paths_and_methods(harness: Harness) -> None:
    async def body(plane: Plane) -> None:
        for path in ("/docs", "/redoc", "/openapi.json", "/admin", "/admin/keys/", "/v1/models"):
            error(await plane.client.get(path, headers={"host": "evil.example"}), 404, "not_found")
        error(await plane.client.delete("/admin/keys/x"), 405, "method_not_allowed")

    harness.run(body)


def test_a_store_that_is_gone_is_503_and_says_nothing_of_files(harness: Harness) -> None:
    async def body(plane: Plane) -> None:
        await plane.store.close()
        for call in (
            plane.client.get("/admin/keys"),
            plane.client.post("/admin/keys", json={"name": "ok"}),
            plane.client.put("/admin/aliases/chat", json={"model": "model-a"}),
        ):
            refused = await call
            error(refused, 503, "store_unavailable")
            assert refused.headers["retry-after"] == "1"
            assert "state.db" not in refused.text
        assert plane.seen["changed"] == 0

    harness.run(body)


def test_a_write_that_was_committed_is_reported_even_if_the_reload_fails(harness: Harness) -> None:
    async def body(plane: Plane) -> None:
        plane.seen["fault"] = StoreUnavailable("gone")
        made = await plane.client.post("/admin/keys", json={"name": "app1"})
        assert made.status_code == 201
        assert well_formed(made.json()["key"])

    harness.run(body)


def test_an_unexpected_failure_says_nothing(harness: Harness) -> None:
    async def body(plane: Plane) -> None:
        plane.seen["fault"] = RuntimeError(CANARY)
        failed = await plane.client.post("/admin/keys", json={"name": "app1"})
        error(failed, 500, "internal_error")
        assert CANARY not in failed.text

    harness.run(body)


def test_the_store_and_its_audit_never_hold_a_key(harness: Harness, tmp_path: Path) -> None:
    async def body(plane: Plane) -> str:
        return str((await plane.client.post("/admin/keys", json={"name": "app1"})).json()["key"])

    key = harness.run(body)
    secret = key.split("_")[3]
    for file in tmp_path.iterdir():
        assert secret[:20].encode() not in file.read_bytes()
        assert json.dumps(secret).encode() not in file.read_bytes()


def test_no_telemetry_of_the_framework(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")

    async def body(plane: Plane) -> None:
        assert (await plane.client.get("/healthz")).is_success

    harness.run(body)
