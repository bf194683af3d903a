"""What every state store must do, whatever it keeps its data in."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.model import Limits, Target
from gateway.stores.chain import GENESIS, first_break
from gateway.stores.interfaces import (
    AuditEntry,
    Conflict,
    FoundKey,
    KeyRecord,
    KeySecret,
    NotFound,
    StateStore,
    StoreUnavailable,
)
from gateway.stores.open import open_store


def mark(text: str) -> bytes:
    """A keyed hash, as far as a store can tell."""
    return hashlib.sha256(text.encode()).digest()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[StateStore]:
    store = await open_store(url)
    try:
        yield store
    finally:
        await store.close()


def run(url: str, body: Callable[[StateStore], Awaitable[Any]]) -> Any:
    async def with_store() -> Any:
        async with opened(url) as store:
            return await body(store)

    return asyncio.run(with_store())


def key(key_id: str = "AAAAAAAA", name: str = "app", **more: Any) -> KeyRecord:
    values: dict[str, Any] = {"tenant": "t1", "roles": ("user",), "aliases": ("chat-*",), "created_at": 100.0, **more}
    return KeyRecord(id=key_id, name=name, **{"secrets": (KeySecret(values["created_at"]),), **values})


async def whole_trail(store: StateStore) -> Sequence[AuditEntry]:
    """Every line of the audit trail, which is whole and ends where the head says."""
    lines = await store.audit()
    assert first_break(lines) is None
    number, seal = await store.audit_head()
    assert number == len(lines)
    assert seal == (lines[-1].hash if lines else GENESIS)
    return lines


def test_a_key_comes_back_as_it_was_stored(url: str) -> None:
    limits = Limits(requests_per_minute=60, tokens_per_day=10**12)
    record = key(expires_at=500.5, limits=limits, secrets=(KeySecret(100.0, 450.25, pepper_version=3),))

    async def body(store: StateStore) -> None:
        await store.add_key(mark("1"), record, author="ann")
        assert await store.find_key(mark("1")) == FoundKey(record, record.secrets[0])
        assert await store.find_key(mark("2")) is None
        assert await store.get_key("AAAAAAAA") == record
        assert await store.get_key("app") == record
        assert list(await store.list_keys()) == [record]

    run(url, body)


def test_a_key_without_roles_aliases_or_limits_comes_back_too(url: str) -> None:
    record = key(name="é\u2028\0name", roles=(), aliases=(), tenant='a"b')

    async def body(store: StateStore) -> None:
        await store.add_key(bytes(32), record, author="ann")
        assert await store.get_key("AAAAAAAA") == record
        assert await store.find_key(bytes(32)) == FoundKey(record, record.secrets[0])

    run(url, body)


def test_keys_are_listed_oldest_first(url: str) -> None:
    async def body(store: StateStore) -> list[str]:
        for number, created_at in ((1, 300.0), (2, 100.0), (3, 200.0), (4, 200.0)):
            record = key(f"id{number}", f"n{number}", created_at=created_at)
            await store.add_key(mark(str(number)), record, author="ann")
        await store.rotate_key("n2", mark("5"), KeySecret(400.0), overlap_until=500.0, author="ann")
        return [record.name for record in await store.list_keys()]

    assert run(url, body) == ["n2", "n3", "n4", "n1"]


@pytest.mark.parametrize(
    ("second", "digest"),
    [
        (key("AAAAAAAA", "other"), mark("2")),
        (key("BBBBBBBB", "app"), mark("2")),
        (key("BBBBBBBB", "AAAAAAAA"), mark("2")),
        (key("BBBBBBBB", "other"), mark("1")),
    ],
    ids=["same id", "same name", "name is another's id", "same digest"],
)
def test_a_taken_key_is_a_conflict_and_changes_nothing(url: str, second: KeyRecord, digest: bytes) -> None:
    async def body(store: StateStore) -> None:
        await store.add_key(mark("1"), key(), author="ann")
        before = await store.versions()
        with pytest.raises(Conflict, match="AAAAAAAA"):
            await store.add_key(digest, second, author="ann")
        assert await store.versions() == before
        assert list(await store.list_keys()) == [key()]
        assert len(await whole_trail(store)) == 1

    run(url, body)


@pytest.mark.parametrize("first", [key(revoked_at=150.0), key(expires_at=199.0)], ids=["revoked", "expired"])
def test_the_name_of_a_dead_key_is_free_and_means_the_newest(url: str, first: KeyRecord) -> None:
    async def body(store: StateStore) -> None:
        await store.add_key(mark("1"), first, author="ann")
        second = key("BBBBBBBB", created_at=200.0)
        await store.add_key(mark("2"), second, author="ann")
        assert await store.get_key("app") == second

    run(url, body)


def test_revoking_is_idempotent_and_ends_every_secret(url: str) -> None:
    async def body(store: StateStore) -> None:
        await store.add_key(mark("1"), key(), author="ann")
        await store.rotate_key("app", mark("2"), KeySecret(120.0), overlap_until=500.0, author="ann")
        revoked = await store.revoke_key("app", at=150.0, author="bob")
        assert revoked == key(revoked_at=150.0, secrets=(KeySecret(120.0, 150.0), KeySecret(100.0, 150.0)))
        for digest, secret in ((mark("2"), revoked.secrets[0]), (mark("1"), revoked.secrets[1])):
            found = await store.find_key(digest)
            assert found == FoundKey(revoked, secret)
            assert not found.live(140.0)
        moved = await store.versions()
        assert await store.revoke_key("AAAAAAAA", at=160.0, author="bob") == revoked
        assert await store.versions() == moved
        assert [line.verb for line in await whole_trail(store)] == ["key.create", "key.rotate", "key.revoke"]

    run(url, body)


def test_a_rotation_adds_a_secret_and_bounds_the_one_before(url: str) -> None:
    async def body(store: StateStore) -> None:
        await store.add_key(mark("1"), key(limits=Limits(concurrency=4)), author="ann")
        second = KeySecret(200.0, pepper_version=2)
        rotated = await store.rotate_key("app", mark("2"), second, overlap_until=300.0, author="bob")
        assert rotated == key(limits=Limits(concurrency=4), secrets=(second, KeySecret(100.0, 300.0)))
        assert await store.get_key("AAAAAAAA") == rotated
        assert list(await store.list_keys()) == [rotated]
        old, new = await store.find_key(mark("1")), await store.find_key(mark("2"))
        assert (old, new) == (FoundKey(rotated, KeySecret(100.0, 300.0)), FoundKey(rotated, second))
        assert old is not None
        assert (old.live(299.9), old.live(300.0), old.expires_at) == (True, False, 300.0)

    run(url, body)


def test_a_rotation_never_makes_a_secret_live_longer(url: str) -> None:
    first = KeySecret(100.0, 250.0)

    async def body(store: StateStore) -> None:
        await store.add_key(mark("1"), key(secrets=(first,)), author="ann")
        second = KeySecret(200.0, 400.0)
        rotated = await store.rotate_key("AAAAAAAA", mark("2"), second, overlap_until=300.0, author="bob")
        assert rotated.secrets == (second, first)
        again = await store.rotate_key("app", mark("3"), KeySecret(260.0), overlap_until=260.0, author="bob")
        assert again.secrets == (KeySecret(260.0), KeySecret(200.0, 260.0), first)

    run(url, body)


def test_a_key_has_at_most_two_live_secrets(url: str) -> None:
    async def body(store: StateStore) -> None:
        await store.add_key(mark("1"), key(), author="ann")
        await store.rotate_key("app", mark("2"), KeySecret(200.0), overlap_until=300.0, author="bob")
        before = await store.versions(), await store.get_key("app")
        with pytest.raises(Conflict, match="AAAAAAAA"):
            await store.rotate_key("app", mark("3"), KeySecret(299.0), overlap_until=400.0, author="bob")
        assert (await store.versions(), await store.get_key("app")) == before
        assert await store.find_key(mark("3")) is None
        third = await store.rotate_key("app", mark("3"), KeySecret(300.0), overlap_until=400.0, author="bob")
        assert [secret.expires_at for secret in third.secrets] == [None, 400.0, 300.0]
        assert len(await whole_trail(store)) == 3

    run(url, body)


@pytest.mark.parametrize("ended", [key(revoked_at=150.0), key(expires_at=200.0)], ids=["revoked", "expired"])
def test_a_key_that_has_ended_is_not_rotated(url: str, ended: KeyRecord) -> None:
    async def body(store: StateStore) -> None:
        await store.add_key(mark("1"), ended, author="ann")
        with pytest.raises(Conflict, match="AAAAAAAA"):
            await store.rotate_key("app", mark("2"), KeySecret(200.0), overlap_until=300.0, author="bob")
        assert await store.get_key("app") == ended

    run(url, body)


@pytest.mark.parametrize("owner", ["app", "other"])
def test_a_secret_belongs_to_one_key_for_ever(url: str, owner: str) -> None:
    async def body(store: StateStore) -> None:
        await store.add_key(mark("1"), key(), author="ann")
        await store.add_key(mark("2"), key("BBBBBBBB", "other"), author="ann")
        before = await store.find_key(mark("1"))
        with pytest.raises(Conflict):
            await store.rotate_key(owner, mark("1"), KeySecret(200.0), overlap_until=300.0, author="bob")
        assert await store.find_key(mark("1")) == before

    run(url, body)


def test_what_does_not_exist_is_not_found(url: str) -> None:
    async def body(store: StateStore) -> None:
        for asked in (
            store.get_key("x"),
            store.revoke_key("x", at=1.0, author="ann"),
            store.rotate_key("x", mark("1"), KeySecret(1.0), overlap_until=2.0, author="ann"),
            store.alias_history("x"),
        ):
            with pytest.raises(NotFound):
                await asked
        assert await store.find_key(mark("1")) is None
        assert await whole_trail(store) == ()

    run(url, body)


def test_each_write_moves_its_own_counter_only(url: str) -> None:
    async def body(store: StateStore) -> list[tuple[int, int, int]]:
        seen = [await store.versions()]
        for write in (
            store.add_key(mark("1"), key(), author="ann"),
            store.assign_alias("chat", [Target("m")], author="ann", at=1.0),
            store.rotate_key("app", mark("2"), KeySecret(150.0), overlap_until=160.0, author="ann"),
            store.note(at=2.0, author="ann", verb="fleet.drain", subject="r0", detail={}),
            store.pepper_mark(1, mark("pepper")),
            store.add_engine("http://a:1", labels={}, author="ann", at=3.0),
            store.revoke_key("app", at=200.0, author="ann"),
        ):
            await write
            seen.append(await store.versions())
        return [(now.keys, now.aliases, now.fleet) for now in seen]

    moves = [(0, 0, 0), (1, 0, 0), (1, 1, 0), (2, 1, 0), (2, 1, 0), (2, 1, 0), (2, 1, 1), (3, 1, 1)]
    assert run(url, body) == moves


def test_every_write_leaves_a_line_without_secrets(url: str) -> None:
    record = key(expires_at=200.0, limits=Limits(requests_per_minute=60, concurrency=4))

    async def body(store: StateStore) -> Sequence[AuditEntry]:
        await store.add_key(mark("1"), record, author="ann")
        await store.assign_alias("chat", [Target("m"), Target("n", 3)], author="ann", at=1.0, note="why")
        await store.rotate_key("app", mark("2"), KeySecret(110.0, pepper_version=2), overlap_until=120.5, author="cid")
        await store.note(at=130, author="dan", verb="fleet.drain", subject="r0", detail={"reason": "é", "n": 1})
        await store.revoke_key("app", at=150.0, author="bob")
        lines = await whole_trail(store)
        assert not [line for line in lines for digest in (mark("1"), mark("2")) if digest.hex() in line.detail]
        return lines

    lines = run(url, body)
    assert [(line.number, line.at, line.author, line.verb, line.subject) for line in lines] == [
        (1, 100.0, "ann", "key.create", "AAAAAAAA"),
        (2, 1.0, "ann", "alias.set", "chat"),
        (3, 110.0, "cid", "key.rotate", "AAAAAAAA"),
        (4, 130.0, "dan", "fleet.drain", "r0"),
        (5, 150.0, "bob", "key.revoke", "AAAAAAAA"),
    ]
    assert [json.loads(line.detail) for line in lines] == [
        {
            "name": "app",
            "tenant": "t1",
            "roles": ["user"],
            "aliases": ["chat-*"],
            "expires_at": 200.0,
            "limits": {"requests_per_minute": 60, "concurrency": 4},
        },
        {"revision": 1, "from": 0, "targets": [["m", 1], ["n", 3]], "note": "why", "source": "api"},
        {"name": "app", "overlap_until": 120.5, "expires_at": None, "pepper_version": 2},
        {"reason": "é", "n": 1},
        {"name": "app"},
    ]


def test_the_trail_is_read_in_pages(url: str) -> None:
    async def body(store: StateStore) -> None:
        for number in range(1, 8):
            await store.note(at=float(number), author="ann", verb="test", subject=str(number), detail={})
        assert [line.number for line in await store.audit(limit=3)] == [1, 2, 3]
        rest = await store.audit(after=3)
        assert [line.subject for line in rest] == ["4", "5", "6", "7"]
        assert first_break(rest, 3, rest[0].previous) is None
        assert (await store.audit(after=7), await store.audit(after=99)) == ((), ())

    run(url, body)


def test_a_trail_written_from_two_sides_is_one_chain(url: str) -> None:
    async def body(store: StateStore) -> None:
        async with opened(url) as other:
            await asyncio.gather(
                *(
                    one.note(at=float(number), author="ann", verb="test", subject=str(number), detail={})
                    for number, one in enumerate((store, other) * 20)
                )
            )
            lines = await whole_trail(store)
            assert {line.subject for line in lines} == {str(number) for number in range(40)}
            assert await whole_trail(other) == lines

    run(url, body)


def test_the_first_mark_of_a_pepper_version_stays(url: str) -> None:
    async def body(store: StateStore) -> None:
        assert await store.pepper_mark(1, mark("first")) == mark("first")
        assert await store.pepper_mark(1, mark("second")) == mark("first")
        assert await store.pepper_mark(2, mark("second")) == mark("second")

    run(url, body)

    async def later(store: StateStore) -> bytes:
        return await store.pepper_mark(1, mark("third"))

    assert run(url, later) == mark("first")


def test_assignments_become_revisions(url: str) -> None:
    async def body(store: StateStore) -> None:
        empty = await store.alias_table()
        assert dict(empty.current) == {}
        first = await store.assign_alias("chat", [Target("m1")], author="ann", at=1.0, note="start", source="cli")
        targets = (Target("m1", 9), Target("m2", 1))
        second = await store.assign_alias("chat", targets, author="bob", at=2.0)
        assert (first.number, first.note, first.source) == (1, "start", "cli")
        assert (second.number, second.targets, second.author, second.created_at) == (2, targets, "bob", 2.0)
        assert list(await store.alias_history("chat")) == [first, second]
        table = await store.alias_table()
        assert dict(table.current) == {"chat": second}
        assert table.generation == empty.generation + 2 == (await store.versions()).aliases

    run(url, body)


@pytest.mark.parametrize("expected", [0, 1, 3])
def test_a_lost_compare_and_set_says_who_won(url: str, expected: int) -> None:
    async def body(store: StateStore) -> None:
        await store.assign_alias("chat", [Target("m1")], author="ann", at=1.0, expect_revision=0)
        await store.assign_alias("chat", [Target("m2")], author="bob", at=2.0, expect_revision=1)
        before = await store.alias_table()
        with pytest.raises(Conflict, match=r"revision 2 .*m2.*bob"):
            await store.assign_alias("chat", [Target("m3")], author="cid", at=3.0, expect_revision=expected)
        assert await store.alias_table() == before

    run(url, body)


def test_of_many_racing_assignments_each_revision_is_won_once(url: str) -> None:
    async def attempt(store: StateStore, who: int) -> int:
        won = 0
        for expected in range(5):
            try:
                await store.assign_alias("chat", [Target(f"m{who}")], author="a", at=1.0, expect_revision=expected)
                won += 1
            except Conflict:
                pass
        return won

    async def body(store: StateStore) -> None:
        async with opened(url) as other:
            wins = await asyncio.gather(*(attempt(one, n) for n, one in enumerate((store, other) * 4)))
        history = await store.alias_history("chat")
        assert [revision.number for revision in history] == [1, 2, 3, 4, 5]
        assert sum(wins) == 5

    run(url, body)


def test_what_is_written_survives_closing_and_reaches_a_second_opener(url: str) -> None:
    async def body(store: StateStore) -> None:
        async with opened(url) as other:
            before = await other.versions()
            await store.add_key(mark("1"), key(), author="ann")
            await store.assign_alias("chat", [Target("m")], author="ann", at=1.0)
            assert await other.versions() != before
            assert await other.find_key(mark("1")) == FoundKey(key(), KeySecret(100.0))

    run(url, body)

    async def later(store: StateStore) -> None:
        assert await store.find_key(mark("1")) == FoundKey(key(), KeySecret(100.0))
        assert [line.verb for line in await whole_trail(store)] == ["key.create", "alias.set"]
        assert set((await store.alias_table()).current) == {"chat"}

    run(url, later)


def test_closing_twice_is_harmless_and_a_closed_store_is_unavailable(url: str) -> None:
    async def body(store: StateStore) -> None:
        await store.close()
        await store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.versions()

    run(url, body)


@pytest.mark.parametrize("bad", ["", "state.db", "sqlite://", "sqlite://state.db", "postgres://x/y"])
def test_a_url_that_names_no_store_is_refused_with_what_was_expected(bad: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"expected sqlite:///PATH"):
        asyncio.run(open_store(bad))
