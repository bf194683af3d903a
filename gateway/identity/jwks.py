"""One issuer's keys, kept fresh: asked for in the background, by one load at a time, and kept when the issuer is down.

A token that names a key which is held is never made to wait. Only a token that names another one may wait for a load,
and how often such tokens can cause one is bounded, whatever they name.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from gateway.identity.keyring import MISS, Miss
from gateway.identity.keyset import KeySet, KeySetFault, KeySetReason
from gateway.identity.keysource import KeySource, Loaded
from gateway.recent import keep

if TYPE_CHECKING:  # where there is no issuer, nobody waits for cryptography
    from jwt import PyJWK

_EMPTY: Final = KeySet()


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Seconds, and a count of ``kid`` values.

    ``refresh_at`` is the part of a set's lifetime after which it is asked for again; ``stale_limit`` how long past its
    lifetime it is used while the issuer is down; ``cool_down`` the least time between two loads that unknown keys
    cause; ``unknown_ttl`` how long a ``kid`` that a load did not bring is not asked for again.
    """

    refresh_at: float = 0.8
    stale_limit: float = 86_400.0
    cool_down: float = 30.0
    unknown_ttl: float = 60.0
    unknown_capacity: int = 1_024
    backoff: float = 1.0
    longest_backoff: float = 60.0


DEFAULT_LIMITS: Final = CacheLimits()


class IssuerKeys:
    """The key set of one issuer. The set is replaced whole; ``close`` is idempotent.

    ``on_change(lost)`` is called after a load brought a set that differs; ``lost`` says whether a key of the old set is
    not in the new one. ``clock`` gives seconds that never jump, ``random`` spreads the tries of several instances.
    """

    def __init__(
        self,
        source: KeySource,
        clock: Callable[[], float],
        random: Random,
        on_change: Callable[[bool], None],
        limits: CacheLimits = DEFAULT_LIMITS,
    ) -> None:
        self._source = source
        self._clock = clock
        self._random = random
        self._on_change = on_change
        self._limits = limits
        self._set = _EMPTY
        self._loaded_at = -math.inf
        self._usable_until = -math.inf
        self._next = -math.inf
        self._asked = -math.inf
        self._failures = 0
        self._unknown: OrderedDict[str, float] = OrderedDict()
        self._load: asyncio.Task[None] | None = None
        self._closed = False
        self.fault: KeySetReason | None = None

    @property
    def usable(self) -> bool:
        """Whether there is a set to judge by: it was had, and is not too old."""
        return self._clock() < self._usable_until

    def age(self) -> float:
        """Seconds since the last good load; infinite before the first."""
        return self._clock() - self._loaded_at

    def find(self, kid: str) -> Mapping[str, PyJWK] | Miss | None:
        """The key by algorithm; ``None`` when there is none and asking would not help; ``MISS``: ``ask``."""
        if not self.usable:
            return MISS
        key = self._set.keys.get(kid)
        if key is not None:
            return key
        if self._unknown.get(kid, -math.inf) > self._clock():
            return None
        return MISS if self._load is not None or self._may_ask() else None

    def tend(self) -> None:
        """Start a load when one is due. Never waits, so that a slow issuer holds up no other."""
        if self._load is None and not self._closed and self._clock() >= self._next:
            self._start()

    async def ask(self, kid: str) -> None:
        """Wait for a load that may bring ``kid``: the one under way, else one of its own where that is allowed.

        A load under way may be older than the key, so what it does not bring may be asked for once more.
        """
        await self.ended()
        if self.find(kid) is not MISS:
            return
        if self._load is None and self._may_ask():
            if self.usable:
                self._asked = self._clock()
            await asyncio.wait({self._start()})
            if self._failures == 0 and kid not in self._set.keys:
                keep(self._unknown, kid, self._clock() + self._limits.unknown_ttl, self._limits.unknown_capacity)
        else:
            await self.ended()

    def close(self) -> None:
        """End the load under way, and start no other."""
        self._closed = True
        if self._load is not None:
            self._load.cancel()

    async def ended(self) -> None:
        """Wait until no load is under way; after ``close``, none will be again."""
        if self._load is not None:
            await asyncio.wait({self._load})

    def _may_ask(self) -> bool:
        now = self._clock()
        if self._closed:
            return False
        if not self.usable:
            return now >= self._next
        return now - self._asked >= self._limits.cool_down and (self._failures == 0 or now >= self._next)

    def _start(self) -> asyncio.Task[None]:
        # The load belongs to the cache, not to the request that caused it, whose client may leave while others wait.
        self._load = asyncio.get_running_loop().create_task(self._run(), name="issuer-keys")
        self._load.add_done_callback(self._end)
        return self._load

    async def _run(self) -> None:
        try:
            self._take(await self._source.load())
        except KeySetFault as fault:
            self._fail(fault.reason)
        finally:
            self._load = None

    def _end(self, load: asyncio.Task[None]) -> None:
        if not load.cancelled() and load.exception() is not None:
            self._fail(KeySetReason.UNEXPECTED)  # one issuer's strange answer must not end the service for all others

    def _take(self, loaded: Loaded) -> None:
        now = self._clock()
        before, self._set = self._set, loaded.keys
        self._loaded_at = now
        self._usable_until = now + loaded.lifetime + self._limits.stale_limit
        self._next = now + loaded.lifetime * self._limits.refresh_at
        self._failures = 0
        self.fault = None
        if before.marks != loaded.keys.marks:
            self._on_change(not before.marks <= loaded.keys.marks)

    def _fail(self, reason: KeySetReason) -> None:
        """Try again after 1, 2, 4 ... seconds, each shortened by up to half at random."""
        longest = min(self._limits.backoff * 2.0 ** min(self._failures, 16), self._limits.longest_backoff)
        self._next = self._clock() + longest * self._random.uniform(0.5, 1.0)
        self._failures += 1
        self.fault = reason
