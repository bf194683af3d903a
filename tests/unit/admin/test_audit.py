"""``/admin/audit`` as its clients see it."""

from __future__ import annotations

import json
import sqlite3

from gateway.stores.chain import GENESIS


async def written(plane, count):
    for number in range(count):
        plane.seen["now"] += 1
        assert (await plane.client.post("/admin/keys", json={"name": f"app{number}"})).status_code == 201


def tamper(harness, *statements):
    """Change the file behind the store's back, its guards removed first."""
    with sqlite3.connect(harness.folder / "state.db", isolation_level=None) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            db.execute(statement)
    db.close()


def test_lines_are_listed_page_by_page_with_the_newest(harness, error):
    async def body(plane):
        empty = (await plane.client.get("/admin/audit")).json()
        assert empty == {"lines": [], "head": {"number": 0, "hash": GENESIS.hex()}}
        await written(plane, 5)
        page = (await plane.client.get("/admin/audit?after=1&limit=2")).json()
        assert [line["number"] for line in page["lines"]] == [2, 3]
        assert page["head"]["number"] == 5
        line = page["lines"][0]
        assert set(line) == {"number", "at", "author", "verb", "subject", "detail", "previous", "hash"}
        assert (line["author"], line["verb"], line["at"]) == ("admin-token", "key.create", 1_002.0)
        assert json.loads(line["detail"])["name"] == "app1"
        for bad in ("after=-1", "after=x", "limit=0", "limit=501", "verb=key.create"):
            error(await plane.client.get(f"/admin/audit?{bad}"), 400, "invalid_request")

    harness.run(body)


def test_a_whole_trail_is_proved_and_held_against_what_was_kept(harness, error):
    async def body(plane):
        await written(plane, 3)
        head = (await plane.client.get("/admin/audit")).json()["head"]
        whole = {"whole": True, "lines": 3, "head": head["hash"], "broken_at": None, "fault": None}
        assert (await plane.client.get("/admin/audit/verify")).json() == whole
        kept = f"3:{head['hash']}"
        assert (await plane.client.get(f"/admin/audit/verify?expect={kept}")).json() == whole
        other = (await plane.client.get(f"/admin/audit/verify?expect=3:{'0' * 64}")).json()
        assert (other["whole"], other["broken_at"], other["fault"]) == (False, 3, "expected")
        for bad in ("expect=3", "expect=x", "deep=1"):
            error(await plane.client.get(f"/admin/audit/verify?{bad}"), 400, "invalid_request")

    harness.run(body)


def test_a_trail_that_was_tampered_with_is_named_by_its_line(harness):
    async def body(plane):
        await written(plane, 5)
        tamper(harness, "UPDATE audit SET author = 'key:other' WHERE number = 3")
        verdict = (await plane.client.get("/admin/audit/verify")).json()
        assert (verdict["whole"], verdict["broken_at"], verdict["fault"], verdict["lines"]) == (False, 3, "changed", 2)

    harness.run(body)


def test_a_write_whose_audit_line_cannot_be_written_is_refused_whole(harness, error):
    async def body(plane):
        text = await plane.key("app1")
        tamper(
            harness,
            "CREATE TRIGGER full BEFORE INSERT ON audit BEGIN SELECT RAISE(ABORT, 'no room'); END",
        )
        before = await plane.store.versions()
        for call in (
            plane.client.post("/admin/keys", json={"name": "app2"}),
            plane.client.post("/admin/keys/app1/revoke"),
            plane.client.post("/admin/keys/app1/rotate"),
            plane.client.put("/admin/aliases/chat", json={"model": "model-a"}),
            plane.client.put("/admin/aliases/chat", json={"model": "model-b", "force": True}),
        ):
            refused = await call
            error(refused, 503, "store_unavailable")
            assert text not in refused.text
        assert await plane.store.versions() == before
        (key,) = await plane.store.list_keys()
        assert (key.name, key.revoked_at, len(key.secrets)) == ("app1", None, 1)
        assert (await plane.store.alias_table()).current == {}
        assert plane.seen["changed"] == 0

    harness.run(body)


def test_each_author_stands_in_the_trail_under_its_own_name(harness):
    async def body(plane):
        text = await plane.key("ops", "admin")
        key_id = text.split("_")[2]
        mine = {"authorization": f"Bearer {text}"}
        assert (await plane.client.post("/admin/keys", json={"name": "app1"}, headers=mine)).status_code == 201
        assert (await plane.client.put("/admin/aliases/chat", json={"model": "model-a"}, headers=mine)).is_success
        authors = [line.author for line in await plane.store.audit()]
        assert authors == ["test", f"key:{key_id} (ops)", f"key:{key_id} (ops)"]

    harness.run(body)
