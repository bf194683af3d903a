"""Both limiters behind one face: a clock that a test moves, admissions that can be waited for, and what is left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest

from gateway.limits.breaker import Breaker
from gateway.limits.interfaces import Lease, LimitReached
from gateway.limits.local import LocalLimiter
from gateway.limits.redis import RedisLimiter
from gateway.model import Budget
from gateway.redislink import RedisLink
from gateway.stateurl import redis_place
from tests.redisserver import RedisServer

# Time that passes for what a server keeps: every TAT and every lease moves back.
_PASS = """
for _, key in ipairs(redis.call('KEYS', '{gw}:limit:*')) do
  if redis.call('TYPE', key)['ok'] == 'zset' then
    local held = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #held, 2 do redis.call('ZADD', key, held[i + 1] - ARGV[1], held[i]) end
  elseif not string.find(key, ':delivered:') then
    local left = redis.call('PTTL', key) - ARGV[1] * 1000
    if left <= 0 then
      redis.call('DEL', key)
    else
      redis.call('SET', key, string.format('%.17g', redis.call('GET', key) - ARGV[1]), 'PX', math.ceil(left))
    end
  end
end
"""


async def given(outcome: Lease | Awaitable[Lease]) -> Lease:
    """What a limiter grants, at once or after a round trip."""
    return await outcome if isinstance(outcome, Awaitable) else outcome


class Site:
    """One limiter or several that share their limits."""

    exact = True  # whether no time passes but by ``advance``

    def advance(self, seconds: float) -> None:
        raise NotImplementedError

    def admit_many(self, count: int, budgets: Sequence[Budget], tokens: int = 0) -> list[Lease | LimitReached]:
        """Outcomes of as many admissions at once."""
        raise NotImplementedError

    def deliver(self) -> None:
        """Let what leases gave back arrive."""

    def close(self) -> None: ...

    def admit(self, *budgets: Budget, tokens: int = 0) -> Lease:
        outcome = self.admit_many(1, budgets, tokens)[0]
        if isinstance(outcome, LimitReached):
            raise outcome
        return outcome

    def admitted(self, count: int, *budgets: Budget, tokens: int = 0) -> int:
        return sum(not isinstance(o, LimitReached) for o in self.admit_many(count, budgets, tokens))


class LocalSite(Site):
    def __init__(self) -> None:
        self.now = 1_000.0
        self.limiter = LocalLimiter(lambda: self.now)

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def admit_many(self, count: int, budgets: Sequence[Budget], tokens: int = 0) -> list[Lease | LimitReached]:
        outcomes: list[Lease | LimitReached] = []
        for _ in range(count):
            try:
                outcomes.append(self.limiter.admit(budgets, tokens))
            except LimitReached as error:
                outcomes.append(error)
        return outcomes


class RedisSite(Site):
    """Three instances on one server; admissions take turns among them."""

    exact = False

    def __init__(self, server: RedisServer, instances: int = 3, user: str = "", **options: Any) -> None:
        self.server = server
        server.command("FLUSHALL")
        self.reports: list[str] = []
        self.runner = asyncio.Runner()
        self.links = [RedisLink(redis_place(server.url(credentials=user)), timeout=5.0) for _ in range(instances)]
        self.limiters = [
            RedisLimiter(
                link,
                LocalLimiter(),
                Breaker(jitter=lambda: 0.5, report=self.reports.append),
                share=1 / instances,
                name=f"instance-{number}",
                deadline=5.0,
                **options,
            )
            for number, link in enumerate(self.links)
        ]
        self.limiter = self.limiters[0]
        self.turn = 0

    def run(self, job: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await job

        return self.runner.run(wait())

    def advance(self, seconds: float) -> None:
        self.deliver()
        self.server.command("EVAL", _PASS, 0, seconds)

    def admit_many(self, count: int, budgets: Sequence[Budget], tokens: int = 0) -> list[Lease | LimitReached]:
        async def all_at_once() -> list[Any]:
            asked = []
            for _ in range(count):
                self.turn += 1
                asked.append(given(self.limiters[self.turn % len(self.limiters)].admit(budgets, tokens)))
            return await asyncio.gather(*asked, return_exceptions=True)

        outcomes = self.run(all_at_once())
        assert all(isinstance(o, LimitReached) or not isinstance(o, BaseException) for o in outcomes), outcomes
        assert self.reports == []
        return outcomes

    def deliver(self) -> None:
        for limiter in self.limiters:
            self.run(limiter.close())

    def close(self) -> None:
        for link in self.links:
            self.run(link.close())
        self.runner.close()


@pytest.fixture(scope="package")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server for all tests of the package; each begins with it empty."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def make_redis_site(redis_server: RedisServer) -> Iterator[Callable[..., RedisSite]]:
    """Makes sites on the server."""
    made: list[RedisSite] = []

    def make(**options: Any) -> RedisSite:
        made.append(RedisSite(redis_server, **options))
        return made[-1]

    yield make
    for site in made:
        site.close()


@pytest.fixture(params=["local", "redis"])
def limits_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """Each limiter in turn."""
    site = LocalSite() if request.param == "local" else request.getfixturevalue("make_redis_site")()
    yield site
    if request.param == "local":
        site.close()
