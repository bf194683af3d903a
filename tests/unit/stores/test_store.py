"""What every state store must do, whatever it keeps its data in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.model import Target
from gateway.stores.interfaces import Conflict, KeyRecord, NotFound, StateStore, StoreUnavailable
from gateway.stores.open import open_store

URLS: dict[str, Callable[[Path], str]] = {"sqlite": lambda folder: f"sqlite://{folder / 'state.db'}"}


@pytest.fixture(params=sorted(URLS))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A state URL that names a new, empty store."""
    return URLS[request.param](tmp_path)


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
    return KeyRecord(id=key_id, name=name, **values)


def test_a_key_comes_back_as_it_was_stored(url: str) -> None:
    record = key(expires_at=500.5, pepper_version=3)

    async def body(store: StateStore) -> None:
        await store.add_key(b"digest", record, author="ann")
        assert await store.find_key(b"digest") == record
        assert await store.find_key(b"digesu") is None
        assert await store.get_key("AAAAAAAA") == record
        assert await store.get_key("app") == record
        assert list(await store.list_keys()) == [record]

    run(url, body)


def test_keys_are_listed_oldest_first(url: str) -> None:
    async def body(store: StateStore) -> list[str]:
        for number, created_at in ((1, 300.0), (2, 100.0), (3, 200.0)):
            await store.add_key(b"%d" % number, key(f"id{number}", f"n{number}", created_at=created_at), author="ann")
        return [record.name for record in await store.list_keys()]

    assert run(url, body) == ["n2", "n3", "n1"]


@pytest.mark.parametrize(
    ("second", "digest"),
    [
        (key("AAAAAAAA", "other"), b"2"),
        (key("BBBBBBBB", "app"), b"2"),
        (key("BBBBBBBB", "AAAAAAAA"), b"2"),
        (key("BBBBBBBB", "other"), b"1"),
    ],
    ids=["same id", "same name", "name is another's id", "same digest"],
)
def test_a_taken_key_is_a_conflict_and_changes_nothing(url: str, second: KeyRecord, digest: bytes) -> None:
    async def body(store: StateStore) -> None:
        await store.add_key(b"1", key(), author="ann")
        before = await store.versions()
        with pytest.raises(Conflict, match="AAAAAAAA"):
            await store.add_key(digest, second, author="ann")
        assert await store.versions() == before
        assert len(await store.list_keys()) == 1

    run(url, body)


@pytest.mark.parametrize("first", [key(revoked_at=150.0), key(expires_at=199.0)], ids=["revoked", "expired"])
def test_the_name_of_a_dead_key_is_free_and_means_the_newest(url: str, first: KeyRecord) -> None:
    async def body(store: StateStore) -> None:
        await store.add_key(b"1", first, author="ann")
        second = key("BBBBBBBB", created_at=200.0)
        await store.add_key(b"2", second, author="ann")
        assert await store.get_key("app") == second

    run(url, body)


def test_revoking_is_idempotent_and_keeps_the_first_time(url: str) -> None:
    async def body(store: StateStore) -> None:
        await store.add_key(b"1", key(), author="ann")
        revoked = await store.revoke_key("app", at=150.0, author="bob")
        assert revoked == key(revoked_at=150.0)
        moved = await store.versions()
        assert await store.revoke_key("AAAAAAAA", at=160.0, author="bob") == revoked
        assert await store.versions() == moved

    run(url, body)


def test_what_does_not_exist_is_not_found(url: str) -> None:
    async def body(store: StateStore) -> None:
        for asked in (store.get_key("x"), store.revoke_key("x", at=1.0, author="ann"), store.alias_history("x")):
            with pytest.raises(NotFound):
                await asked

    run(url, body)


def test_each_write_moves_its_own_counter_only(url: str) -> None:
    async def body(store: StateStore) -> list[tuple[int, int]]:
        seen = [await store.versions()]
        await store.add_key(b"1", key(), author="ann")
        seen.append(await store.versions())
        await store.assign_alias("chat", [Target("m")], author="ann", at=1.0)
        seen.append(await store.versions())
        await store.revoke_key("app", at=2.0, author="ann")
        seen.append(await store.versions())
        return [(now.keys - seen[0].keys, now.aliases - seen[0].aliases) for now in seen]

    assert run(url, body) == [(0, 0), (1, 0), (1, 1), (2, 1)]


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
            await store.add_key(b"1", key(), author="ann")
            await store.assign_alias("chat", [Target("m")], author="ann", at=1.0)
            assert await other.versions() != before
            assert await other.find_key(b"1") == key()

    run(url, body)

    async def later(store: StateStore) -> None:
        assert await store.find_key(b"1") == key()
        assert set((await store.alias_table()).current) == {"chat"}

    run(url, later)


def test_closing_twice_is_harmless_and_a_closed_store_is_unavailable(url: str) -> None:
    async def body(store: StateStore) -> None:
        await store.close()
        await store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.versions()

    run(url, body)


@pytest.mark.parametrize(
    "bad", ["redis://localhost:6379/0", "state.db", "sqlite://", "sqlite://state.db", "postgres://x/y"]
)
def test_a_url_that_names_no_store_is_refused_with_what_was_expected(bad: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"expected sqlite:///PATH"):
        asyncio.run(open_store(bad))
