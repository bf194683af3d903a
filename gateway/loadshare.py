"""Tells other instances what this one has at each replica and sent there, and has the balancer know what they tell."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.fleet.balance.hints import MAX_HINTS, Hints
from gateway.fleet.balance.shared import EXPIRY, MAX_INSTANCES, MAX_REPORT, Heard, SharedLoad, pack
from gateway.fleet.balance.workload import Workload
from gateway.stateurl import RedisPlace
from gateway.stores.interfaces import StoreUnavailable

SHARE_INTERVAL = 0.1
"""Seconds between two steps."""

_LINGER = 2.0  # seconds without a request after which an instance passes for idle
_IDLE_PAUSE = 1.0
_RETRY_PAUSE = 1.0
_NEWS = 10.0  # a store that comes and goes is told of at most once in so many seconds


class Busy(Protocol):
    """What is asked of a replica."""

    @property
    def id(self) -> str:
        """Its name."""
        ...

    @property
    def point(self) -> int:
        """What names it, the same in all instances."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests of this instance there."""
        ...

    @property
    def work(self) -> Workload:
        """What it has to do."""
        ...


class Told(Protocol):
    """What others told."""

    @property
    def reports(self) -> Sequence[tuple[bytes, float]]:
        """What they have, each with the seconds since."""
        ...

    @property
    def hints(self) -> Sequence[bytes]:
        """What they sent since they were last heard."""
        ...

    @property
    def unfit(self) -> int:
        """How many entries were neither."""
        ...


class Exchange(Protocol):
    """Where it is told and heard."""

    async def exchange(self, report: bytes, hints: bytes) -> Told:
        """Tell both, either empty if there is nothing to tell, and hear the others.

        Raises ``StoreUnavailable``; answers or fails within parts of a second.
        """
        ...

    async def close(self) -> None:
        """Release it. Idempotent."""
        ...


class LoadShare:
    """``step`` is that of a control loop, ``SHARE_INTERVAL`` apart; ``close`` takes back what was told.

    No request waits for any of it. While the store fails, what the others told fades within ``EXPIRY`` seconds, and
    one line tells of it. An instance that has had nothing for a while tells nothing, and listens once a second.
    """

    def __init__(
        self,
        exchange: Exchange,
        replicas: Callable[[], Sequence[Busy]],
        hints: Hints,
        report: Callable[[str], None],
        *,
        now: Callable[[], float],
    ) -> None:
        self._exchange = exchange
        self._replicas = replicas
        self._hints = hints
        self._report = report
        self._now = now
        self._table = SharedLoad()
        self._unfit = 0
        self._asked_at = self._heard_at = self._busy_at = self._told_at = -math.inf
        self._lost = self._told = self._felt = self._closed = False

    @property
    def instances(self) -> int:
        """Other instances that have requests, as far as is known."""
        return len(self._table)

    @property
    def refused(self) -> int:
        """Reports and hints of others that were not believed: damaged, too long, of a newer version."""
        return self._table.refused + self._unfit

    @property
    def lost(self) -> bool:
        """Whether the last exchange failed."""
        return self._lost

    def age(self) -> float:
        """Seconds since the others were last heard; infinite before the first time."""
        return self._now() - self._heard_at

    async def step(self) -> None:
        """Tell and hear if it is time to, and have every replica know what the others have there."""
        now = self._now()
        figures = {each.point: (each.in_flight, each.work.pending) for each in self._replicas() if each.in_flight}
        if figures:
            self._busy_at = now
        if not 0.0 <= now - self._asked_at < self._pause(now):  # a clock that was set back is no reason to wait
            self._asked_at = now
            await self._meet(pack(figures))
        self._spread()

    def _pause(self, now: float) -> float:
        if self._lost:
            return _RETRY_PAUSE
        return 0.0 if now - self._busy_at < _LINGER else _IDLE_PAUSE

    async def _meet(self, report: bytes) -> None:
        try:
            told = await self._exchange.exchange(report, self._hints.take())
        except StoreUnavailable as fault:
            self._failed(fault.reason)
            return
        now = self._now()
        self._heard_at = now
        self._unfit += told.unfit
        self._table.hear((Heard(each, age) for each, age in told.reports), now)
        self._learn(told.hints, now)
        if self._told:
            self._report("load: the shared store is back; requests of other instances count again")
        self._lost = self._told = False

    def _learn(self, told: Sequence[bytes], now: float) -> None:
        self._hints.shared = True
        self._hints.review(now)
        if told:
            names = {each.point: each.id for each in self._replicas()}
            self._unfit += sum(not self._hints.learn(each, names) for each in told)

    def _failed(self, reason: str) -> None:
        now = self._now()
        if not self._lost and now - self._told_at >= _NEWS:
            self._told, self._told_at = True, now
            self._report(f"load: {reason} Requests of other instances do not count meanwhile")
        self._lost = True

    def _spread(self) -> None:
        totals = self._table.totals(self._now())
        if totals or self._felt:
            for each in self._replicas():
                each.work.heard_of_others(*totals.get(each.point, (0, 0)))
        self._felt = bool(totals)

    async def close(self) -> None:
        """Take back what was told, as far as the store lets it. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._busy_at > -math.inf and not self._lost:
                await self._meet(b"")
        finally:
            await self._exchange.close()


def redis_load_share(
    place: RedisPlace,
    replicas: Callable[[], Sequence[Busy]],
    hints: Hints,
    report: Callable[[str], None],
    *,
    now: Callable[[], float],
) -> LoadShare:
    """Sharing with all instances on one Redis; ``now`` is a monotonic clock. Nothing is asked before the first step."""
    # Who has no Redis need not wait for its client.
    from gateway.stores.redis_load import Bounds, RedisLoad  # noqa: PLC0415

    exchange = RedisLoad(place, secrets.token_hex(8), Bounds(EXPIRY, MAX_REPORT, MAX_HINTS, MAX_INSTANCES))
    return LoadShare(exchange, replicas, hints, report, now=now)
