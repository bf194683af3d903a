"""Orders about engines in Redis: a store of before, damage, rights, a server that is gone, announcements."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from gateway.model import EngineOrders, Target
from gateway.stateurl import redis_place
from gateway.stores import redis
from gateway.stores.chain import first_break
from gateway.stores.interfaces import StoreUnavailable, Versions
from gateway.stores.redis import RedisStore
from gateway.stores.redis_scripts import AUDIT, ENGINES, HEAD
from tests.redisserver import Proxy, RedisServer

URL = "http://a:1"
# The rights that the documentation of the store tells an operator to give, taken from there.
RULES = redis.__doc__.partition(">PASSWORD ")[2].partition("\n\n")[0].replace("\\", "").split()


def run(url: str, body: Callable[[RedisStore], Awaitable[Any]]) -> Any:
    async def with_store() -> Any:
        store = await RedisStore.open(redis_place(url))
        try:
            return await body(store)
        finally:
            await store.close()

    return asyncio.run(with_store())


async def fill(store: RedisStore) -> None:
    await store.add_engine(URL, labels={"gpu": "h100"}, author="ann", at=1.5, note="new")
    await store.drain_engine("http://b:1", draining=True, author="bob", at=2.0)


def changes_of(store: RedisStore) -> Iterator[Awaitable[object]]:
    """Each kind of change of what ``fill`` has made, one after the other."""
    yield store.add_engine("http://c:1", labels={}, author="ann", at=3.0)
    yield store.drain_engine(URL, draining=True, author="ann", at=3.0)
    yield store.drain_engine("http://b:1", draining=False, author="ann", at=3.0)
    yield store.remove_engine(URL, author="ann", at=3.0)


def everything_in(server: RedisServer) -> dict[bytes, bytes]:
    return {name: server.command("DUMP", name) for name in server.command("KEYS", "*")}


def test_an_order_is_kept_as_documented(redis_server: RedisServer) -> None:
    run(redis_server.url(), fill)
    kept = {url: json.loads(text) for url, text in redis_server.command("HGETALL", ENGINES).items()}
    new = {"url": URL, "added": True, "draining": False, "labels": {"gpu": "h100"}, "author": "ann", "at": 1.5}
    drained = {"url": "http://b:1", "added": False, "draining": True, "labels": {}, "author": "bob", "at": 2.0}
    assert kept == {b"http://a:1": {**new, "note": "new"}, b"http://b:1": {**drained, "note": ""}}
    assert redis_server.command("HMGET", HEAD, "fleet", "number") == [b"2", b"2"]


def test_a_store_of_before_orders_nothing_until_the_first_order(redis_server: RedisServer) -> None:
    async def older(store: RedisStore) -> None:
        await store.assign_alias("chat", [Target("m")], author="ann", at=1.0)

    async def body(store: RedisStore) -> None:
        assert await store.versions() == Versions(0, 1, 0)
        assert await store.engine_orders() == EngineOrders()
        await store.assign_alias("chat", [Target("n")], author="ann", at=2.0)
        assert redis_server.command("HEXISTS", HEAD, "fleet") == 0
        await fill(store)
        assert await store.versions() == Versions(0, 2, 2)
        assert set((await store.engine_orders()).engines) == {URL, "http://b:1"}
        assert first_break(await store.audit()) is None

    run(redis_server.url(), older)
    redis_server.command("HDEL", HEAD, "fleet")
    run(redis_server.url(), body)


def test_what_a_newer_gateway_orders_besides_is_let_go(redis_server: RedisServer) -> None:
    async def body(store: RedisStore) -> None:
        await fill(store)
        before = await store.engine_orders()
        values = json.loads(redis_server.command("HGET", ENGINES, URL))
        redis_server.command("HSET", ENGINES, URL, json.dumps({**values, "mood": "fine"}))
        assert await store.engine_orders() == before

    run(redis_server.url(), body)


@pytest.mark.parametrize(
    "text", [b"\xff", b"{}", b"[]", b"7", b'{"url": "x"}', b'{"labels": 7}'], ids=lambda text: repr(text)[2:-1]
)
def test_an_order_that_cannot_be_read_is_unavailable(redis_server: RedisServer, text: bytes) -> None:
    async def body(store: RedisStore) -> None:
        await fill(store)
        redis_server.command("HSET", ENGINES, "http://d:1", text)
        before = everything_in(redis_server)
        for call in (store.engine_orders(), *changes_of(store)):
            with pytest.raises(StoreUnavailable, match="damaged value"):
                await call
        assert everything_in(redis_server) == before
        await store.assign_alias("chat", [Target("m")], author="ann", at=4.0)

    run(redis_server.url(), body)


def test_a_counter_that_cannot_be_read_is_unavailable(redis_server: RedisServer) -> None:
    async def body(store: RedisStore) -> None:
        await fill(store)
        redis_server.command("HSET", HEAD, "fleet", "many")
        for call in (store.versions(), store.engine_orders()):
            with pytest.raises(StoreUnavailable, match="damaged value"):
                await call

    run(redis_server.url(), body)


@pytest.mark.parametrize("damaged", [ENGINES, AUDIT])
def test_a_key_of_another_type_stops_a_change_whole(redis_server: RedisServer, damaged: str) -> None:
    async def body(store: RedisStore) -> None:
        await fill(store)
        redis_server.command("DEL", damaged)
        redis_server.command("SET", damaged, "theirs")
        before = everything_in(redis_server)
        with pytest.raises(StoreUnavailable, match="value of another program, or a damaged one"):
            await store.add_engine("http://c:1", labels={}, author="ann", at=3.0)
        assert everything_in(redis_server) == before

    run(redis_server.url(), body)


def test_orders_without_a_head_are_another_programs_data(redis_server: RedisServer) -> None:
    redis_server.command("HSET", ENGINES, "x", "y")
    with pytest.raises(StoreUnavailable, match="another program"):
        run(redis_server.url(), fill)
    assert redis_server.command("KEYS", "*") == [ENGINES.encode()]


def test_the_documented_user_may_order(redis_server: RedisServer) -> None:
    redis_server.command("ACL", "SETUSER", "gateway", "reset", "on", ">pw", *RULES)

    async def body(store: RedisStore) -> None:
        await fill(store)
        for change in changes_of(store):
            await change
        assert set((await store.engine_orders()).engines) == {"http://c:1"}

    run(redis_server.url(credentials="gateway:pw@"), body)


@pytest.mark.parametrize("right", ["+hset", "+hdel", "+xadd"])
def test_a_right_that_is_missing_stops_a_change_whole(redis_server: RedisServer, right: str) -> None:
    run(redis_server.url(), fill)
    redis_server.command("ACL", "SETUSER", "gateway", "reset", "on", ">pw", *(one for one in RULES if one != right))

    async def body(store: RedisStore) -> None:
        before = everything_in(redis_server)
        with pytest.raises(StoreUnavailable, match="forbids the gateway's user"):
            await store.remove_engine(URL, author="ann", at=3.0)
        assert everything_in(redis_server) == before

    run(redis_server.url(credentials="gateway:pw@"), body)


def test_without_memory_every_change_is_refused_whole(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:

        async def body(store: RedisStore) -> None:
            await fill(store)
            before = everything_in(server)
            server.command("CONFIG", "SET", "maxmemory", 1)
            for change in changes_of(store):
                with pytest.raises(StoreUnavailable, match=r"out of memory.*Nothing was changed"):
                    await change
            server.command("CONFIG", "SET", "maxmemory", 0)
            assert everything_in(server) == before

        run(server.url(), body)


def test_a_server_that_is_gone_is_unavailable(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:

        async def body(store: RedisStore) -> None:
            await fill(store)
            server.kill()
            for call in (store.engine_orders(), *changes_of(store)):
                with pytest.raises(StoreUnavailable, match=r"cannot be reached|closed the connection"):
                    await call

        run(server.url(), body)


def test_a_change_whose_answer_was_lost_says_that_it_may_have_been_made(redis_server: RedisServer) -> None:
    async def body() -> None:
        async with Proxy(redis_server.address) as proxy:
            store = await RedisStore.open(redis_place(proxy.url))
            try:
                await fill(store)
                proxy.trap = b"fleet.remove"
                with pytest.raises(StoreUnavailable, match="may have been made: look before you try again"):
                    await store.remove_engine(URL, author="ann", at=3.0)
                found = await store.engine_orders()
                assert (found.generation, set(found.engines)) == (3, {"http://b:1"})
            finally:
                await store.close()

    asyncio.run(body())


def test_a_change_is_heard_by_another_instance_and_what_changes_nothing_is_not(redis_server: RedisServer) -> None:
    async def body(store: RedisStore) -> None:
        other = await RedisStore.open(redis_place(redis_server.url()))
        try:
            async with aclosing(other.changes()) as changes:
                await asyncio.wait_for(anext(changes), 5.0)
                await store.add_engine(URL, labels={}, author="ann", at=1.0)
                await asyncio.wait_for(anext(changes), 5.0)
                waiting = asyncio.ensure_future(anext(changes))
                assert await store.drain_engine(URL, draining=False, author="ann", at=2.0) == (
                    (await other.engine_orders()).engines[URL],
                    False,
                )
                assert not waiting.done()
                for change in (
                    store.drain_engine(URL, draining=True, author="ann", at=3.0),
                    store.drain_engine(URL, draining=False, author="ann", at=4.0),
                    store.remove_engine(URL, author="ann", at=5.0),
                ):
                    await change
                    await asyncio.wait_for(waiting, 5.0)
                    waiting = asyncio.ensure_future(anext(changes))
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
            assert await other.engine_orders() == EngineOrders(4, {})
        finally:
            await other.close()

    run(redis_server.url(), body)
