"""The admin API as its clients see it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.admin.gate import MAX_BODY
from gateway.admin.verbs import OPEN, TABLE
from gateway.identity.keys import digest, well_formed
from gateway.stores.interfaces import StoreUnavailable

TOKEN = "gwadmin_" + "t" * 43
PEPPER = "p" * 43
CANARY = "canary-my-ssn-is-078-05-1120"
NO_FIGURES = {"requests_per_minute": None, "tokens_per_minute": None, "tokens_per_day": None, "concurrency": None}


def test_a_key_is_made_shown_once_listed_and_revoked(harness):
    async def body(plane):
        order = {
            "name": "app1",
            "tenant": "t1",
            "roles": ["user"],
            "aliases": ["chat-*"],
            "expires_in": 60,
            "limits": {"tokens_per_day": 5},
        }
        made = await plane.client.post("/admin/keys", json=order)
        assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
        key = made.json().pop("key")
        view = {name: value for name, value in made.json().items() if name != "key"}
        assert well_formed(key)
        assert view == {
            "id": key.split("_")[2],
            "name": "app1",
            "tenant": "t1",
            "roles": ["user"],
            "aliases": ["chat-*"],
            "created_at": 1_000.0,
            "limits": NO_FIGURES | {"tokens_per_day": 5},
            "expires_at": 1_060.0,
            "revoked_at": None,
            "state": "live",
            "secrets": [{"created_at": 1_000.0, "expires_at": None, "pepper_version": 1, "live": True}],
        }
        found = await plane.store.find_key(digest(PEPPER.encode(), key))
        assert found is not None
        assert (found.key.name, found.key.limits.tokens_per_day) == ("app1", 5)
        assert plane.seen["changed"] == 1
        assert (await plane.client.get("/admin/keys")).json() == {"keys": [view], "next": None}
        assert (await plane.client.get("/admin/keys/app1")).json() == view
        plane.seen["now"] = 1_060.0
        assert (await plane.client.get(f"/admin/keys/{view['id']}")).json()["state"] == "expired"
        revoked = await plane.client.post("/admin/keys/app1/revoke")
        (ended,) = revoked.json().pop("secrets")
        assert (ended["expires_at"], ended["live"]) == (1_060.0, False)
        assert revoked.json() == {**view, "revoked_at": 1_060.0, "state": "revoked", "secrets": [ended]}
        assert plane.seen["changed"] == 2

    harness.run(body)


def test_a_key_is_rotated_under_its_id(harness):
    async def body(plane):
        made = (await plane.client.post("/admin/keys", json={"name": "app1"})).json()
        plane.seen["now"] = 2_000.0
        rotated = await plane.client.post("/admin/keys/app1/rotate", json={"overlap": 60})
        assert (rotated.status_code, rotated.headers["cache-control"]) == (201, "no-store")
        assert well_formed(rotated.json()["key"])
        assert rotated.json()["key"].split("_")[2] == rotated.json()["id"] == made["id"]
        assert rotated.json()["key"] != made["key"]
        assert [(one["created_at"], one["expires_at"], one["live"]) for one in rotated.json()["secrets"]] == [
            (2_000.0, None, True),
            (1_000.0, 2_060.0, True),
        ]
        for text in (made["key"], rotated.json()["key"]):
            found = await plane.store.find_key(digest(PEPPER.encode(), text))
            assert found is not None
            assert found.live(2_059.0)
        assert plane.seen["changed"] == 2
        shown = (await plane.client.get("/admin/keys/app1")).json()
        assert shown == {name: value for name, value in rotated.json().items() if name != "key"}
        plane.seen["now"] = 2_060.0
        assert [one["live"] for one in (await plane.client.get("/admin/keys/app1")).json()["secrets"]] == [True, False]

    harness.run(body)


def test_a_rotation_overlaps_a_day_unless_told_and_gives_no_third_secret(harness, error):
    async def body(plane):
        await plane.client.post("/admin/keys", json={"name": "app1"})
        rotated = (await plane.client.post("/admin/keys/app1/rotate")).json()
        assert rotated["secrets"][1]["expires_at"] == 1_000.0 + 86_400
        refused = await plane.client.post("/admin/keys/app1/rotate", json={})
        assert "two live secrets" in error(refused, 409, "conflict")
        error(await plane.client.post("/admin/keys/none/rotate"), 404, "no_such_object")
        await plane.client.post("/admin/keys/app1/revoke")
        error(await plane.client.post("/admin/keys/app1/rotate", json={"overlap": 0}), 409, "conflict")
        for bad in ({"overlap": -1}, {"overlap": "60"}, {"overlap": 10**9}, {"roles": ["admin"]}, []):
            error(await plane.client.post("/admin/keys/app1/rotate", json=bad), 400, "invalid_request")

    harness.run(body)


def test_keys_are_listed_page_by_page(harness, error):
    async def body(plane):
        for number in range(5):
            plane.seen["now"] += 1
            await plane.client.post("/admin/keys", json={"name": f"app{number}"})
        names, after = [], ""
        while after is not None:
            page = (await plane.client.get(f"/admin/keys?limit=2{after and '&after=' + after}")).json()
            assert len(page["keys"]) <= 2
            names += [key["name"] for key in page["keys"]]
            after = page["next"]
        assert names == [f"app{number}" for number in range(5)]
        error(await plane.client.get("/admin/keys?after=none"), 404, "no_such_object")
        for bad in ("limit=0", "limit=501", "limit=x", "limit=1.5", "after=a%20b", "order=name"):
            error(await plane.client.get(f"/admin/keys?{bad}"), 400, "invalid_request")

    harness.run(body)


def test_defaults_of_a_key(harness):
    async def body(plane):
        made = (await plane.client.post("/admin/keys", json={"name": "app1"})).json()
        assert (made["tenant"], made["roles"], made["aliases"], made["expires_at"]) == ("default", [], ["*"], None)

    harness.run(body)


def test_an_alias_is_set_shown_and_listed(harness):
    async def body(plane):
        made = await plane.client.put("/admin/aliases/team/chat", json={"model": "model-a", "note": "first"})
        assert made.json() == {
            "name": "team/chat",
            "revision": 1,
            "targets": [{"model": "model-a", "weight": 1}],
            "author": "admin-token",
            "created_at": 1_000.0,
            "note": "first",
            "source": "api",
            "canary_of": None,
            "generation": 1,
        }
        held = {name: value for name, value in made.json().items() if name != "generation"}
        assert (await plane.client.get("/admin/aliases/team/chat")).json() == held
        assert (await plane.client.get("/admin/aliases")).json() == {"generation": 1, "aliases": [held]}
        assert plane.seen["changed"] == 1

    harness.run(body)


def test_a_model_that_nobody_serves_needs_force(harness, error):
    async def body(plane):
        refused = await plane.client.put("/admin/aliases/chat", json={"model": "model-b"})
        assert "Served: model-a." in error(refused, 409, "model_not_served")
        assert (await plane.store.alias_table()).current == {}
        assert (await plane.client.put("/admin/aliases/chat", json={"model": "model-b", "force": True})).is_success

    harness.run(body)


def test_force_is_in_the_audit_trail_where_it_mattered(harness, error):
    async def body(plane):
        order = {"model": "model-b", "force": True, "expect_revision": 0}
        assert (await plane.client.put("/admin/aliases/chat", json=order)).is_success
        error(await plane.client.put("/admin/aliases/chat", json=order), 409, "conflict")
        await plane.client.put("/admin/aliases/chat", json={"model": "model-a", "force": True})
        lines = [(line.verb, line.subject, json.loads(line.detail)) for line in await plane.store.audit()]
        assert [verb for verb, _, _ in lines] == ["alias.force", "alias.set", "alias.force", "alias.set"]
        assert lines[0] == ("alias.force", "chat", {"verb": "alias.set", "models": ["model-b"]})

    harness.run(body)


def test_conflicts_and_missing_things(harness, error):
    async def body(plane):
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
def test_nothing_but_health_and_metrics_opens_without_the_token(harness, error, token: str | None):
    async def body(plane):
        for method, path in PATHS:
            refused = await plane.client.request(method, path, content=b"{not json")
            error(refused, 401, "invalid_api_key")
            assert refused.headers["www-authenticate"] == "Bearer"

    harness.run(body, token)


def test_a_credential_stands_once_in_one_of_two_headers(harness, error):
    async def body(plane):
        for headers in (
            [("authorization", f"Basic {TOKEN}")],
            [("authorization", TOKEN)],
            [("x-api-key", "")],
            [("cookie", f"token={TOKEN}")],
        ):
            error(await plane.client.get("/admin/keys", headers=headers), 401, "invalid_api_key")
        error(await plane.client.get(f"/admin/keys?token={TOKEN}"), 401, "invalid_api_key")
        for headers in (
            [("authorization", f"Bearer {TOKEN}"), ("authorization", f"Bearer {TOKEN}")],
            [("authorization", f"Bearer {TOKEN}"), ("authorization", "Bearer x")],
            [("x-api-key", TOKEN), ("x-api-key", TOKEN)],
            [("authorization", f"Bearer {TOKEN}"), ("x-api-key", TOKEN)],
        ):
            error(await plane.client.get("/admin/keys", headers=headers), 400, "invalid_request")
        assert (await plane.client.get("/admin/keys", headers={"authorization": f"bEaReR {TOKEN}"})).is_success
        assert (await plane.client.get("/admin/keys", headers={"x-api-key": TOKEN})).is_success

    harness.run(body, None)


def test_health_readiness_and_metrics_are_open(harness):
    async def body(plane):
        opened = {route for route, verb in TABLE.items() if verb == OPEN}
        assert opened == {("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/metrics")}
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
def test_a_bad_order_is_refused_without_an_echo(harness, error, order: Any):
    async def body(plane):
        refused = await plane.client.post("/admin/keys", json=order)
        error(refused, 400, "invalid_request")
        assert CANARY not in refused.text
        assert (await plane.store.list_keys()) == ()
        assert plane.seen["changed"] == 0

    harness.run(body)


@pytest.mark.parametrize("content", [CANARY.encode(), b"{", b'{"name": "x', b"\xff\xfe", b"", b'{"name": NaN}'])
def test_what_is_no_json_is_refused_without_an_echo(harness, error, content: bytes):
    async def body(plane):
        headers = {"content-type": "application/json"}
        refused = await plane.client.post("/admin/keys", content=content, headers=headers)
        error(refused, 400, "invalid_request")
        assert CANARY not in refused.text

    harness.run(body)


@pytest.mark.parametrize("name", ["a@1", "a b", "x" * 65, "a//b", "a/..%2fb", "%2e%2e", "é", "/a", "a/", CANARY + "@"])
def test_a_bad_alias_name_is_refused_without_an_echo(harness, error, name: str):
    async def body(plane):
        refused = await plane.client.put(f"/admin/aliases/{name}", json={"model": "model-a"})
        error(refused, 400, "invalid_request")
        assert CANARY not in refused.text
        assert (await plane.store.alias_table()).current == {}

    harness.run(body)


@pytest.mark.parametrize("field_name", ["note", "model"])
@pytest.mark.parametrize("text", ["a\x1b[31mb", "a\nb", "a\x00", "x" * 300])
def test_text_that_would_act_on_a_terminal_is_refused(harness, error, field_name: str, text: str):
    async def body(plane):
        order = {"model": "model-a", "force": True, field_name: text}
        error(await plane.client.put("/admin/aliases/chat", json=order), 400, "invalid_request")

    harness.run(body)


def test_a_validation_message_helps(harness, error):
    async def body(plane):
        assert error(await plane.client.post("/admin/keys", json={}), 400, "invalid_request") == "name: Field required."
        assert "no body" in error(await plane.client.post("/admin/keys"), 400, "invalid_request")
        refused = await plane.client.post("/admin/keys", json={"name": "ok", "rpm": 5})
        assert error(refused, 400, "invalid_request") == "rpm: Extra inputs are not permitted."
        refused = await plane.client.put("/admin/aliases/a@1", json={"model": "m"})
        assert error(refused, 400, "invalid_request").startswith("name: expected an alias name, 1 to 64 of")

    harness.run(body)


def test_a_large_body_is_refused_before_it_is_parsed(harness, error):
    async def body(plane):
        async def pieces() -> Any:
            for _ in range(100):
                yield b" " * MAX_BODY

        error(await plane.client.post("/admin/keys", content=pieces()), 413, "body_too_large")

    harness.run(body)


def test_unknown_paths_and_methods(harness, error):
    async def body(plane):
        for path in ("/docs", "/redoc", "/openapi.json", "/admin", "/admin/keys/", "/v1/models"):
            error(await plane.client.get(path, headers={"host": "evil.example"}), 404, "not_found")
        error(await plane.client.delete("/admin/keys/x"), 405, "method_not_allowed")

    harness.run(body)


def test_a_store_that_is_gone_is_503_and_says_nothing_of_files(harness, error):
    async def body(plane):
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


def test_a_write_that_was_committed_is_reported_even_if_the_reload_fails(harness):
    async def body(plane):
        plane.seen["fault"] = StoreUnavailable("gone")
        made = await plane.client.post("/admin/keys", json={"name": "app1"})
        assert made.status_code == 201
        assert well_formed(made.json()["key"])

    harness.run(body)


def test_an_unexpected_failure_says_nothing(harness, error):
    async def body(plane):
        plane.seen["fault"] = RuntimeError(CANARY)
        failed = await plane.client.post("/admin/keys", json={"name": "app1"})
        error(failed, 500, "internal_error")
        assert CANARY not in failed.text

    harness.run(body)


def test_the_store_and_its_audit_never_hold_a_key(harness, tmp_path: Path):
    async def body(plane) -> str:
        return str((await plane.client.post("/admin/keys", json={"name": "app1"})).json()["key"])

    key = harness.run(body)
    secret = key.split("_")[3]
    for file in tmp_path.iterdir():
        assert secret[:20].encode() not in file.read_bytes()
        assert json.dumps(secret).encode() not in file.read_bytes()


def test_no_telemetry_of_the_framework(harness, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")

    async def body(plane):
        assert (await plane.client.get("/healthz")).is_success

    harness.run(body)
