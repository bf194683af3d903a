"""What every state store does for operators' orders about engines."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from gateway.model import EngineOrder, EngineOrders, Target
from gateway.stores.chain import first_break
from gateway.stores.interfaces import (
    MAX_ENGINE_ORDERS,
    AuditEntry,
    Conflict,
    NotFound,
    StateStore,
    StoreUnavailable,
    Versions,
)
from gateway.stores.redis_records import order_text
from gateway.stores.redis_scripts import ENGINES
from tests.unit.stores.test_store import opened, run, whole_trail

A, B = "http://10.0.0.1:8000", "https://engine-b.example:8443"
ODD = ("", "é\u2028 {gw}:%s", "\0", "\"\\'); DROP TABLE engine_orders; --", "\N{ROCKET}\r\n\t", "x" * 4_096)
Call = Callable[[StateStore], Awaitable[Any]]


async def add(store: StateStore, url: str = A, **more: Any) -> EngineOrder:
    return await store.add_engine(url, **{"labels": {"gpu": "h100"}, "author": "ann", "at": 1.0, **more})


async def remove(store: StateStore, url: str = A, **more: Any) -> EngineOrder:
    return await store.remove_engine(url, **{"author": "bob", "at": 9.0, **more})


async def drain(store: StateStore, url: str = A, draining: bool = True, **more: Any) -> tuple[EngineOrder, bool]:
    return await store.drain_engine(url, **{"draining": draining, "author": "cid", "at": 5.0, **more})


async def undrain(store: StateStore, url: str = A, **more: Any) -> tuple[EngineOrder, bool]:
    return await drain(store, url, draining=False, **more)


async def everything(store: StateStore) -> tuple[object, ...]:
    return await store.versions(), await store.engine_orders(), await whole_trail(store), await store.audit_head()


def fill(url: str, orders: Iterable[EngineOrder]) -> None:
    """Put orders into an empty store, past all that is tested."""
    if url.startswith("sqlite"):
        db = sqlite3.connect(url.removeprefix("sqlite://"))
        with db:
            db.executemany(
                "INSERT INTO engine_orders (url, added, draining, labels, author, at, note) VALUES (?,?,?,'{}',?,?,?)",
                ((one.url, one.added, one.draining, one.author, one.at, one.note) for one in orders),
            )
        db.close()
        return
    with redis.Redis.from_url(url) as client:
        client.hset(ENGINES, mapping={one.url: order_text(one) for one in orders})


def lose(url: str) -> None:
    """Take away what the store is kept in."""
    if url.startswith("sqlite"):
        Path(url.removeprefix("sqlite://")).unlink()
        return
    with redis.Redis.from_url(url) as client:
        client.flushall()


def test_a_new_store_orders_nothing(url: str) -> None:
    async def body(store: StateStore) -> None:
        assert await store.engine_orders() == EngineOrders(0, {})
        assert await store.versions() == Versions(0, 0, 0)

    run(url, body)


def test_an_engine_is_added_drained_lifted_and_removed(url: str) -> None:
    async def body(store: StateStore) -> None:
        added = await add(store, note="rack 7")
        assert added == EngineOrder(A, True, False, {"gpu": "h100"}, "ann", 1.0, "rack 7")
        assert await store.engine_orders() == EngineOrders(1, {A: added})
        drained, changed = await drain(store, note="fan")
        assert (drained, changed) == (replace(added, draining=True, author="cid", at=5.0, note="fan"), True)
        assert await store.engine_orders() == EngineOrders(2, {A: drained})
        lifted, changed = await undrain(store, at=6.0)
        assert (lifted, changed) == (replace(added, author="cid", at=6.0, note=""), True)
        assert await store.engine_orders() == EngineOrders(3, {A: lifted})
        assert await remove(store) == lifted
        assert await store.engine_orders() == EngineOrders(4, {})
        assert await store.versions() == Versions(0, 0, 4)

    run(url, body)


def test_a_drain_goes_with_the_engine_that_was_added(url: str) -> None:
    async def body(store: StateStore) -> None:
        await add(store)
        drained, _ = await drain(store)
        assert await remove(store) == drained
        assert (await add(store)).draining is False
        assert (await store.engine_orders()).engines[A].draining is False

    run(url, body)


def test_an_engine_that_is_listed_elsewhere_is_drained_and_leaves_nothing_when_that_is_lifted(url: str) -> None:
    async def body(store: StateStore) -> None:
        order, changed = await drain(store, B, note="fan")
        assert (order, changed) == (EngineOrder(B, False, True, {}, "cid", 5.0, "fan"), True)
        assert await store.engine_orders() == EngineOrders(1, {B: order})
        with pytest.raises(NotFound):
            await remove(store, B)
        order, changed = await undrain(store, B, at=6.0, note="over")
        assert (order, changed) == (EngineOrder(B, False, False, {}, "cid", 6.0, "over"), True)
        assert await store.engine_orders() == EngineOrders(2, {})

    run(url, body)


def test_a_drain_outlives_that_its_engine_is_added(url: str) -> None:
    async def body(store: StateStore) -> None:
        await drain(store)
        added = await add(store)
        assert added == EngineOrder(A, True, True, {"gpu": "h100"}, "ann", 1.0)
        assert await store.engine_orders() == EngineOrders(2, {A: added})
        lifted, _ = await undrain(store)
        assert (await store.engine_orders()).engines == {A: lifted}
        assert lifted.labels == {"gpu": "h100"}

    run(url, body)


def test_what_changes_nothing_leaves_no_line_and_moves_nothing(url: str) -> None:
    async def body(store: StateStore) -> None:
        added, drained = await add(store), (await drain(store, B))[0]
        before = await everything(store)
        assert await undrain(store, at=7.0) == (added, False)
        assert await drain(store, B, at=7.0) == (drained, False)
        assert await undrain(store, "http://unknown:1") == (EngineOrder("http://unknown:1"), False)
        with pytest.raises(Conflict, match=r"added already \(.* last changed by ann at 1970-01-01T00:00:01Z\)"):
            await add(store, author="eve", labels={})
        for unknown in (B, "http://unknown:1"):
            with pytest.raises(NotFound):
                await remove(store, unknown)
        assert await everything(store) == before

    run(url, body)


def test_a_line_of_the_trail_tells_what_was_ordered(url: str) -> None:
    async def body(store: StateStore) -> None:
        await add(store, note="rack 7")
        await drain(store, note="fan")
        await undrain(store)
        await remove(store, note="sold")
        lines = await whole_trail(store)
        assert [(line.verb, line.subject, line.author, line.at, json.loads(line.detail)) for line in lines] == [
            ("fleet.add", A, "ann", 1.0, {"labels": {"gpu": "h100"}, "note": "rack 7"}),
            ("fleet.drain", A, "cid", 5.0, {"note": "fan"}),
            ("fleet.undrain", A, "cid", 5.0, {"note": ""}),
            ("fleet.remove", A, "bob", 9.0, {"labels": {"gpu": "h100"}, "note": "sold"}),
        ]

    run(url, body)


def test_each_change_moves_the_counter_of_the_fleet_alone(url: str) -> None:
    async def body(store: StateStore) -> None:
        await store.assign_alias("chat", [Target("m")], author="ann", at=1.0)
        async with opened(url) as other:
            for number, change in enumerate((add, drain, undrain, remove), 1):
                await change(store)
                assert await other.versions() == Versions(0, 1, number)
                assert (await other.engine_orders()).generation == number
        await store.assign_alias("chat", [Target("n")], author="ann", at=2.0)
        assert await store.versions() == Versions(0, 2, 4)

    run(url, body)


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_odd_characters_come_back_as_they_were(url: str, text: str) -> None:
    labels = {text: text, "plain": text, "": "x"}

    async def body(store: StateStore) -> EngineOrder:
        added = await add(store, text, labels=labels, author=text, note=text)
        assert added.labels == labels
        labels["later"] = "not meant"
        drained, _ = await drain(store, text, author=text, note=text)
        assert drained == EngineOrder(text, True, True, added.labels, text, 5.0, text)
        assert "later" not in drained.labels
        await drain(store, A)
        return drained

    async def later(store: StateStore) -> None:
        orders = (await store.engine_orders()).engines
        assert orders[text] == drained
        assert list(orders) == sorted([text, A])
        with pytest.raises(TypeError):
            orders[text].labels["more"] = "x"  # type: ignore[index]
        assert [line.subject for line in await whole_trail(store)] == [text, text, A]
        assert await remove(store, text, note=text) == drained
        assert set((await store.engine_orders()).engines) == {A}

    drained = run(url, body)
    run(url, later)


def test_there_are_orders_about_so_many_engines_and_no_more(url: str) -> None:
    def order(number: int) -> EngineOrder:
        return EngineOrder(f"http://e{number}:1", added=number % 2 == 0, draining=number % 2 == 1, author="ann")

    async def body(store: StateStore) -> None:
        await asyncio.to_thread(fill, url, map(order, range(MAX_ENGINE_ORDERS - 1)))
        await add(store, A)
        held = (await store.engine_orders()).engines
        assert len(held) == MAX_ENGINE_ORDERS == 1_024
        assert all(held[order(number).url] == order(number) for number in range(MAX_ENGINE_ORDERS - 1))
        before = await everything(store)
        for change in (add, drain):
            with pytest.raises(Conflict, match="orders about 1024 engines, and no room for more"):
                await change(store, B)
        assert await undrain(store, B) == (EngineOrder(B), False)
        assert await everything(store) == before
        # What has an order already needs no room, and what goes makes room.
        await add(store, order(1).url)
        await drain(store, order(2).url)
        await undrain(store, order(3).url)
        await drain(store, B)
        with pytest.raises(Conflict):
            await add(store, "http://c:1")
        await remove(store, A)
        await add(store, "http://c:1")
        assert len((await store.engine_orders()).engines) == MAX_ENGINE_ORDERS
        assert first_break(await whole_trail(store)) is None

    run(url, body)


def test_of_writers_racing_for_the_last_room_one_gets_it(url: str) -> None:
    others = [EngineOrder(f"http://e{number}:1", added=True) for number in range(MAX_ENGINE_ORDERS - 1)]

    async def body(store: StateStore) -> None:
        await asyncio.to_thread(fill, url, others)
        async with opened(url) as other:
            urls = [f"http://new{number}:1" for number in range(6)]
            wishes = (add(one, new) for one, new in zip((store, other) * 3, urls, strict=True))
            outcomes = await asyncio.gather(*wishes, return_exceptions=True)
        won = [outcome.url for outcome in outcomes if isinstance(outcome, EngineOrder)]
        assert len(won) == 1
        assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 5
        found = await store.engine_orders()
        assert (len(found.engines), found.generation) == (MAX_ENGINE_ORDERS, 1)
        assert set(won) < set(found.engines)

    run(url, body)


def as_told(lines: Sequence[AuditEntry]) -> dict[str, EngineOrder]:
    """The orders as the trail tells them; each line must follow from those before."""
    orders: dict[str, EngineOrder] = {}
    for line in lines:
        detail = json.loads(line.detail)
        now = orders.pop(line.subject, EngineOrder(line.subject))
        last = {"author": line.author, "at": line.at, "note": detail["note"]}
        if line.verb == "fleet.add":
            assert not now.added
            orders[line.subject] = replace(now, added=True, labels=detail["labels"], **last)
            continue
        if line.verb == "fleet.remove":
            assert now.added
            assert now.labels == detail["labels"]
            continue
        draining = line.verb == "fleet.drain"
        assert now.draining is not draining
        if now.added or draining:
            orders[line.subject] = replace(now, draining=draining, **last)
    return orders


def test_writers_of_two_stores_at_once_lose_nothing(url: str) -> None:
    async def follow(store: StateStore, who: int) -> int:
        done = 0
        for turn in range(12):
            change: Any = (add, drain, remove, undrain)[(who + turn) % 4]
            try:
                made = await change(store, (A, B)[turn % 2], author=f"w{who}", at=float(turn), note=f"{who}/{turn}")
                done += made[1] if isinstance(made, tuple) else 1
            except (Conflict, NotFound):
                continue
        return done

    async def body(store: StateStore) -> None:
        async with opened(url) as other:
            done = await asyncio.gather(*(follow(one, who) for who, one in enumerate((store, other) * 2)))
            found = await store.engine_orders()
            assert await other.engine_orders() == found
        lines = await whole_trail(store)
        assert len(lines) == sum(done) == found.generation == (await store.versions()).fleet
        assert as_told(lines) == found.engines
        assert min(done) > 0

    run(url, body)


CALLS: dict[str, Call] = {
    "read": lambda store: store.engine_orders(),
    "add": lambda store: add(store, B),
    "remove": remove,
    "drain": drain,
    "undrain": lambda store: undrain(store, "http://unknown:1"),
}


@pytest.mark.parametrize("kind", CALLS)
def test_a_store_that_is_gone_is_unavailable(url: str, kind: str) -> None:
    async def body(store: StateStore) -> None:
        await add(store)
        await asyncio.to_thread(lose, url)
        with pytest.raises(StoreUnavailable, match="while in use"):
            await CALLS[kind](store)

    run(url, body)


@pytest.mark.parametrize("kind", CALLS)
def test_a_closed_store_is_unavailable(url: str, kind: str) -> None:
    async def body(store: StateStore) -> None:
        await store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await CALLS[kind](store)

    run(url, body)
