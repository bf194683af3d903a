"""What instances tell each other over a real redis-server, and that nothing stays there that nobody renews."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from gateway.stateurl import redis_place
from gateway.stores import redis
from gateway.stores.interfaces import StoreUnavailable
from gateway.stores.redis_load import HINTS, LOAD, Bounds, RedisLoad, Told
from tests.redisserver import RedisServer, server_that_says

BOUNDS = Bounds(expiry=30.0, report=100, hints=50, instances=5)
Make = Callable[..., RedisLoad]


@pytest.fixture
def usual_times() -> None:
    """For a test of what takes too long."""


@pytest.fixture(autouse=True)
def _patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that stands still is no lost store here."""
    if "usual_times" not in request.fixturenames:
        monkeypatch.setattr("gateway.stores.redis_load._TIMEOUT", 10.0)
        monkeypatch.setattr("gateway.stores.redis_load._DEADLINE", 10.0)


@asynccontextmanager
async def instances(url: str) -> AsyncIterator[Make]:
    """Makes instances and closes them."""
    made: list[RedisLoad] = []

    def make(name: str, **bounds: float) -> RedisLoad:
        made.append(RedisLoad(redis_place(url), name, BOUNDS._replace(**bounds)))
        return made[-1]

    try:
        yield make
    finally:
        for each in made:
            await each.close()


