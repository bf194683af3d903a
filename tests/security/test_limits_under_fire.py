"""A shared store that fails in every way it can: limits neither vanish nor stop the traffic.

For each fault: the first request waits at most its deadline, those after it do not wait at all; what is admitted is the
instance's share, exactly; the loss is reported once, and the return once; afterwards the shared figure holds again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from gateway.limits.breaker import Breaker
from gateway.limits.interfaces import Lease, LimitReached
from gateway.limits.local import LocalLimiter
from gateway.limits.redis import RedisLimiter
from gateway.limits.scripts import key_of
from gateway.model import Budget, Limits
from gateway.redislink import RedisLink
from gateway.stateurl import redis_place
from tests.redisserver import Proxy, RedisServer, server_that_says

DEADLINE = 0.4
FIGURE, SHARE, PART = 20, 0.25, 5
RATE = [Budget("principal:a", Limits(requests_per_minute=FIGURE)), Budget("tenant:t", Limits(tokens_per_day=10**6))]
PLACES = [Budget("principal:a", Limits(concurrency=FIGURE))]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Fire:
    """A server, a proxy in front of it, and a limiter behind that."""

    def __init__(self, server: RedisServer, proxy: Proxy, link: RedisLink) -> None:
        self.server, self.proxy, self.link = server, proxy, link
        self.clock, self.reports = Clock(), []
        breaker = Breaker(self.clock, jitter=lambda: 0.5, report=self.reports.append)
        fallback = LocalLimiter(self.clock)
        self.limiter = RedisLimiter(link, fallback, breaker, share=SHARE, name="me", deadline=DEADLINE)

    async def admit(self, budgets: list[Budget]) -> Lease:
        outcome = self.limiter.admit(budgets, 1)
        return await outcome if asyncio.iscoroutine(outcome) else outcome

    async def admitted(self, count: int, budgets: list[Budget]) -> list[Lease]:
        found = []
        for _ in range(count):
            with contextlib.suppress(LimitReached):
                found.append(await self.admit(budgets))
        return found

    async def recovered(self) -> None:
        """Let the store be found again: at the second probe at the latest, when the first had a stale connection."""
        for _ in range(2):
            self.clock.now += 11
            await self.admitted(1, RATE)
            if not self.limiter.alone:
                return
        pytest.fail("the store is back and is not found")

    async def aside(self, *command: Any) -> Any:
        return await asyncio.to_thread(self.server.command, *command)

    async def cut(self) -> None:
        """Break the connections of the gateway, so that what comes next connects anew."""
        await self.aside("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


Fault = Any  # a context: the fault is there inside, and mended behind


@contextlib.asynccontextmanager
async def frozen(fire: Fire) -> AsyncIterator[None]:
    fire.server.freeze()
    try:
        yield
    finally:
        fire.server.thaw()


@contextlib.asynccontextmanager
async def killed(fire: Fire) -> AsyncIterator[None]:
    fire.server.kill()
    yield
    await asyncio.to_thread(fire.server.start)


@contextlib.asynccontextmanager
async def refused(fire: Fire) -> AsyncIterator[None]:
    there, fire.proxy.target = fire.proxy.target, ("127.0.0.1", 1)
    await fire.cut()
    yield
    fire.proxy.target = there


@contextlib.asynccontextmanager
async def wrong_password(fire: Fire) -> AsyncIterator[None]:
    await fire.aside("CONFIG", "SET", "requirepass", "another")
    fire.server.password = "another"
    await fire.cut()
    yield
    await fire.aside("CONFIG", "SET", "requirepass", "")
    fire.server.password = ""


@contextlib.asynccontextmanager
async def replica(fire: Fire) -> AsyncIterator[None]:
    await fire.aside("REPLICAOF", "127.0.0.1", 1)
    yield
    await fire.aside("REPLICAOF", "NO", "ONE")


@contextlib.asynccontextmanager
async def out_of_memory(fire: Fire) -> AsyncIterator[None]:
    await fire.aside("CONFIG", "SET", "maxmemory-policy", "noeviction")
    await fire.aside("CONFIG", "SET", "maxmemory", 1)
    yield
    await fire.aside("CONFIG", "SET", "maxmemory", 0)


@contextlib.asynccontextmanager
async def reset_mid_reply(fire: Fire) -> AsyncIterator[None]:
    fire.proxy.trap = b"EVALSHA"
    yield
    fire.proxy.trap = b""


@contextlib.asynccontextmanager
async def slow(fire: Fire) -> AsyncIterator[None]:
    fire.proxy.delay = 3 * DEADLINE
    yield
    fire.proxy.delay = 0.0


@contextlib.asynccontextmanager
async def says(fire: Fire, answer: bytes) -> AsyncIterator[None]:
    """Another server in its place, which gives the same answer to everything."""
    there = fire.proxy.target
    async with server_that_says(answer) as url:
        fire.proxy.target = redis_place(url).servers[0]
        await fire.cut()
        yield
        fire.proxy.target = there


FAULTS = {
    "frozen": frozen,
    "killed": killed,
    "refused": refused,
    "wrong password": wrong_password,
    "read-only replica": replica,
    "out of memory": out_of_memory,
    "reset mid-reply": reset_mid_reply,
    "slow": slow,
    "loading": lambda fire: says(fire, b"-LOADING Redis is loading the dataset in memory\r\n"),
    "moved": lambda fire: says(fire, b"-MOVED 5000 192.0.2.1:6379\r\n"),
    "not a redis": lambda fire: says(fire, b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "nonsense": lambda fire: says(fire, b"*2\r\n$1\r\nx\r\n$1\r\ny\r\n"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


def under_fire(server: RedisServer, story: Any) -> None:
    """Play a story against an empty server."""
    server.command("FLUSHALL")

    async def play() -> None:
        async with Proxy(server.address) as proxy:
            link = RedisLink(redis_place(proxy.url), timeout=DEADLINE)
            try:
                await story(Fire(server, proxy, link))
            finally:
                await link.close()

    asyncio.run(play())


@pytest.mark.parametrize("fault", FAULTS)
def test_the_share_is_held_at_once_and_the_whole_when_the_store_is_back(server, fault):
    async def story(fire: Fire) -> None:
        assert len(await fire.admitted(2, RATE)) == 2
        async with FAULTS[fault](fire):
            begin = time.monotonic()
            admitted = await fire.admitted(1, RATE)
            assert time.monotonic() - begin < DEADLINE + 1.0
            assert fire.limiter.alone
            outcomes = [outcome async for outcome in at_once(fire, 40)]
            assert len(admitted) + sum(not isinstance(o, LimitReached) for o in outcomes) == PART
            # A probe that fails, too, is answered from the share.
            if fault != "reset mid-reply":
                fire.clock.now += 1.01
                assert await fire.admitted(1, RATE) == []
                assert fire.limiter.alone
        assert len(fire.reports) == 1
        await fire.recovered()
        assert len(fire.reports) == 2
        # What the store knows of before stands, unless it lost it: 20 a minute for all instances.
        rest = await fire.admitted(40, RATE)
        assert len(rest) == FIGURE - 1 - (0 if fault == "killed" else 2) - uncounted(fault)

    under_fire(server, story)


async def at_once(fire: Fire, count: int) -> AsyncIterator[Lease | LimitReached]:
    """Admissions that must not wait."""
    for _ in range(count):
        try:
            outcome = fire.limiter.admit(RATE, 1)
        except LimitReached as error:
            yield error
        else:
            assert not asyncio.iscoroutine(outcome), "waits for a store that is known to be lost"
            yield outcome


def uncounted(fault: str) -> int:
    """Calls whose answer was lost were counted all the same: the error is on the side of the limit."""
    return {"frozen": 2, "slow": 2, "reset mid-reply": 1}.get(fault, 0)


@pytest.mark.parametrize("fault", ["frozen", "killed", "slow", "reset mid-reply"])
def test_places_are_held_and_none_is_lost_for_good(server, fault):
    async def story(fire: Fire) -> None:
        before = await fire.admitted(3, PLACES)
        async with FAULTS[fault](fire):
            during = await fire.admitted(40, PLACES)
            assert len(during) == PART
            for lease in (*before, *during):
                lease.close()
            assert len(await fire.admitted(40, PLACES)) == PART
        fire.clock.now += 11
        await fire.limiter.close()  # tells the store what was given back meanwhile, and is the probe
        assert not fire.limiter.alone
        assert await fire.aside("ZCARD", key_of("places", "principal:a")) == 0
        assert len(await fire.admitted(40, PLACES)) == FIGURE

    under_fire(server, story)


def test_a_frozen_store_holds_up_only_what_was_under_way(server):
    async def story(fire: Fire) -> None:
        await fire.admit(RATE)
        async with frozen(fire):
            begin = time.monotonic()
            outcomes = await asyncio.gather(*(fire.admit(RATE) for _ in range(50)), return_exceptions=True)
            assert time.monotonic() - begin < DEADLINE + 1.0
        assert sum(not isinstance(o, LimitReached) for o in outcomes) == PART
        assert all(isinstance(o, LimitReached) or not isinstance(o, BaseException) for o in outcomes)
        assert len(fire.reports) == 1

    under_fire(server, story)


def test_forgotten_scripts_are_no_fault(server):
    async def story(fire: Fire) -> None:
        await fire.admit(RATE)
        await fire.aside("SCRIPT", "FLUSH")
        lease = await fire.admit(PLACES)
        await fire.aside("SCRIPT", "FLUSH")
        lease.close()
        await fire.limiter.close()
        assert await fire.aside("ZCARD", key_of("places", "principal:a")) == 0
        assert fire.reports == []

    under_fire(server, story)


def test_a_settlement_whose_answer_was_lost_is_counted_once(server):
    async def story(fire: Fire) -> None:
        budget = [Budget("principal:a", Limits(tokens_per_minute=600))]
        first, second = [await fire.limiter.admit(budget, 250) for _ in range(2)]
        first.settle(50)
        fire.proxy.trap = b"EVALSHA"
        await fire.limiter.close()
        assert fire.limiter.alone
        fire.clock.now += 11
        await fire.limiter.close()
        assert not fire.limiter.alone
        left = (await fire.limiter.admit(budget, 0)).standing.remaining_tokens
        assert left == pytest.approx(300, abs=60)
        second.settle(250)

    under_fire(server, story)


def test_nothing_that_the_store_says_is_told_to_a_caller_or_a_log(server):
    async def story(fire: Fire) -> None:
        async with says(fire, b"-ERR SECRET-CANARY at 192.0.2.1\r\n"):
            await fire.admitted(PART, RATE)
            with pytest.raises(LimitReached) as caught:
                await fire.admit(RATE)
        assert "CANARY" not in f"{caught.value.message}{caught.value.args}{fire.reports}"
        assert fire.reports

    under_fire(server, story)
