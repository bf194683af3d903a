"""What every state store does for aliases with a history and for running instances."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gateway.model import Instance, Revision, Target
from gateway.stores.aliases import name_served_models
from gateway.stores.interfaces import Conflict, NotFound, StateStore, Versions
from tests.unit.stores.test_store import opened, run, whole_trail

TRIAL = (Target("m1", 90), Target("m2", 10))
HERE = Instance("i1", "gw-1", "1.2", "http://127.0.0.1:9090", 100.0, 150.5, 7, 0.25, degraded=True)


async def assign(store: StateStore, model: str = "m1", alias: str = "chat", **more: Any) -> Revision:
    return await store.assign_alias(alias, [Target(model)], **{"author": "ann", "at": 1.0, **more})


async def delete(store: StateStore, alias: str = "chat", **more: Any) -> Revision:
    return await store.delete_alias(alias, **{"author": "bob", "at": 9.0, **more})


def test_a_revision_says_what_it_tries_to_replace(url: str) -> None:
    async def body(store: StateStore) -> None:
        first = await assign(store)
        trial = await store.assign_alias("chat", TRIAL, author="ann", at=2.0, source="canary", canary_of=1)
        assert (first.canary_of, trial.canary_of, trial.track("m2")) == (None, 1, "canary")
        assert (await store.alias_table()).current["chat"] == trial
        assert await store.alias_revision("chat", 2) == trial
        assert list(await store.alias_history("chat")) == [first, trial]

    run(url, body)


def test_a_deleted_alias_leaves_the_table_and_keeps_its_history(url: str) -> None:
    async def body(store: StateStore) -> None:
        first, other = await assign(store), await assign(store, alias="code")
        second = await assign(store, "m2")
        assert await delete(store) == second
        table = await store.alias_table()
        assert (dict(table.current), table.generation) == ({"code": other}, 4)
        assert list(await store.alias_history("chat")) == [first, second]
        assert [await store.alias_revision("chat", number) for number in (1, 2)] == [first, second]
        with pytest.raises(NotFound):
            await delete(store)
        assert (await store.versions()).aliases == 4

    run(url, body)


@pytest.mark.parametrize("expected", [None, 0])
def test_numbers_go_on_after_a_deletion(url: str, expected: int | None) -> None:
    async def body(store: StateStore) -> None:
        for number in (1, 3, 5):
            made = await assign(store, expect_revision=expected)
            assert made.number == number
            await assign(store)
            await delete(store, expect_revision=number + 1)
        assert [revision.number for revision in await store.alias_history("chat")] == list(range(1, 7))

    run(url, body)


def test_what_was_never_made_is_not_found(url: str) -> None:
    async def body(store: StateStore) -> None:
        await assign(store)
        for alias, number in (("chat", 0), ("chat", 2), ("other", 1)):
            with pytest.raises(NotFound):
                await store.alias_revision(alias, number)
        for expected in (None, 0):
            with pytest.raises(NotFound):
                await delete(store, "other", expect_revision=expected)
        assert len(await whole_trail(store)) == 1

    run(url, body)


IS_AT = "chat is at revision 2 (m1 (90), m2 (10), set by bob at 2023-11-14T22:13:20Z); revision {} was expected"
WAS_DELETED = "chat was deleted at revision 2 (by cid at 2023-11-14T22:13:20Z); revision {} was expected"
IS_NOT = "other does not exist; revision {} was expected"


@pytest.mark.parametrize("verb", [assign, delete])
@pytest.mark.parametrize(
    ("alias", "deleted", "expected", "words"),
    [
        ("chat", False, 1, IS_AT),
        ("chat", False, 3, IS_AT),
        ("chat", True, 2, WAS_DELETED),
        ("chat", True, 3, WAS_DELETED),
        ("other", False, 1, IS_NOT),
    ],
)
def test_a_lost_compare_and_set_says_who_when_and_what(
    url: str, verb: Any, alias: str, deleted: bool, expected: int, words: str
) -> None:
    async def body(store: StateStore) -> None:
        await assign(store)
        await store.assign_alias("chat", TRIAL, author="bob", at=1_700_000_000.9, expect_revision=1)
        if deleted:
            await delete(store, author="cid", at=1_700_000_000.0, expect_revision=2)
        before = await store.versions(), await store.alias_table(), await store.audit_head()
        with pytest.raises(Conflict) as raised:
            await verb(store, alias=alias, expect_revision=expected)
        assert str(raised.value) == words.format(expected)
        assert (await store.versions(), await store.alias_table(), await store.audit_head()) == before

    run(url, body)


@pytest.mark.parametrize("expected", [0, 3])
def test_an_alias_that_is_there_again_is_told_of_as_it_is(url: str, expected: int) -> None:
    async def body(store: StateStore) -> None:
        await assign(store)
        await delete(store)
        await assign(store, author="eve")
        with pytest.raises(Conflict, match=r"is at revision 2 \(m1, set by eve"):
            await assign(store, expect_revision=expected)

    run(url, body)


def test_a_line_of_the_trail_tells_what_was_done(url: str) -> None:
    async def body(store: StateStore) -> None:
        await assign(store, source="file")
        await store.assign_alias("chat", TRIAL, author="ann", at=2.0, source="canary", canary_of=1)
        await assign(store, "m2", source="canary")
        await assign(store, "m1", source="rollback", note="to 1")
        await store.assign_alias("chat", TRIAL, author="ann", at=2.0, source="canary", canary_of=4)
        await assign(store, "m1", source="rollback")
        await delete(store, note="old")
        await assign(store, "m1", source="rollback")
        await assign(store, "m3", source="automatic")
        lines = await whole_trail(store)
        assert [(line.verb, line.subject) for line in lines] == [
            (f"alias.{verb}", "chat")
            for verb in ("set", "canary", "promote", "rollback", "canary", "abort", "delete", "rollback", "set")
        ]
        details = [json.loads(line.detail) for line in lines]
        assert [detail["revision"] for detail in details] == [1, 2, 3, 4, 5, 6, 6, 7, 8]
        assert [detail.get("from") for detail in details] == [0, 1, 2, 3, 4, 5, None, 0, 7]
        assert [detail.get("canary_of") for detail in details] == [None, 1, None, None, 4, None, None, None, None]
        assert details[1]["targets"] == [["m1", 90], ["m2", 10]]
        assert details[6] == {"revision": 6, "targets": [["m1", 1]], "note": "old"}
        assert (lines[6].author, lines[6].at) == ("bob", 9.0)

    run(url, body)


def test_of_many_racing_deletions_and_assignments_each_is_of_what_it_expected(url: str) -> None:
    async def attempt(store: StateStore, who: int) -> list[int]:
        won = []
        for expected in range(6):
            try:
                verb = delete if expected % 2 and who % 2 else assign
                won.append((await verb(store, expect_revision=expected)).number)
            except (Conflict, NotFound):
                continue
        return won

    async def body(store: StateStore) -> None:
        async with opened(url) as other:
            won = await asyncio.gather(*(attempt(one, n) for n, one in enumerate((store, other) * 4)))
        numbers = [revision.number for revision in await store.alias_history("chat")]
        lines = await whole_trail(store)
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(lines) == sum(map(len, won)) == (await store.versions()).aliases
        made = [json.loads(line.detail)["revision"] for line in lines if line.verb == "alias.set"]
        assert made == numbers

    run(url, body)


def test_the_last_use_of_a_revision_is_kept(url: str) -> None:
    async def body(store: StateStore) -> None:
        await assign(store)
        before = await store.versions(), await store.audit_head()
        assert dict(await store.alias_uses("chat")) == {}
        await store.note_uses({})
        await store.note_uses({("chat", 1): 1_700_000_000.123456, ("chat", 2): 5.0, ("co:de", 1): 7.0})
        async with opened(url) as other:
            await other.note_uses({("chat", 1): 1_700_000_000.123455, ("chat", 2): 6.0, ("chat", 10): 0.0})
        assert list((await store.alias_uses("chat")).items()) == [(1, 1_700_000_000.123456), (2, 6.0), (10, 0.0)]
        assert dict(await store.alias_uses("co:de")) == {1: 7.0}
        assert (await store.versions(), await store.audit_head()) == before
        await delete(store)
        assert len(await store.alias_uses("chat")) == 3

    run(url, body)


def test_many_uses_are_noted_at_once(url: str) -> None:
    uses: Mapping[tuple[str, int], float] = {(f"a{n % 300}", n): float(n) for n in range(1_000)}

    async def body(store: StateStore) -> None:
        await store.note_uses(uses)
        assert dict(await store.alias_uses("a7")) == {7: 7.0, 307: 307.0, 607: 607.0, 907: 907.0}

    run(url, body)


def test_an_instance_is_known_by_its_last_heartbeat_until_it_ends(url: str) -> None:
    older = Instance("i2", 'gw "2"\n', "1.1", "", 90.0, 151.0, 6)

    async def body(store: StateStore) -> None:
        assert list(await store.instances()) == []
        await store.beat(HERE)
        await store.beat(older)
        async with opened(url) as other:
            assert list(await other.instances()) == [older, HERE]
            later = replace(HERE, seen_at=152.0, generation=8, degraded=False)
            await other.beat(later)
        found = await store.instances()
        assert list(found) == [older, later]
        assert found[1].degraded is False
        for name in ("i1", "i1", "unknown"):
            await store.forget_instance(name)
        assert list(await store.instances()) == [older]
        assert (await store.versions(), (await store.audit_head())[0]) == (Versions(0, 0), 0)

    run(url, body)


def test_an_instance_that_was_silent_for_an_hour_is_forgotten(url: str) -> None:
    async def body(store: StateStore) -> None:
        await store.beat(replace(HERE, id="gone", seen_at=1_000.0))
        await store.beat(replace(HERE, id="kept", seen_at=1_500.0))
        await store.beat(replace(HERE, id="new", seen_at=4_600.0))
        assert {one.id for one in await store.instances()} == {"gone", "kept", "new"}
        await store.beat(replace(HERE, id="new", seen_at=5_000.0))
        assert {one.id for one in await store.instances()} == {"kept", "new"}
        await store.beat(replace(HERE, id="newer", seen_at=5_100.5))
        await store.forget_instance("new")
        await store.forget_instance("newer")
        assert list(await store.instances()) == []

    run(url, body)


def test_heartbeats_and_uses_do_not_disturb_writes(url: str) -> None:
    async def writes(store: StateStore) -> None:
        for number in range(20):
            assert (await assign(store, expect_revision=number)).number == number + 1

    async def beats(store: StateStore) -> None:
        for number in range(40):
            await store.beat(replace(HERE, seen_at=float(number)))
            await store.note_uses({("chat", 1): float(number)})
            await store.forget_instance("i1")

    async def body(store: StateStore) -> None:
        async with opened(url) as other:
            await asyncio.gather(writes(store), beats(other), beats(store))
        assert len(await whole_trail(store)) == 20
        assert dict(await store.alias_uses("chat")) == {1: 39.0}

    run(url, body)


def test_an_alias_of_a_served_model_that_was_deleted_does_not_come_back_by_itself(url: str) -> None:
    async def body(store: StateStore) -> None:
        made = await name_served_models(store, {"m1": "m1", "m2": "m2"}, lambda: 5.0)
        assert [(one.alias, one.targets, one.source) for one in made] == [
            ("m1", (Target("m1"),), "automatic"),
            ("m2", (Target("m2"),), "automatic"),
        ]
        await delete(store, "m1")
        served = {name: name for name in ("m1", "m2", "m3")}
        assert await name_served_models(store, served, lambda: 6.0) == [await store.alias_revision("m3", 1)]
        assert set((await store.alias_table()).current) == {"m2", "m3"}

    run(url, body)