def played(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test in a loop of its own."""

    @wraps(test)
    def play(*args: Any, **fixtures: Any) -> None:
        asyncio.run(test(*args, **fixtures))

    return play


def reports(told: Told) -> set[bytes]:
    return {report for report, _ in told.reports}


@played
async def test_instances_hear_each_other_and_not_themselves(redis_server):
    async with instances(redis_server.url()) as make:
        one, two, three = make("one"), make("two"), make("three")
        assert reports(await one.exchange(b"of one\r\n\0", b"")) == set()
        assert reports(await two.exchange(b"of two", b"")) == {b"of one\r\n\0"}
        told = await three.exchange(b"", b"")
        assert reports(told) == {b"of one\r\n\0", b"of two"}
        assert all(0 <= age < 5 for _, age in told.reports)
        assert reports(await one.exchange(b"of one, newer", b"")) == {b"of two"}
        assert reports(await two.exchange(b"of two", b"")) == {b"of one, newer"}


@played
async def test_an_instance_that_has_nothing_takes_its_report_back(redis_server):
    async with instances(redis_server.url()) as make:
        one, two = make("one"), make("two")
        await one.exchange(b"of one", b"")
        await one.exchange(b"", b"")
        assert reports(await two.exchange(b"", b"")) == set()
    assert redis_server.command("EXISTS", LOAD, HINTS) == 0  # idle instances leave nothing there


@played
async def test_a_report_tells_its_age_and_ends(redis_server):
    async with instances(redis_server.url()) as make:
        one, two = make("one", expiry=1.0), make("two", expiry=1.0)
        await one.exchange(b"of one", b"")
        ages: list[float] = []
        async with asyncio.timeout(5):
            while pairs := (await two.exchange(b"of two", b"")).reports:
                ages.append(pairs[0][1])
        assert ages == sorted(ages)
        assert 0.0 <= ages[0] < ages[-1] < 1.0
    assert redis_server.command("HGETALL", LOAD).keys() <= {b"two"}


@played
async def test_the_hash_ends_with_its_last_report(redis_server):
    async with instances(redis_server.url()) as make:
        await make("one", expiry=0.1).exchange(b"of one", b"of one")
        assert redis_server.command("PTTL", HINTS) > 100_000
        async with asyncio.timeout(5):
            while redis_server.command("EXISTS", LOAD):
                await asyncio.sleep(0)


@pytest.mark.parametrize("entry", ["", "x", "123", "x" * 20, "-999999999999report", "9" * 13 + "r", "0" * 13 + "r"])
@played
async def test_what_has_no_time_or_one_that_cannot_be_is_removed(redis_server, entry):
    redis_server.command("HSET", LOAD, "broken", entry)
    async with instances(redis_server.url()) as make:
        assert reports(await make("one").exchange(b"of one", b"")) == set()
        assert reports(await make("two").exchange(b"", b"")) == {b"of one"}
    assert redis_server.command("HGETALL", LOAD).keys() == {b"one"}


@played
async def test_a_gigantic_report_is_neither_given_nor_kept(redis_server):
    async with instances(redis_server.url()) as make:
        broken = make("broken", report=1 << 30)
        await broken.exchange(b"x" * 1_000_000, b"")
        told = await make("one").exchange(b"", b"")
        assert (reports(told), told.unfit) == (set(), 1)
        assert (await make("two").exchange(b"", b"")).unfit == 0
    assert redis_server.command("EXISTS", LOAD) == 0


@played
async def test_no_more_reports_are_given_than_there_may_be(redis_server):
    async with instances(redis_server.url()) as make:
        for number in range(8):
            await make(f"instance {number}").exchange(b"%d" % number, b"")
        told = await make("one").exchange(b"", b"")
        assert (len(told.reports), told.unfit) == (5, 3)


@played
async def test_thousands_of_dead_entries_are_removed_at_once(redis_server):
    redis_server.command("HSET", LOAD, *[part for number in range(5_000) for part in (f"dead {number}", "x")])
    async with instances(redis_server.url()) as make:
        assert (await make("one").exchange(b"", b"")).unfit == 5_000
    assert redis_server.command("EXISTS", LOAD) == 0


# --- hints


@played
async def test_hints_are_heard_once_by_all_others_in_their_order(redis_server):
    async with instances(redis_server.url()) as make:
        one, two, three = make("one"), make("two"), make("three")
        await one.exchange(b"", b"first\0")
        await one.exchange(b"", b"second")
        assert (await two.exchange(b"", b"third")).hints == [b"first\0", b"second"]
        assert (await two.exchange(b"", b"")).hints == []
        assert (await three.exchange(b"", b"")).hints == [b"first\0", b"second", b"third"]
        assert (await one.exchange(b"", b"")).hints == [b"third"]
        assert (await one.exchange(b"", b"")).hints == []


@played
async def test_of_many_hints_some_are_given_at_a_time_and_the_newest_kept(redis_server):
    async with instances(redis_server.url()) as make:
        for number in range(1_100):
            redis_server.command("XADD", HINTS, "*", "other", f"{number}")
        one = make("one")
        await make("two").exchange(b"", b"last")
        assert redis_server.command("XLEN", HINTS) == 1_024
        heard: list[bytes] = []
        while hints := (await one.exchange(b"", b"")).hints:
            assert len(hints) <= 128
            heard += hints
        assert heard == [*(b"%d" % number for number in range(77, 1_100)), b"last"]


@played
async def test_hints_that_are_too_long_or_none_are_passed_over(redis_server):
    redis_server.command("XADD", HINTS, "*", "broken", "x" * 1_000_000)
    redis_server.command("XADD", HINTS, "*", "broken", "x", "more", "y")
    redis_server.command("XADD", HINTS, "*", "other", "sound")
    async with instances(redis_server.url()) as make:
        one = make("one")
        told = await one.exchange(b"", b"")
        assert (told.hints, told.unfit) == ([b"sound"], 2)
        told = await one.exchange(b"", b"")
        assert (told.hints, told.unfit) == ([], 0)


# --- what can go wrong


@played
async def test_a_server_that_was_killed_is_heard_again_when_it_is_back(tmp_path: Path):
    with RedisServer(tmp_path) as server:
        async with instances(server.url()) as make:
            one, two = make("one"), make("two")
            await one.exchange(b"of one", b"a")
            assert (await two.exchange(b"of two", b"")).hints == [b"a"]
            server.kill()
            for _ in range(3):
                with pytest.raises(StoreUnavailable, match=rf"127\.0\.0\.1:{server.port}/0 "):
                    await two.exchange(b"of two", b"lost")
            server.start()
            await two.exchange(b"of two", b"b")
            told = await one.exchange(b"of one", b"")
            assert (reports(told), told.hints) == ({b"of two"}, [b"b"])


@pytest.mark.usefixtures("usual_times")
@played
async def test_a_frozen_server_fails_the_exchange_soon(tmp_path: Path):
    with RedisServer(tmp_path) as server:
        async with instances(server.url()) as make:
            one = make("one")
            await until_it_works(one)
            server.freeze()
            try:
                async with asyncio.timeout(5):
                    with pytest.raises(StoreUnavailable, match="did not answer in time"):
                        await one.exchange(b"of one", b"")
            finally:
                server.thaw()
            await until_it_works(one)


async def until_it_works(one: RedisLoad) -> None:
    async with asyncio.timeout(10):
        while True:
            with suppress(StoreUnavailable):
                await one.exchange(b"of one", b"")
                return
            await asyncio.sleep(0)


@played
async def test_data_of_another_program_is_left_alone(redis_server):
    redis_server.command("SET", LOAD, "theirs")
    async with instances(redis_server.url()) as make:
        with pytest.raises(StoreUnavailable, match="another program"):
            await make("one").exchange(b"of one", b"")
    assert redis_server.command("GET", LOAD) == b"theirs"


@pytest.mark.parametrize(
    "answer",
    [
        b"+OK\r\n",
        b":1\r\n",
        b"$-1\r\n",
        b"*0\r\n",
        b"*4\r\n:0\r\n$3\r\n0-0\r\n*0\r\n*1\r\n:5\r\n",  # an age without a report
        b"*4\r\n:0\r\n$3\r\n0-0\r\n*0\r\n*2\r\n:5\r\n:5\r\n",
        b"*4\r\n:0\r\n$3\r\n0-0\r\n*1\r\n:7\r\n*0\r\n",
        b"*4\r\n:0\r\n$3\r\n+ -\r\n*0\r\n*0\r\n",
        b"*4\r\n$1\r\nx\r\n$3\r\n0-0\r\n*0\r\n*0\r\n",
        b"nonsense\r\n",
    ],
)
@played
async def test_an_answer_that_the_script_does_not_give_is_a_failure(answer):
    async with server_that_says(answer) as url, instances(url) as make:
        with pytest.raises(StoreUnavailable):
            await make("one").exchange(b"of one", b"")


@played
async def test_after_it_was_closed_nothing_is_asked(redis_server):
    async with instances(redis_server.url()) as make:
        one = make("one")
        await one.close()
        await one.close()
        with pytest.raises(StoreUnavailable, match="is closed"):
            await one.exchange(b"of one", b"")


@played
async def test_the_rights_that_the_gateway_is_to_be_given_suffice(redis_server):
    rights = redis.__doc__.partition(">PASSWORD ")[2].partition("\n\n")[0].replace("\\", "").split()
    redis_server.command("ACL", "SETUSER", "sharer", "reset", "on", ">pw", *rights)
    try:
        async with instances(redis_server.url(credentials="sharer:pw@")) as make:
            one, two = make("one"), make("two")
            await one.exchange(b"of one", b"a")
            assert reports(await two.exchange(b"of two", b"b")) == {b"of one"}
            await one.exchange(b"", b"")
    finally:
        redis_server.command("ACL", "DELUSER", "sharer")
