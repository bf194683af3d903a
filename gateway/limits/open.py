"""The limiter of an instance: its own, or the one that it shares with others over Redis, with what keeps that going."""

from __future__ import annotations

import random
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gateway.limits.breaker import Breaker
from gateway.limits.interfaces import Limiter
from gateway.limits.local import LocalLimiter
from gateway.stateurl import RedisPlace

LIMITS_TIMEOUT = 0.1  # seconds for each answer of the Redis that limits are shared over
_DEADLINE = 1.5 * LIMITS_TIMEOUT  # of an admission: an answer that just came in time is not thrown away
_FLUSH_INTERVAL = 0.005
_RENEW_INTERVAL = 20.0


class Loop(NamedTuple):
    """A step to be run again and again, so many seconds apart."""

    name: str
    interval: float
    step: Callable[[], Awaitable[None]]


async def _nothing() -> None:
    """There is nothing to close."""


@dataclass(frozen=True, slots=True)
class SharedLimits:
    """A limiter, the loops that it needs, and whether its store is lost. ``close`` is idempotent."""

    limiter: Limiter
    loops: Sequence[Loop] = ()
    alone: Callable[[], bool] = lambda: False
    dropped: Callable[[], int] = lambda: 0
    close: Callable[[], Awaitable[None]] = _nothing


def local_limits() -> SharedLimits:
    """Limits of one process, for a state that lives on one host."""
    return SharedLimits(LocalLimiter())


def redis_limits(place: RedisPlace, share: Callable[[], float], report: Callable[[str], None]) -> SharedLimits:
    """Limits that all instances on one Redis share; ``share`` of each is granted while it is lost."""
    # Who has no Redis need not wait for its client.
    from gateway.limits.redis import RedisLimiter  # noqa: PLC0415
    from gateway.redislink import RedisLink  # noqa: PLC0415

    link = RedisLink(place, timeout=LIMITS_TIMEOUT)
    jitter = random.Random(secrets.randbits(64))  # noqa: S311 - it spreads probes in time, it keeps no secret
    breaker = Breaker(jitter=jitter.random, report=report)
    limiter = RedisLimiter(link, LocalLimiter(), breaker, share=share, name=secrets.token_hex(8), deadline=_DEADLINE)
    loops = (
        Loop("limits-flush", _FLUSH_INTERVAL, limiter.flush),
        Loop("limits-renew", _RENEW_INTERVAL, limiter.renew),
    )

    async def close() -> None:
        await limiter.close()
        await link.close()

    return SharedLimits(limiter, loops, lambda: limiter.alone, lambda: limiter.dropped, close)
