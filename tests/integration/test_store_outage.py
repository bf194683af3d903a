"""A Redis that fails in every way it can: each call ends in time, says why, leaves nothing half done, and recovers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gateway.model import Target
from gateway.stateurl import redis_place
from gateway.stores.chain import first_break
from gateway.stores.interfaces import KeyRecord, KeySecret, StoreUnavailable
from gateway.stores.redis import RedisStore
from gateway.stores.redis_scripts import COMMIT, HEAD
from tests.redisserver import Proxy, RedisSentinel, RedisServer, server_that_says

# Seconds within which a call that fails has to have failed: one answer's 0.25, and room for a busy machine.
BOUND = 1.0
# The same for what may be megabytes (2 s), and for a write that keeps trying (2 s).
LONG_BOUND = 3.0

Act = Callable[[RedisStore], Awaitable[Any]]


async def write(store: RedisStore) -> None:
    await store.assign_alias("chat", [Target("m")], author="ann", at=1.0)


QUICK: dict[str, Act] = {
    "versions": lambda store: store.versions(),
    "find_key": lambda store: store.find_key(b"digest"),
    "get_key": lambda store: store.get_key("app"),
    "write": write,
}
LONG: dict[str, Act] = {
    "alias_table": lambda store: store.alias_table(),
    "list_keys": lambda store: store.list_keys(),
    "audit": lambda store: store.audit(),
}


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[RedisStore]:
    store = await RedisStore.open(redis_place(url))
    try:
        yield store
    finally:
        await store.close()


async def fill(store: RedisStore) -> None:
    record = KeyRecord("AAAAAAAA", "app", "t1", ("user",), ("*",), 100.0, secrets=(KeySecret(100.0),))
    await store.add_key(b"digest", record, author="ann")
    await write(store)


async def assert_fails(store: RedisStore, act: Act, words: str, bound: float = BOUND) -> None:
    started = time.monotonic()
    with pytest.raises(StoreUnavailable, match=words) as raised:
        await act(store)
    assert time.monotonic() - started < bound
    assert raised.value.spec.code == "store_unavailable"


async def assert_whole(store: RedisStore, lines: int) -> None:
    """The store works, its trail has that many lines and is whole, and each alias line has its revision."""
    found = await store.audit()
    assert first_break(found) is None
    assert (found[-1].number, found[-1].hash) == await store.audit_head()
    assert found[-1].number == lines
    assert len(await store.alias_history("chat")) == sum(line.verb == "alias.set" for line in found)
    await write(store)


@pytest.fixture
def server(tmp_path: Path) -> Any:
    with RedisServer(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always") as running:
        yield running


@pytest.mark.parametrize("name", [*QUICK, *LONG])
def test_frozen(server: RedisServer, name: str) -> None:
    async def body() -> None:
        async with opened(server.url()) as store:
            await fill(store)
            server.freeze()
            try:
                act, bound = (QUICK[name], BOUND) if name in QUICK else (LONG[name], LONG_BOUND)
                await assert_fails(store, act, "did not answer in time", bound)
            finally:
                server.thaw()
            await assert_whole(store, 2)

    asyncio.run(body())


def test_frozen_while_many_ask(server: RedisServer) -> None:
    async def body() -> None:
        async with opened(server.url()) as store:
            await fill(store)
            server.freeze()
            try:
                acts = [assert_fails(store, QUICK["find_key"], "did not answer in time", 2.0) for _ in range(64)]
                await asyncio.gather(*acts)
            finally:
                server.thaw()
            found = await asyncio.gather(*(store.find_key(b"digest") for _ in range(64)))
            assert all(found)
            assert server.command("INFO", "clients")["connected_clients"] <= 20

    asyncio.run(body())


@pytest.mark.parametrize("name", [*QUICK, *LONG])
def test_killed_and_started_again(server: RedisServer, name: str) -> None:
    async def body() -> None:
        async with opened(server.url()) as store:
            await fill(store)
            server.kill()
            act = {**QUICK, **LONG}[name]
            for _ in range(2):
                await assert_fails(store, act, "cannot be reached|closed the connection")
            await assert_fails(store, act, "cannot be reached: nothing answers")
            await asyncio.to_thread(server.start)
            await assert_whole(store, 2)

    asyncio.run(body())


def test_slow_but_in_time(server: RedisServer) -> None:
    async def body() -> None:
        async with Proxy(server.address) as proxy:
            proxy.delay = 0.05
            async with opened(proxy.url) as store:
                await fill(store)
                assert await store.find_key(b"digest") is not None
                await assert_whole(store, 2)

    asyncio.run(body())


@pytest.mark.parametrize("name", QUICK)
def test_too_slow(server: RedisServer, name: str) -> None:
    async def body() -> None:
        async with Proxy(server.address) as proxy, opened(proxy.url) as store:
            await fill(store)
            proxy.delay = 2.0
            await assert_fails(store, QUICK[name], "did not answer in time")
            proxy.delay = 0.0
            await assert_whole(store, 2)

    asyncio.run(body())


def test_reset_while_an_answer_is_read(server: RedisServer) -> None:
    async def body() -> None:
        async with Proxy(server.address) as proxy, opened(proxy.url) as store:
            await fill(store)
            for act in QUICK.values():
                proxy.trap = b"EVALSHA"
                await assert_fails(store, act, "closed the connection before it had answered")
            await assert_whole(store, 2)

    asyncio.run(body())


@pytest.mark.parametrize("fault", ["reset", "slow"])
def test_a_write_whose_answer_is_lost_is_done_whole_and_said_to_be_in_doubt(server: RedisServer, fault: str) -> None:
    async def body() -> None:
        async with Proxy(server.address) as proxy, opened(proxy.url) as store:
            await fill(store)
            proxy.trap = COMMIT.sha.encode()
            proxy.stalls = fault == "slow"
            await assert_fails(store, write, r"The change may have been made: look before you try again\.$")
            await assert_whole(store, 3)

    asyncio.run(body())


@pytest.mark.parametrize(
    ("credentials", "words"),
    [("", "asks for a password"), (":wrong@", "refuses the user"), ("x:y@", "refuses the user")],
)
def test_wrong_password(tmp_path: Path, credentials: str, words: str) -> None:
    async def body() -> None:
        with RedisServer(tmp_path, password="right-and-s3cret") as server:
            url = f"redis://{credentials}{server.address[0]}:{server.port}/0"
            started = time.monotonic()
            with pytest.raises(StoreUnavailable, match=words):
                async with opened(url):
                    pass
            assert time.monotonic() - started < BOUND
            async with opened(server.url()) as store:
                await fill(store)
                server.command("CONFIG", "SET", "requirepass", "another")
                server.password = "another"
                server.command("CLIENT", "KILL", "TYPE", "normal")
                await assert_fails(store, write, "refuses the user|closed the connection")
                await assert_fails(store, write, "refuses the user")
                server.command("CONFIG", "SET", "requirepass", "right-and-s3cret")
                server.password = "right-and-s3cret"
                await assert_whole(store, 2)

    asyncio.run(body())


def test_a_replica_is_read_and_not_written(server: RedisServer, tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(server.url()) as store:
            await fill(store)
        with RedisServer(tmp_path / "replica", "--replicaof", *map(str, server.address)) as replica:
            await until_it_works(lambda: holds(replica, 2))
            async with opened(replica.url()) as store:
                assert await store.find_key(b"digest") is not None
                await assert_fails(store, write, "is a replica and cannot be written")
                replica.command("REPLICAOF", "NO", "ONE")
                await assert_whole(store, 2)

    asyncio.run(body())


def test_a_failover_by_sentinel(server: RedisServer, tmp_path: Path) -> None:
    async def body() -> None:
        with (
            RedisServer(tmp_path / "replica", "--replicaof", *map(str, server.address)) as replica,
            RedisSentinel(tmp_path / "sentinel", server) as sentinel,
        ):
            store = RedisStore(redis_place(sentinel.url))
            try:
                await until_it_works(lambda: fill(store))
                await until_it_works(lambda: holds(replica, 2))
                async with aclosing(store.changes()) as changes:
                    await asyncio.wait_for(anext(changes), 5.0)
                    server.kill()
                    await until_it_works(lambda: write(store))
                    await asyncio.wait_for(anext(changes), 10.0)
                assert replica.command("HGET", HEAD, "number") == b"3"
                await assert_whole(store, 3)
            finally:
                await store.close()

    asyncio.run(body())


async def until_it_works(act: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.timeout(15.0):
        while True:
            with suppress(StoreUnavailable):
                return await act()
            await asyncio.sleep(0.02)


async def holds(server: RedisServer, lines: int) -> None:
    """Raises ``StoreUnavailable`` while a server has not that many audit lines."""
    if server.command("HGET", HEAD, "number") != b"%d" % lines:
        raise StoreUnavailable("not yet")


def test_out_of_memory(server: RedisServer) -> None:
    async def body() -> None:
        async with opened(server.url()) as store:
            await fill(store)
            server.command("CONFIG", "SET", "maxmemory", 1)
            await assert_fails(store, write, r"out of memory .*Nothing was changed")
            assert await store.find_key(b"digest") is not None
            assert (await store.versions()).aliases == 1
            server.command("CONFIG", "SET", "maxmemory", 0)
            await assert_whole(store, 2)

    asyncio.run(body())


def test_too_few_replicas(server: RedisServer) -> None:
    async def body() -> None:
        async with opened(server.url()) as store:
            await fill(store)
            server.command("CONFIG", "SET", "min-replicas-to-write", 1)
            await assert_fails(store, write, "too few replicas")
            server.command("CONFIG", "SET", "min-replicas-to-write", 0)
            await assert_whole(store, 2)

    asyncio.run(body())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"-LOADING Redis is loading the dataset in memory\r\n", "still loading its data"),
        (b"-MOVED 3999 10.0.0.9:6381\r\n", "one node of a cluster"),
        (b"-CLUSTERDOWN Hash slot not served\r\n", "cluster that is down"),
        (
            b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
            "without its primary",
        ),
        (b"-BUSY Redis is busy running a script.\r\n", "busy with a script"),
        (b"-MISCONF Redis is configured to save RDB snapshots\r\n", "cannot save to its disk"),
        (b"-ERR unknown command\r\n", "did not answer as a Redis does"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "did not answer as a Redis does"),
        (b":7\r\n", "another program"),
        (b"+OK\r\n", "another program"),
        (b"*0\r\n", "another program"),
        (b"*1\r\n", "did not answer in time"),
        (b"$1000000000000\r\n", "did not answer in time"),
    ],
)
def test_a_server_that_says(answer: bytes, words: str) -> None:
    async def body() -> None:
        async with server_that_says(answer) as url:
            store = RedisStore(redis_place(url))
            try:
                for act in (*QUICK.values(), LONG["alias_table"]):
                    await assert_fails(store, act, words)
            finally:
                await store.close()

    asyncio.run(body())


@pytest.mark.parametrize("answer", [b":7\r\n", b"+OK\r\n", b"*0\r\n", b"*1\r\n*0\r\n", b"*1\r\n:1\r\n"])
def test_a_server_that_is_replaced_by_nonsense(server: RedisServer, answer: bytes) -> None:
    async def body() -> None:
        async with Proxy(server.address) as proxy, opened(proxy.url) as store, server_that_says(answer) as nonsense:
            await fill(store)
            server.command("CLIENT", "KILL", "TYPE", "normal")
            proxy.target = redis_place(nonsense).servers[0]
            with pytest.raises(StoreUnavailable):
                await store.versions()
            for act in (*QUICK.values(), *LONG.values()):
                await assert_fails(store, act, "damaged value|emptied or replaced")

    asyncio.run(body())


def test_listening_goes_on_when_the_server_is_back(server: RedisServer) -> None:
    async def body() -> None:
        async with opened(server.url()) as store, aclosing(store.changes()) as changes:
            await asyncio.wait_for(anext(changes), 5.0)
            server.kill()
            waiting = asyncio.ensure_future(anext(changes))
            await assert_fails(store, QUICK["versions"], "cannot be reached|closed the connection")
            assert not waiting.done()
            await asyncio.to_thread(server.start)
            await asyncio.wait_for(waiting, 10.0)

    asyncio.run(body())
