"""Orders about engines in the SQLite file: a file of the schema before, damage, a lock, a newer gateway's counters."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.model import EngineOrder, EngineOrders, Target
from gateway.stores.chain import first_break
from gateway.stores.engine_queries import change
from gateway.stores.engine_standing import Decide
from gateway.stores.interfaces import StoreUnavailable, Versions
from gateway.stores.queries import in_transaction
from gateway.stores.schema import APPLICATION_ID, MIGRATIONS
from gateway.stores.sqlite import SqliteStore

URL = "http://a:1"


def run(path: Path, body: Callable[[SqliteStore], Awaitable[Any]], **options: float) -> Any:
    async def with_store() -> Any:
        store = await SqliteStore.open(path, **options)
        try:
            return await body(store)
        finally:
            await store.close()

    return asyncio.run(with_store())


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    db = sqlite3.connect(path)
    try:
        with db:
            return db.execute(sql).fetchall()
    finally:
        db.close()


async def fill(store: SqliteStore) -> None:
    await store.add_engine(URL, labels={"gpu": "h100", "rack": "7"}, author="ann", at=1.5, note="new")
    await store.drain_engine("http://b:1", draining=True, author="bob", at=2.0)


def without_orders(path: Path) -> None:
    """A file of the schema before this one, in use: an alias, its line, an instance's view of the counters."""
    db = sqlite3.connect(path)
    with db:
        for step in MIGRATIONS[:3]:
            for part in step:
                if callable(part):
                    part(db)
                else:
                    db.execute(part)
        db.execute("UPDATE counters SET value = 5 WHERE name = 'keys'")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("PRAGMA user_version = 3")
    db.close()
    path.chmod(0o600)


def test_a_file_without_orders_gets_room_for_them(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    without_orders(path)
    assert query(path, "SELECT count(*) FROM sqlite_schema WHERE name = 'engine_orders'") == [(0,)]

    async def first(store: SqliteStore) -> None:
        assert await store.versions() == Versions(keys=5, aliases=0, fleet=0)
        assert await store.engine_orders() == EngineOrders()
        await fill(store)
        assert await store.versions() == Versions(keys=5, aliases=0, fleet=2)

    async def second(store: SqliteStore) -> None:
        orders = await store.engine_orders()
        assert (orders.generation, set(orders.engines)) == (2, {URL, "http://b:1"})
        assert first_break(await store.audit()) is None

    run(path, first)
    assert query(path, "PRAGMA user_version") == [(4,)]
    run(path, second)


def test_a_row_is_as_documented(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    run(path, fill)
    assert query(path, "SELECT url, added, draining, labels, author, at, note FROM engine_orders ORDER BY url") == [
        (URL, 1, 0, '{"gpu":"h100","rack":"7"}', "ann", 1.5, "new"),
        ("http://b:1", 0, 1, "{}", "bob", 2.0, ""),
    ]


def test_what_is_read_are_truth_values(tmp_path: Path) -> None:
    async def body(store: SqliteStore) -> None:
        await fill(store)
        for order in (await store.engine_orders()).engines.values():
            assert {type(order.added), type(order.draining)} == {bool}

    run(tmp_path / "state.db", body)


def test_a_counter_of_a_newer_gateway_is_let_go(tmp_path: Path) -> None:
    path = tmp_path / "state.db"

    async def body(store: SqliteStore) -> None:
        await fill(store)
        query(path, "INSERT INTO counters (name, value) VALUES ('newer', 9)")
        assert await store.versions() == Versions(0, 0, 2)

    run(path, body)


def test_a_lock_held_by_another_process_ends_a_change_but_not_a_read(tmp_path: Path) -> None:
    path = tmp_path / "state.db"

    async def body(store: SqliteStore) -> None:
        await fill(store)
        before = await store.engine_orders()
        holder = sqlite3.connect(path, isolation_level=None)
        try:
            holder.execute("BEGIN IMMEDIATE")
            for call in (
                store.add_engine("http://c:1", labels={}, author="ann", at=3.0),
                store.remove_engine(URL, author="ann", at=3.0),
                store.drain_engine(URL, draining=True, author="ann", at=3.0),
            ):
                with pytest.raises(StoreUnavailable, match="locked by another process"):
                    await call
            assert await store.engine_orders() == before
        finally:
            holder.close()
        assert (await store.drain_engine(URL, draining=True, author="ann", at=3.0))[1]

    run(path, body, busy_timeout=0.05)


def test_a_change_in_a_damaged_file_is_refused_whole(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    run(path, fill)
    ((size,),) = query(path, "PRAGMA page_size")
    ((page,),) = query(path, "SELECT rootpage FROM sqlite_schema WHERE name = 'engine_orders'")
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)

    async def body(store: SqliteStore) -> None:
        for call in (
            store.engine_orders(),
            store.add_engine("http://c:1", labels={}, author="ann", at=3.0),
            store.remove_engine(URL, author="ann", at=3.0),
            store.drain_engine(URL, draining=True, author="ann", at=3.0),
        ):
            with pytest.raises(StoreUnavailable, match="is damaged"):
                await call
        assert ((await store.versions()).fleet, (await store.audit_head())[0]) == (2, 2)
        # What lies in other pages goes on.
        assert (await store.assign_alias("chat", [Target("m")], author="ann", at=4.0)).number == 1

    run(path, body)


def test_a_file_that_may_not_grow_refuses_an_order_in_words(tmp_path: Path) -> None:
    path = tmp_path / "state.db"

    async def body(store: SqliteStore) -> None:
        await fill(store)
        before = await store.engine_orders(), await store.audit_head()
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        for call in (
            store.add_engine("http://c:1", labels={"x": "m" * 100_000}, author="ann", at=3.0),
            store.remove_engine(URL, author="ann", at=3.0, note="m" * 100_000),
            store.drain_engine(URL, draining=True, author="ann", at=3.0, note="m" * 100_000),
        ):
            with pytest.raises(StoreUnavailable, match="the disk is full"):
                await call
        assert (await store.engine_orders(), await store.audit_head()) == before

    run(path, body)


def test_a_read_is_of_one_moment(tmp_path: Path) -> None:
    path = tmp_path / "state.db"

    async def body(store: SqliteStore) -> None:
        await fill(store)
        before = await store.engine_orders()
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        made: list[EngineOrder] = []

        def write_between(statement: str) -> None:
            """Another process writes when the orders have been read and their generation has not."""
            if "counters" in statement and not made:
                wanted = EngineOrder("http://c:1", added=True, author="eve", at=3.0)
                made.append(in_transaction(other, "IMMEDIATE", lambda db: change(db, wanted.url, add(wanted))))

        store._connection.set_trace_callback(write_between)
        assert await store.engine_orders() == before
        store._connection.set_trace_callback(None)
        other.close()
        assert await store.engine_orders() == EngineOrders(3, {**before.engines, "http://c:1": made[0]})

    run(path, body)


def add(wanted: EngineOrder) -> Decide[EngineOrder]:
    return lambda now: now.added(wanted)
