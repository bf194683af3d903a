"""The verbs of an alias: as functions over each kind of store, and through the admin API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.admin.aliasing import IN_USE, Actor, apply, change, export, pair, show
from gateway.admin.aliasorders import (
    AbortOrder,
    AliasOrder,
    CanaryOrder,
    DeleteOrder,
    PromoteOrder,
    RollbackOrder,
    TargetOrder,
)
from gateway.admin.errors import AdminRefusal
from gateway.aliasing.plan import PlanFault
from gateway.model import Target
from gateway.policy.document import PolicyFault
from gateway.stores.interfaces import Conflict, NotFound, StoreUnavailable

OPS = Actor("ops", 1_000.0, frozenset({"a", "b", "c"}))
LOCAL = Actor("cli:ops", 1_000.0)


def models(revision: Any) -> list[tuple[str, int]]:
    return [(target.model, target.weight) for target in revision.targets]


async def verbs(store: Any) -> list[str]:
    return [line.verb for line in await store.audit()]


class Between:
    """A store where somebody else writes between what is read and what is written."""

    def __init__(self, store: Any, model: str) -> None:
        self._store = store
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def assign_alias(self, alias: str, targets: Any, **more: Any) -> Any:
        await self._store.assign_alias(alias, (Target(self._model),), author="mallory", at=999.0)
        return await self._store.assign_alias(alias, targets, **more)

    async def delete_alias(self, alias: str, **more: Any) -> Any:
        await self._store.assign_alias(alias, (Target(self._model),), author="mallory", at=999.0)
        return await self._store.delete_alias(alias, **more)


def test_an_alias_lives_through_every_verb(each_store):
    async def body(plane):
        store = plane.store
        assert models(await change(store, "chat", AliasOrder(model="a", expect_revision=0), OPS)) == [("a", 1)]
        await change(store, "chat", AliasOrder(model="b", note="typo"), OPS)
        await change(store, "chat", AliasOrder(model="c"), OPS)
        await store.note_uses({("chat", 1): 900.0, ("chat", 3): 990.0})
        back = await change(store, "chat", RollbackOrder(), OPS)
        assert (models(back), back.number, back.source, back.note) == ([("a", 1)], 4, "rollback", "as revision 1")
        assert models(await change(store, "chat", RollbackOrder(to=2, note="after all"), OPS)) == [("b", 1)]

        trial = await change(store, "chat", CanaryOrder(model="c", weight=10), OPS)
        assert (models(trial), trial.canary_of, trial.source) == ([("b", 90), ("c", 10)], 5, "canary")
        wider = await change(store, "chat", CanaryOrder(model="c", weight=50), OPS)
        assert (models(wider), wider.canary_of) == ([("b", 50), ("c", 50)], 5)
        won = await change(store, "chat", PromoteOrder(), OPS)
        assert (models(won), won.canary_of, won.note) == ([("c", 1)], None, "canary chat@7 promoted")
        await change(store, "chat", CanaryOrder(model="a"), OPS)
        ended = await change(store, "chat", AbortOrder(), OPS)
        assert (models(ended), ended.note) == ([("c", 1)], "canary chat@9 aborted, as revision 8")

        gone = await change(store, "chat", DeleteOrder(force=True), OPS)
        assert (gone.number, (await store.alias_table()).current) == (10, {})
        with pytest.raises(NotFound):
            await show(store, "chat")
        assert (await show(store, "chat", 7)).number == 7
        revived = await change(store, "chat", RollbackOrder(), OPS)
        assert (models(revived), revived.number) == ([("c", 1)], 11)
        assert await verbs(store) == [
            *["alias.set"] * 3,
            *["alias.rollback"] * 2,
            *["alias.canary"] * 2,
            "alias.promote",
            "alias.canary",
            "alias.abort",
            "alias.force",
            "alias.delete",
            "alias.rollback",
        ]
        assert (await store.versions()).aliases == 12

    each_store.run(body)


@pytest.mark.parametrize(
    "order", [RollbackOrder(), RollbackOrder(to=1), CanaryOrder(model="c"), AbortOrder(), PromoteOrder(), DeleteOrder()]
)
def test_whoever_is_first_is_named_and_nothing_is_overwritten(each_store, order):
    async def body(plane):
        store = plane.store
        await change(store, "chat", AliasOrder(model="a"), OPS)
        await change(store, "chat", AliasOrder(model="b"), OPS)
        if isinstance(order, AbortOrder | PromoteOrder):
            await change(store, "chat", CanaryOrder(model="c"), OPS)
        with pytest.raises(Conflict, match=r"\(theirs, set by mallory at 1970-01-01T00:16:39Z\)"):
            await change(Between(store, "theirs"), "chat", order, OPS)
        assert models(await show(store, "chat")) == [("theirs", 1)]

    each_store.run(body)


def test_what_the_caller_expects_counts_for_more_than_what_was_read(harness):
    async def body(plane):
        for model in "ab":
            await change(plane.store, "chat", AliasOrder(model=model), OPS)
        for order in (RollbackOrder(expect_revision=1), CanaryOrder(model="c", expect_revision=1)):
            with pytest.raises(Conflict, match="at revision 2"):
                await change(plane.store, "chat", order, OPS)
        with pytest.raises(Conflict):
            await change(plane.store, "chat", DeleteOrder(expect_revision=1), OPS)
        assert (await change(plane.store, "chat", RollbackOrder(expect_revision=2), OPS)).number == 3

    harness.run(body)


def test_no_verb_moves_traffic_to_a_model_that_nobody_serves_unless_forced(harness):
    async def body(plane):
        store, later = plane.store, Actor("ops", 1_000.0, ["b"])
        await change(store, "chat", AliasOrder(model="a"), OPS)
        await change(store, "chat", AliasOrder(model="b"), OPS)
        await change(store, "trial", AliasOrder(model="a"), OPS)
        await change(store, "trial", CanaryOrder(model="c"), OPS)
        split = [TargetOrder(model="b"), TargetOrder(model="gone")]
        tries = [
            ("chat", RollbackOrder(), ["a"]),
            ("chat", CanaryOrder(model="c"), ["c"]),
            ("chat", AliasOrder(targets=split), ["gone"]),
            ("trial", PromoteOrder(), ["c"]),
        ]
        before = await store.audit_head()
        for alias, order, models in tries:
            with pytest.raises(AdminRefusal, match="invalid_request") as refused:
                await change(store, alias, order, later)
            assert refused.value.spec.code == "model_not_served"
            assert f"No replica serves {' or '.join(models)} now. Served: b." in refused.value.message
        with pytest.raises(AdminRefusal):
            await change(store, "trial", AbortOrder(), Actor("ops", 1_000.0, []))
        assert await store.audit_head() == before
        for alias, order, _ in tries:
            await change(store, alias, order.model_copy(update={"force": True}), later)
            if alias == "chat":
                await change(store, "chat", AliasOrder(model="b"), OPS)
        forced = [json.loads(line.detail) for line in await store.audit() if line.verb == "alias.force"]
        assert [one["models"] for one in forced] == [missing for _, _, missing in tries]
        assert [one["verb"] for one in forced] == ["alias.rollback", "alias.canary", "alias.set", "alias.promote"]

    harness.run(body)


def test_where_nothing_is_known_of_replicas_nothing_is_refused_and_force_is_on_record(harness):
    async def body(plane):
        await change(plane.store, "chat", AliasOrder(model="any"), LOCAL)
        assert await verbs(plane.store) == ["alias.set"]
        await change(plane.store, "chat", AliasOrder(model="other", force=True), LOCAL)
        assert await verbs(plane.store) == ["alias.set", "alias.force", "alias.set"]

    harness.run(body)


def test_an_alias_in_use_is_deleted_only_by_force(harness):
    async def body(plane):
        store = plane.store
        await change(store, "chat", AliasOrder(model="a"), OPS)
        await store.note_uses({("chat", 1): 1_000.0})
        for now in (1_000.0, 1_000.0 + IN_USE):
            with pytest.raises(AdminRefusal) as refused:
                await change(store, "chat", DeleteOrder(), Actor("ops", now))
            assert refused.value.spec.code == "alias_in_use"
        assert "60 minutes ago" in refused.value.message
        await change(store, "chat", DeleteOrder(), Actor("ops", 1_000.1 + IN_USE))
        assert await verbs(store) == ["alias.set", "alias.delete"]
        with pytest.raises(NotFound):
            await change(store, "chat", DeleteOrder(), OPS)

    harness.run(body)


def test_a_pair_is_the_last_two_or_what_is_asked_for(harness):
    async def body(plane):
        for model in "abc":
            await change(plane.store, "chat", AliasOrder(model=model), OPS)

        async def numbers(*asked: int | None) -> list[int]:
            return [one.number for one in await pair(plane.store, "chat", *asked)]

        assert await numbers(None, None) == [2, 3]
        assert await numbers(1, None) == [1, 3]
        assert await numbers(3, 1) == [3, 1]
        assert await numbers(None, 2) == [1, 2]
        with pytest.raises(AdminRefusal):
            await numbers(None, 1)
        with pytest.raises(NotFound):
            await numbers(9, None)

    harness.run(body)


def test_a_table_is_exported_and_applied(each_store):
    async def body(plane):
        store = plane.store
        await change(store, "chat", AliasOrder(model="a", note="n"), OPS)
        await change(store, "old", AliasOrder(model="a"), OPS)
        text = await export(store)
        assert await apply(store, text, OPS, prune=True) == []
        wanted = "aliases:\n  chat: {model: b}\n  new: {targets: [{model: a, weight: 90}, {model: c, weight: 10}]}\n"
        assert len(await apply(store, wanted, OPS, prune=True)) == 3
        table = (await store.alias_table()).current
        assert {name: models(held) for name, held in table.items()} == {
            "chat": [("b", 1)],
            "new": [("a", 90), ("c", 10)],
        }
        assert {held.source for held in table.values()} == {"file"}
        await apply(store, text, OPS)
        assert sorted((await store.alias_table()).current) == ["chat", "new", "old"]
        with pytest.raises(PolicyFault, match="expected either model or targets"):
            await apply(store, "aliases: {x: {}}", OPS)
        await change(store, "chat", CanaryOrder(model="c"), OPS)
        with pytest.raises(PlanFault, match="promote or abort"):
            await apply(store, text, OPS)
        await apply(store, text, OPS, force=True)
        assert models(await show(store, "chat")) == [("a", 1)]

    each_store.run(body)


def test_a_whole_trial_through_the_admin_api(each_store, error):
    async def body(plane):
        plane.seen["served"] = ["a", "b"]
        client = plane.client
        first = (await client.put("/admin/aliases/team/chat", json={"model": "a"})).json()
        begun = await client.post("/admin/alias-canary/team/chat", json={"model": "b", "weight": 20})
        assert begun.json() == {
            **first,
            "revision": 2,
            "targets": [{"model": "a", "weight": 80}, {"model": "b", "weight": 20}],
            "source": "canary",
            "canary_of": 1,
            "generation": 2,
        }
        again = await client.post("/admin/alias-canary/team/chat", json={"model": "c", "force": True})
        assert "promote or abort it first" in error(again, 409, "change_refused")
        assert (await client.post("/admin/alias-abort/team/chat")).json()["targets"] == first["targets"]
        assert "no canary of team/chat" in error(
            await client.post("/admin/alias-promote/team/chat", json={}), 409, "change_refused"
        )
        await client.post("/admin/alias-canary/team/chat", json={"model": "b"})
        assert (await client.post("/admin/alias-promote/team/chat", json={"note": "won"})).json()["note"] == "won"
        back = await client.post("/admin/alias-rollback/team/chat", json={"to": 1})
        assert (back.json()["targets"], back.json()["generation"]) == (first["targets"], 6)
        assert plane.seen["changed"] == 6
        ended = await client.request("DELETE", "/admin/aliases/team/chat", json={"note": "over"})
        assert (ended.status_code, ended.json()["revision"], ended.json()["generation"]) == (200, 6, 7)
        error(await client.delete("/admin/aliases/team/chat"), 404, "no_such_object")
        assert (await client.post("/admin/alias-rollback/team/chat")).json()["revision"] == 7

    each_store.run(body)


def test_what_an_alias_was_is_read_through_the_admin_api(harness, error):
    async def body(plane):
        plane.seen["served"] = ["a", "b", "c"]
        client = plane.client
        for model in ("a", "b", "c"):
            await client.put("/admin/aliases/team/chat", json={"model": model})
        await plane.store.note_uses({("team/chat", 2): 900.0})
        page = (await client.get("/admin/alias-history/team/chat?limit=2")).json()
        assert [(one["revision"], one["current"], one["used_at"]) for one in page["revisions"]] == [
            (3, True, None),
            (2, False, 900.0),
        ]
        rest = (await client.get(f"/admin/alias-history/team/chat?before={page['next']}")).json()
        assert ([one["revision"] for one in rest["revisions"]], rest["next"]) == ([1], None)
        shown = (await client.get("/admin/aliases/team/chat@2")).json()
        assert (shown["revision"], shown["targets"]) == (2, [{"model": "b", "weight": 1}])
        told = (await client.get("/admin/alias-diff/team/chat?old=1")).json()
        assert (told["old"]["revision"], told["new"]["revision"]) == (1, 3)
        assert told["differences"] == [
            {"what": "a", "before": "100 %", "after": ""},
            {"what": "c", "before": "", "after": "100 %"},
        ]
        for missing in ("aliases/team/chat@9", "alias-history/none", "alias-diff/none", "alias-compare/none"):
            error(await client.get(f"/admin/{missing}"), 404, "no_such_object")
        bad = ("aliases/chat@0", "aliases/chat@x", "aliases/chat@1@2", "alias-history/a@1", "alias-history/a?before=0")
        for path in (*bad, "alias-history/a?limit=501", "alias-diff/a?old=0", "alias-diff/a?of=1"):
            error(await client.get(f"/admin/{path}"), 400, "invalid_request")

    harness.run(body)


def test_a_trial_is_compared_through_the_admin_api(harness, error):
    async def body(plane):
        plane.seen["served"] = ["a", "b"]
        await plane.client.put("/admin/aliases/chat", json={"model": "a"})
        refused = await plane.client.get("/admin/alias-compare/chat")
        assert "nothing to compare" in error(refused, 409, "change_refused")
        await plane.client.post("/admin/alias-canary/chat", json={"model": "b"})
        plane.seen["tracks"] = {"chat": {"stable": {"requests": 1_000, "errors": 0}}}
        told = (await plane.client.get("/admin/alias-compare/chat")).json()
        assert (told["alias"]["revision"], told["stable"]["requests"], told["canary"]["requests"]) == (2, 1_000, 0)
        assert {row["verdict"] for row in told["rows"]} == {"not enough data"}

    harness.run(body)


def test_a_store_that_fails_just_after_a_change_does_not_undo_it(harness, monkeypatch):
    async def body(plane):
        async def gone() -> None:
            raise StoreUnavailable("gone")

        monkeypatch.setattr(plane.store, "versions", gone)
        plane.seen["fault"] = StoreUnavailable("gone")
        made = await plane.client.put("/admin/aliases/chat", json={"model": "model-a"})
        assert (made.status_code, made.json()["revision"], made.json()["generation"]) == (200, 1, None)

    harness.run(body)
