"""``/admin/policy`` as its clients see it."""

from __future__ import annotations

from gateway.admin.rules import ExplanationView


def test_the_standing_of_the_policy(harness):
    async def body(plane):
        standing = await plane.client.get("/admin/policy")
        assert standing.json() == {"valid": True, "epoch": 0, "loaded_at": 1_000.0, "faults": []}
        plane.seen["news"].refused("access.yaml:3: roles: expected a mapping")
        plane.seen["policies"].valid = False
        assert (await plane.client.get("/admin/policy")).json()["faults"] == [
            "access.yaml:3: roles: expected a mapping"
        ]

    harness.run(body)


def test_a_key_and_an_alias_are_explained(harness, error):
    async def body(plane):
        await plane.key("app1", tenant="acme")
        told = await plane.client.get("/admin/policy/explain?key=app1&alias=acme-chat")
        view = ExplanationView.model_validate_json(told.content)
        assert set(told.json()) == set(ExplanationView.model_fields)
        assert (view.name, view.allowed, view.code) == ("app1", True, "model_not_found")
        assert (await plane.client.put("/admin/aliases/acme-chat", json={"model": "model-a"})).is_success
        assert (await plane.client.get("/admin/policy/explain?key=app1&alias=acme-chat")).json()["code"] is None
        other = (await plane.client.get("/admin/policy/explain?key=app1&alias=chat")).json()
        assert (other["allowed"], other["status"]) == (False, 404)
        error(await plane.client.get("/admin/policy/explain?key=none&alias=chat"), 404, "no_such_object")
        for bad in ("key=app1", "alias=chat", "key=a%20b&alias=chat", "key=app1&alias=a@1", "key=app1&alias=chat&as=x"):
            error(await plane.client.get(f"/admin/policy/explain?{bad}"), 400, "invalid_request")

    harness.run(body)
