"""The limiter that an instance gets, and what keeps it going."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.limits.interfaces import LimitReached
from gateway.limits.local import LocalLimiter
from gateway.limits.open import local_limits, redis_limits
from gateway.model import Budget, Limits
from gateway.stateurl import redis_place
from tests.redisserver import RedisServer

BUDGETS = (Budget("principal:a", Limits(requests_per_minute=2, concurrency=2)),)


def test_a_state_of_one_host_is_counted_in_the_process_and_needs_no_loop():
    limits = local_limits()
    assert isinstance(limits.limiter, LocalLimiter)
    assert (list(limits.loops), limits.alone(), limits.dropped()) == ([], False, 0)
    asyncio.run(limits.close())


def test_two_instances_on_one_redis_count_together_and_say_when_it_is_gone(tmp_path: Path, monkeypatch):
    # A host that stands still is no lost store here.
    monkeypatch.setattr("gateway.limits.open.LIMITS_TIMEOUT", 10.0)
    monkeypatch.setattr("gateway.limits.open._DEADLINE", 10.0)
    said: tuple[list[str], list[str]] = ([], [])

    async def body(server: RedisServer) -> None:
        pair = [redis_limits(redis_place(server.url()), lambda: 0.5, told.append) for told in said]
        assert [loop.name for loop in pair[0].loops] == ["limits-flush", "limits-renew"]
        leases = [await limits.limiter.admit(BUDGETS, 1) for limits in pair]
        with pytest.raises(LimitReached):
            await pair[0].limiter.admit(BUDGETS, 1)
        server.kill()
        alone = pair[0].limiter.admit(BUDGETS, 1)
        lease = await alone if asyncio.iscoroutine(alone) else alone
        assert pair[0].alone()
        for held in (*leases, lease):
            held.close()
        for limits in pair:
            await limits.close()
            await limits.close()

    with RedisServer(tmp_path) as server:
        asyncio.run(body(server))
    assert [len(told) for told in said] == [1, 1]
    assert all("each instance holds its share" in told[0] for told in said)
