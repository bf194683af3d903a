"""What is particular to the Redis store: one lock over all writes, foreign and damaged data, rights, announcements."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from gateway.model import Instance, Target
from gateway.redislink import LinkFault, RedisLink
from gateway.secret import Secret
from gateway.stateurl import RedisPlace, redis_place
from gateway.stores import redis
from gateway.stores.chain import first_break
from gateway.stores.interfaces import KeyRecord, KeySecret, StoreUnavailable
from gateway.stores.redis import RedisStore
from gateway.stores.redis_scripts import (
    ALIASES,
    AUDIT,
    DELETIONS,
    ENGINES,
    HEAD,
    INSTANCES,
    KEYS,
    NAMES,
    SECRETS,
    Command,
)
from tests.redisserver import Proxy, RedisServer

SECOND = KeySecret(150.0)
# The rights that the documentation of the store tells an operator to give, taken from there.
RULES = redis.__doc__.partition(">PASSWORD ")[2].partition("\n\n")[0].replace("\\", "").split()


def place_of(server: RedisServer, user: str = "") -> RedisPlace:
    return redis_place(server.url(credentials=user))


def run(place: RedisPlace, body: Callable[[RedisStore], Awaitable[Any]]) -> Any:
    async def with_store() -> Any:
        store = await RedisStore.open(place)
        try:
            return await body(store)
        finally:
            await store.close()

    return asyncio.run(with_store())


def key(key_id: str = "AAAAAAAA", name: str = "app") -> KeyRecord:
    return KeyRecord(key_id, name, "t1", ("user",), ("*",), 100.0, secrets=(KeySecret(100.0),))


async def write(store: RedisStore, alias: str = "chat") -> None:
    await store.assign_alias(alias, [Target("m")], author="ann", at=1.0, note="why")


async def use_beside_the_trail(store: RedisStore) -> None:
    for name in ("i1", "i2"):
        await store.beat(Instance(name, name, "1", "", 1.0, 2.0, 3))
    await store.forget_instance("i2")
    await store.note_uses({("chat", 1): 5.0})
    assert [one.id for one in await store.instances()] == ["i1"]
    assert dict(await store.alias_uses("chat")) == {1: 5.0}


async def use_everything(store: RedisStore) -> None:
    await store.add_key(b"one", key(), author="ann")
    await store.rotate_key("app", b"two", SECOND, overlap_until=200.0, author="ann")
    await store.pepper_mark(1, b"mark")
    await write(store)
    await write(store, "old")
    await store.delete_alias("old", author="ann", at=2.0)
    await store.add_engine("http://a:1", labels={"gpu": "h100"}, author="ann", at=2.5)
    await store.drain_engine("http://b:1", draining=True, author="ann", at=2.6)
    await store.drain_engine("http://b:1", draining=False, author="ann", at=2.7)
    await store.note(at=3.0, author="ann", verb="policy.load", subject="access", detail={})
    await store.revoke_key("app", at=300.0, author="ann")
    await use_beside_the_trail(store)
    assert len(await store.list_keys()) == len(await store.alias_history("chat")) == 1
    assert (await store.find_key(b"two")) is not None
    assert set((await store.alias_table()).current) == {"chat"}
    assert set((await store.engine_orders()).engines) == {"http://a:1"}


async def assert_whole(store: RedisStore) -> None:
    """The trail is gapless and chained up to its head."""
    lines = await store.audit(limit=10_000)
    assert first_break(lines) is None
    number, seal = await store.audit_head()
    assert (len(lines), lines[-1].hash if lines else bytes(32)) == (number, seal)


def test_keys_in_redis_are_as_documented_and_hold_no_secret(redis_server: RedisServer) -> None:
    run(place_of(redis_server), use_everything)
    kept = {name.decode() for name in redis_server.command("KEYS", "*")}
    of_aliases = {ALIASES, DELETIONS, "{gw}:history:chat", "{gw}:history:old", "{gw}:uses:chat"}
    assert kept == {HEAD, KEYS, SECRETS, NAMES, AUDIT, ENGINES, INSTANCES, "{gw}:marks"} | of_aliases
    entries = redis_server.command("XRANGE", AUDIT, "-", "+")
    assert [entry[0] for entry in entries] == [b"%d-0" % number for number in range(1, 11)]
    assert b"two".hex() not in json.dumps([str(entry) for entry in entries])


def test_two_stores_racing_lose_nothing_and_leave_no_gap(redis_server: RedisServer) -> None:
    async def writes(store: RedisStore, who: str) -> list[int]:
        made = []
        for _ in range(50):
            made.append((await store.assign_alias("chat", [Target(who)], author=who, at=1.0)).number)
        return made

    async def body(store: RedisStore) -> None:
        other = await RedisStore.open(place_of(redis_server))
        try:
            made = await asyncio.gather(
                *(writes(one, who) for one, who in zip((store, other) * 2, "abcd", strict=True))
            )
        finally:
            await other.close()
        assert sorted(number for numbers in made for number in numbers) == list(range(1, 201))
        assert all(numbers == sorted(numbers) for numbers in made)
        history = await store.alias_history("chat")
        assert [revision.number for revision in history] == list(range(1, 201))
        by_author = {who: [one.number for one in history if one.author == who] for who in "abcd"}
        assert list(by_author.values()) == made
        assert (await store.versions()).aliases == (await store.audit_head())[0] == 200
        await assert_whole(store)

    run(place_of(redis_server), body)


@pytest.mark.parametrize("moment", ["before a read", "before a commit"])
def test_scripts_that_the_server_forgot_are_told_again(redis_server: RedisServer, moment: str) -> None:
    async def body(store: RedisStore) -> None:
        await write(store)
        if moment == "before a commit":
            await store.versions()
        redis_server.command("SCRIPT", "FLUSH")
        await write(store)
        assert (await store.versions()).aliases == 2

    run(place_of(redis_server), body)


@pytest.mark.parametrize("then", [None, ("HSET", "{gw}:head", "schema", 1)], ids=["emptied", "another store"])
def test_a_store_that_was_emptied_does_not_pass_for_an_empty_one(redis_server: RedisServer, then: Any) -> None:
    async def body(store: RedisStore) -> None:
        await store.add_key(b"one", key(), author="ann")
        redis_server.command("FLUSHALL")
        if then is not None:
            redis_server.command(*then)
        for call in (store.versions(), store.find_key(b"one"), store.alias_table(), write(store), store.audit()):
            with pytest.raises(StoreUnavailable, match="was emptied or replaced while in use"):
                await call
        with pytest.raises(StoreUnavailable, match="was emptied or replaced while in use"):
            await use_beside_the_trail(store)
        with pytest.raises(StoreUnavailable, match="was emptied or replaced while in use"):
            await store.note_uses({("chat", 1): 5.0})
        assert redis_server.command("EXISTS", AUDIT, ALIASES, INSTANCES, "{gw}:uses:chat") == 0

    run(place_of(redis_server), body)


@pytest.mark.parametrize(
    "theirs",
    [("SET", HEAD, "x"), ("HSET", HEAD, "x", "y"), ("SET", ALIASES, "x"), ("RPUSH", AUDIT, "x")],
    ids=["head of another type", "head without schema", "aliases without head", "audit without head"],
)
def test_another_programs_data_is_refused_and_kept(redis_server: RedisServer, theirs: tuple[str, ...]) -> None:
    redis_server.command(*theirs)
    with pytest.raises(StoreUnavailable, match="another program"):
        run(place_of(redis_server), write)
    assert redis_server.command("KEYS", "*") == [theirs[1].encode()]


def test_other_keys_of_the_same_database_are_let_alone(redis_server: RedisServer) -> None:
    redis_server.command("SET", "theirs", "x")
    run(place_of(redis_server), use_everything)
    assert redis_server.command("GET", "theirs") == b"x"


def test_a_newer_schema_is_refused_with_what_to_do(redis_server: RedisServer) -> None:
    run(place_of(redis_server), write)
    redis_server.command("HSET", HEAD, "schema", 7)
    with pytest.raises(StoreUnavailable, match=r"newer gateway \(schema 7; this one knows 2\).*upgrade"):
        run(place_of(redis_server), write)
    assert redis_server.command("HGET", HEAD, "schema") == b"7"


def test_a_store_of_the_first_schema_is_taken_over(redis_server: RedisServer) -> None:
    run(place_of(redis_server), write)
    for name, field in ((ALIASES, "chat"), ("{gw}:history:chat", "1")):
        values = json.loads(redis_server.command("HGET", name, field))
        del values["canary_of"]
        redis_server.command("HSET", name, field, json.dumps(values))
    redis_server.command("HSET", HEAD, "schema", 1)

    async def body(store: RedisStore) -> None:
        assert redis_server.command("HGET", HEAD, "schema") == b"2"
        first = (await store.alias_table()).current["chat"]
        assert (first.number, first.targets, first.canary_of) == (1, (Target("m"),), None)
        assert list(await store.alias_history("chat")) == [first]
        assert await store.delete_alias("chat", author="ann", at=2.0) == first
        await write(store)
        assert (await store.alias_table()).current["chat"].number == 2
        await assert_whole(store)

    run(place_of(redis_server), body)


def everything_in(server: RedisServer) -> dict[bytes, bytes]:
    """The whole content of a server, as bytes."""
    return {name: server.command("DUMP", name) for name in server.command("KEYS", "*")}


@pytest.mark.parametrize("damaged", [ALIASES, "{gw}:history:chat", AUDIT])
def test_a_key_of_another_type_stops_a_write_whole(redis_server: RedisServer, damaged: str) -> None:
    async def body(store: RedisStore) -> None:
        await write(store)
        redis_server.command("DEL", damaged)
        redis_server.command("SET", damaged, "theirs")
        before = everything_in(redis_server)
        with pytest.raises(StoreUnavailable, match="value of another program, or a damaged one"):
            await write(store)
        assert everything_in(redis_server) == before

    run(place_of(redis_server), body)


@pytest.mark.parametrize("damaged", [ALIASES, DELETIONS, AUDIT])
def test_a_key_of_another_type_stops_a_deletion_whole(redis_server: RedisServer, damaged: str) -> None:
    async def body(store: RedisStore) -> None:
        await write(store)
        redis_server.command("DEL", damaged)
        redis_server.command("SET", damaged, "theirs")
        before = everything_in(redis_server)
        with pytest.raises(StoreUnavailable, match="value of another program, or a damaged one"):
            await store.delete_alias("chat", author="ann", at=2.0)
        assert everything_in(redis_server) == before

    run(place_of(redis_server), body)


def test_without_memory_every_write_of_an_alias_is_refused_whole(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:

        async def body(store: RedisStore) -> None:
            await write(store)
            before = everything_in(server)
            server.command("CONFIG", "SET", "maxmemory", 1)
            for call in (write(store), write(store, "new"), store.delete_alias("chat", author="ann", at=2.0)):
                with pytest.raises(StoreUnavailable, match=r"out of memory.*Nothing was changed"):
                    await call
            server.command("CONFIG", "SET", "maxmemory", 0)
            assert everything_in(server) == before
            await store.delete_alias("chat", author="ann", at=2.0)
            await assert_whole(store)

        run(place_of(server), body)


def test_what_the_trail_does_not_tell_of_leaves_the_head_and_the_channel_alone(redis_server: RedisServer) -> None:
    async def body(store: RedisStore) -> None:
        await write(store)
        before = redis_server.command("DUMP", HEAD)
        async with aclosing(store.changes()) as changes:
            await asyncio.wait_for(anext(changes), 5.0)
            waiting = asyncio.ensure_future(anext(changes))
            await use_beside_the_trail(store)
            assert redis_server.command("DUMP", HEAD) == before
            assert not waiting.done()
            await store.delete_alias("chat", author="ann", at=2.0)
            await asyncio.wait_for(waiting, 5.0)

    run(place_of(redis_server), body)


def test_what_a_newer_gateway_says_of_itself_besides_is_let_go(redis_server: RedisServer) -> None:
    async def body(store: RedisStore) -> None:
        await store.beat(Instance("i1", "i1", "2", "", 1.0, 2.0, 3))
        told = json.loads(redis_server.command("HGET", INSTANCES, "i1"))
        redis_server.command("HSET", INSTANCES, "i1", json.dumps({**told, "mood": "fine"}))
        assert list(await store.instances()) == [Instance("i1", "i1", "2", "", 1.0, 2.0, 3)]

    run(place_of(redis_server), body)


@pytest.mark.parametrize("text", [b"\xff", b"{}", b"[]", b"7", b'{"alias": "chat"}'])
def test_a_value_that_cannot_be_read_is_unavailable(redis_server: RedisServer, text: bytes) -> None:
    async def body(store: RedisStore) -> None:
        await write(store)
        await store.add_key(b"one", key(), author="ann")
        await store.note_uses({("chat", 1): 5.0})
        fields = ((ALIASES, "chat"), (DELETIONS, "old"), ("{gw}:history:chat", "1"), ("{gw}:uses:chat", "1"))
        for name, field in (*fields, (KEYS, "AAAAAAAA"), (INSTANCES, "i1")):
            redis_server.command("HSET", name, field, text if text != b"7" or "uses" not in name else b"x")
        calls = (store.alias_table(), store.alias_history("chat"), write(store), store.find_key(b"one"))
        aliases = (
            write(store, "old"),
            store.delete_alias("chat", author="ann", at=1.0),
            store.alias_revision("chat", 1),
        )
        keys = (store.list_keys(), store.revoke_key("app", at=1.0, author="ann"))
        for call in (*calls, *aliases, *keys, store.alias_uses("chat"), store.instances()):
            with pytest.raises(StoreUnavailable, match="damaged value"):
                await call

    run(place_of(redis_server), body)


@pytest.mark.parametrize("broken", [1, 2, 3])
@pytest.mark.parametrize("text", [b"\xff", b'[1.0, "eve", "alias.set", "chat", "{}", "", ""]', None])
def test_a_line_that_was_changed_or_removed_is_found(
    redis_server: RedisServer, broken: int, text: bytes | None
) -> None:
    async def body(store: RedisStore) -> int | None:
        for _ in range(3):
            await write(store)
        lines = redis_server.command("XRANGE", AUDIT, "-", "+")
        redis_server.command("DEL", AUDIT)
        for number, (line_id, fields) in enumerate(lines, 1):
            if number != broken or text is not None:
                redis_server.command("XADD", AUDIT, line_id, "line", text if number == broken else fields[b"line"])
        found = await store.audit()
        number, seal = await store.audit_head()
        return first_break(found) or (None if found[-1].hash == seal else len(found) + 1)

    assert run(place_of(redis_server), body) == broken


def test_a_line_that_is_there_already_stops_a_write_whole(redis_server: RedisServer) -> None:
    async def body(store: RedisStore) -> None:
        redis_server.command("XADD", AUDIT, "1-0", "line", "forged")
        with pytest.raises(StoreUnavailable, match="audit trail that is damaged"):
            await write(store)
        assert (await store.audit_head(), (await store.alias_table()).current) == ((0, bytes(32)), {})

    run(place_of(redis_server), body)


def test_a_whole_hash_is_parsed_in_small_parts(redis_server: RedisServer) -> None:
    async def body(store: RedisStore) -> None:
        for number in range(501):
            redis_server.command("HSET", INSTANCES, number, number)
        for hash_of, sizes in ((INSTANCES, [250, 250, 1]), (ALIASES, [])):
            _, (lists,) = await store._state.read_bulk(Command("HVALS", hash_of))
            assert [len(json.loads(text)) for text in lists] == sizes

    run(place_of(redis_server), body)


def test_a_page_of_the_trail_is_read_alone(redis_server: RedisServer) -> None:
    async def body(store: RedisStore) -> None:
        for number in range(12):
            await store.note(at=float(number), author="ann", verb="v", subject="s", detail={})
        assert [line.number for line in await store.audit(after=7, limit=3)] == [8, 9, 10]
        assert [line.number for line in await store.audit(after=11)] == [12]
        assert list(await store.audit(after=12)) == list(await store.audit(limit=0)) == []
        redis_server.command("CONFIG", "RESETSTAT")
        await store.audit(after=10, limit=1)
        calls = redis_server.command("INFO", "commandstats")
        assert calls["cmdstat_xrange"]["calls"] == 1

    run(place_of(redis_server), body)


def test_the_documented_user_can_do_all_and_no_more(redis_server: RedisServer) -> None:
    redis_server.command("ACL", "SETUSER", "gateway", "reset", "on", ">pw", *RULES)
    place = place_of(redis_server, "gateway:pw@")

    async def body(store: RedisStore) -> None:
        async with aclosing(store.changes()) as changes:
            await asyncio.wait_for(anext(changes), 5.0)
            await use_everything(store)
            await asyncio.wait_for(anext(changes), 5.0)
        await assert_whole(store)

    async def trespass() -> None:
        link = RedisLink(place)
        try:
            for command in (("DEL", AUDIT), ("XTRIM", AUDIT, "MAXLEN", 0), ("XDEL", AUDIT, "1-0"), ("GET", "theirs")):
                for attempt in (command, ("EVAL", "return redis.call(unpack(ARGV))", 0, *command)):
                    with pytest.raises(LinkFault, match="forbids"):
                        await link.run(*attempt)
        finally:
            await link.close()

    run(place, body)
    asyncio.run(trespass())


def test_a_name_that_is_given_again_and_again_does_not_grow(redis_server: RedisServer) -> None:
    async def body(store: RedisStore) -> None:
        for number in range(20):
            at = 100.0 + number
            record = KeyRecord(f"id{number}", "app", "t1", (), (), at, secrets=(KeySecret(at),))
            await store.add_key(b"%d" % number, record, author="ann")
            await store.revoke_key("app", at=at, author="ann")
        assert (await store.get_key("app")).id == "id19"
        assert (await store.get_key("id0")).name == "app"
        assert len(await store.list_keys()) == 20

    run(place_of(redis_server), body)
    assert len(json.loads(redis_server.command("HGET", NAMES, "app"))) == 16


@pytest.mark.parametrize("right", ["+hset", "+hdel", "+xadd", "+publish", "&{gw}:changed"])
def test_a_right_that_is_missing_stops_a_write_whole(redis_server: RedisServer, right: str) -> None:
    run(place_of(redis_server), write)
    rules = [rule for rule in RULES if rule != right]
    redis_server.command("ACL", "SETUSER", "gateway", "reset", "on", ">pw", *rules)

    async def body(store: RedisStore) -> None:
        before = await store.audit_head(), await store.alias_table()
        with pytest.raises(StoreUnavailable, match="forbids the gateway's user"):
            await (store.delete_alias("chat", author="ann", at=2.0) if right == "+hdel" else write(store))
        assert (await store.audit_head(), await store.alias_table()) == before
        await assert_whole(store)

    run(place_of(redis_server, "gateway:pw@"), body)


def test_a_write_is_heard_by_another_instance(redis_server: RedisServer) -> None:
    async def body(store: RedisStore) -> None:
        other = await RedisStore.open(place_of(redis_server))
        try:
            async with aclosing(other.changes()) as changes:
                await asyncio.wait_for(anext(changes), 5.0)
                await write(store)
                await asyncio.wait_for(anext(changes), 5.0)
                waiting = asyncio.ensure_future(anext(changes))
                await store.versions()
                assert not waiting.done()
                await store.note(at=1.0, author="ann", verb="v", subject="s", detail={})
                await asyncio.wait_for(waiting, 5.0)
        finally:
            await other.close()

    run(place_of(redis_server), body)


def test_listening_begins_again_by_itself_and_that_counts_as_a_change(redis_server: RedisServer) -> None:
    async def body(store: RedisStore) -> None:
        async with aclosing(store.changes()) as changes:
            await asyncio.wait_for(anext(changes), 5.0)
            redis_server.command("CLIENT", "KILL", "TYPE", "pubsub")
            await asyncio.wait_for(anext(changes), 5.0)
            await write(store)
            await asyncio.wait_for(anext(changes), 5.0)

    run(place_of(redis_server), body)


def test_closing_ends_the_listening(redis_server: RedisServer) -> None:
    async def body(store: RedisStore) -> list[None]:
        changes = store.changes()
        await asyncio.wait_for(anext(changes), 5.0)
        rest = asyncio.ensure_future(_all(changes))
        await asyncio.sleep(0)
        await store.close()
        return await asyncio.wait_for(rest, 5.0)

    assert run(place_of(redis_server), body) == []


async def _all(changes: Any) -> list[None]:
    return [item async for item in changes]


def test_a_store_can_be_made_before_its_redis_answers(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        server.kill()

        async def body() -> None:
            store = RedisStore(place_of(server))
            try:
                with pytest.raises(StoreUnavailable, match="cannot be reached"):
                    await store.versions()
                await asyncio.to_thread(server.start)
                await use_everything(store)
            finally:
                await store.close()

        asyncio.run(body())


def test_a_password_is_in_no_message(tmp_path: Path) -> None:
    with RedisServer(tmp_path, password="s3cret-and-long") as server:
        place = redis_place(f"redis://{server.address[0]}:{server.port}", Secret("wrong-and-s3cret"))
        with pytest.raises(StoreUnavailable, match="refuses the user or password") as raised:
            run(place, write)
        assert "s3cret" not in f"{raised.value} {raised.value!r} {place} {place!r}"
        run(place_of(server), use_everything)


def test_after_a_failover_behind_one_name_the_new_primary_is_found(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "a") as first, RedisServer(tmp_path / "b") as second:
        second.command("REPLICAOF", *first.address)

        async def body() -> None:
            async with Proxy(first.address) as proxy:
                store = await RedisStore.open(redis_place(proxy.url))
                try:
                    await write(store)
                    await _until(lambda: second.command("EXISTS", AUDIT) == 1)
                    second.command("REPLICAOF", "NO", "ONE")
                    first.command("REPLICAOF", *second.address)
                    proxy.target = second.address
                    with pytest.raises(StoreUnavailable, match="is a replica"):
                        await write(store)
                    await write(store)
                    assert second.command("HGET", HEAD, "number") == b"2"
                    await assert_whole(store)
                finally:
                    await store.close()

        asyncio.run(body())


async def _until(condition: Callable[[], bool], patience: float = 10.0) -> None:
    async with asyncio.timeout(patience):
        while not condition():
            await asyncio.sleep(0.01)
