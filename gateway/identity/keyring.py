"""From a presented key to its principal: a bounded cache in front of the store.

The request path calls ``lookup``, which never waits; on ``MISS`` it awaits ``fetch``. A control loop calls ``refresh``
a few times a second; a write to any key by anybody moves the store's counter and drops the cache, so that a revocation
takes effect within one poll.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, TypeVar

from gateway.errors import Unavailable
from gateway.identity.keys import Digester, well_formed
from gateway.model import Principal
from gateway.secret import Secret

T = TypeVar("T")


class KeyRow(Protocol):
    """What the ring reads of a stored key."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def roles(self) -> tuple[str, ...]: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...
    @property
    def expires_at(self) -> float | None: ...
    def live(self, now: float) -> bool:
        """Whether the key may be used at ``now``."""
        ...


class KeyVersions(Protocol):
    """What the ring reads of the store's counters."""

    @property
    def keys(self) -> int: ...


class KeySource(Protocol):
    """What the ring needs of a store. Both methods raise ``Unavailable`` when it cannot be read."""

    async def versions(self) -> KeyVersions:
        """The counters."""
        ...

    async def find_key(self, digest: bytes) -> KeyRow | None:
        """The key with that keyed hash, live or not."""
        ...


class Miss(Enum):
    """The cache cannot tell; ask ``fetch``."""

    MISS = "miss"


MISS: Final = Miss.MISS


@dataclass(frozen=True, slots=True)
class _Entry:
    digest: bytes
    principal: Principal


class KeyRing:
    """Principals by presented key.

    ``peppers`` maps version to secret; the highest is tried first, older ones keep keys made under them working.
    ``clock`` gives Unix seconds (expiry), ``monotonic`` seconds that never jump (age of what is cached). While the
    store cannot be read, what is cached works for ``stale_limit`` seconds after the last successful ``refresh``.
    """

    def __init__(
        self,
        store: KeySource,
        peppers: Mapping[int, Secret],
        clock: Callable[[], float] = time.time,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        capacity: int = 50_000,
        negative_capacity: int = 10_000,
        negative_ttl: float = 10.0,
        stale_limit: float = 300.0,
        max_reads: int = 1_024,
        read_timeout: float = 5.0,
    ) -> None:
        if not peppers:
            raise ValueError("a key ring needs a pepper")
        self._store = store
        self._digesters = tuple(
            Digester(peppers[version].reveal().encode()) for version in sorted(peppers, reverse=True)
        )
        self._clock = clock
        self._monotonic = monotonic
        self._capacity = capacity
        self._negative_capacity = negative_capacity
        self._negative_ttl = negative_ttl
        self._stale_limit = stale_limit
        self._max_reads = max_reads
        self._read_timeout = read_timeout
        self._known: OrderedDict[bytes, _Entry] = OrderedDict()
        self._unknown: OrderedDict[bytes, float] = OrderedDict()
        self._reads: dict[bytes, asyncio.Task[Principal | None]] = {}
        self._version: int | None = None
        self._epoch = 0
        self._confirmed = -math.inf

    def lookup(self, presented: str) -> Principal | Miss | None:
        """The principal, ``None`` when the text is no key or is known not to be a live one, or ``MISS``."""
        now = self._monotonic()
        if now - self._confirmed > self._stale_limit:
            return MISS if well_formed(presented) else None
        mark = b""
        for digester in self._digesters:
            mark = digester(presented)
            entry = self._known.get(mark)
            if entry is not None:
                return self._use(mark, entry)
        # Only what is not known is looked at for its shape: the usual case costs no more than its hash.
        return None if self._unknown.get(mark, -math.inf) > now or not well_formed(presented) else MISS

    async def fetch(self, presented: str) -> Principal | None:
        """Ask the store, once for all requests that wait for the same key.

        Raises ``Unavailable`` when the store cannot be read, does not answer in time, or too many reads wait already:
        a key that cannot be checked is not a wrong key.
        """
        if not well_formed(presented):
            return None
        marks = tuple(digester(presented) for digester in self._digesters)
        # The read belongs to the ring, not to the request that started it, whose client may leave while others wait.
        return await asyncio.shield(self._reads.get(marks[-1]) or self._start_read(marks))

    async def refresh(self) -> None:
        """Confirm contact with the store, and forget everything when any key changed.

        Raises ``Unavailable`` when the store cannot be read; the cache then stands, for as long as ``stale_limit``.
        """
        version = (await self._store.versions()).keys
        if version != self._version:
            self._version = version
            self._epoch += 1
            self._known.clear()
            self._unknown.clear()
        self._confirmed = self._monotonic()

    @property
    def epoch(self) -> int | None:
        """Moves whenever any key may have changed; ``None`` while what is known is too old to be used.

        A principal that was found stands as long as the epoch at that time does, and until it expires.
        """
        fresh = self._monotonic() - self._confirmed <= self._stale_limit
        return self._epoch if fresh else None

    def age(self) -> float:
        """Seconds since the last successful ``refresh``; infinite before the first."""
        return self._monotonic() - self._confirmed

    async def close(self) -> None:
        """End the reads under way. Idempotent."""
        reads = tuple(self._reads.values())
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)

    def _use(self, mark: bytes, entry: _Entry) -> Principal | None:
        if self._clock() >= entry.principal.expires_at:
            del self._known[mark]
            return None
        self._known.move_to_end(mark)
        return entry.principal if hmac.compare_digest(entry.digest, mark) else None

    def _start_read(self, marks: tuple[bytes, ...]) -> asyncio.Task[Principal | None]:
        if len(self._reads) >= self._max_reads:
            raise Unavailable("store_unavailable", retry_after=1)
        read = asyncio.get_running_loop().create_task(self._read(marks), name="key-read")
        self._reads[marks[-1]] = read
        read.add_done_callback(lambda done: self._end_read(marks[-1], done))
        return read

    def _end_read(self, mark: bytes, read: asyncio.Task[Principal | None]) -> None:
        del self._reads[mark]
        if not read.cancelled():
            read.exception()  # seen, even when every request that waited has left

    async def _read(self, marks: tuple[bytes, ...]) -> Principal | None:
        # What was read before a refresh saw a newer version may be older than that version (a key revoked in between):
        # it answers the requests that asked for it and is not kept.
        epoch = self._epoch
        mark, row = await self._find(marks)
        if row is None or not row.live(self._clock()):
            if epoch == self._epoch:
                _keep(self._unknown, marks[-1], self._monotonic() + self._negative_ttl, self._negative_capacity)
            return None
        expires_at = math.inf if row.expires_at is None else row.expires_at
        principal = Principal(row.id, row.tenant, row.name, row.roles, row.aliases, expires_at)
        if epoch == self._epoch:
            _keep(self._known, mark, _Entry(mark, principal), self._capacity)
        return principal

    async def _find(self, marks: tuple[bytes, ...]) -> tuple[bytes, KeyRow | None]:
        try:
            async with asyncio.timeout(self._read_timeout):
                for mark in marks:
                    row = await self._store.find_key(mark)
                    if row is not None:
                        return mark, row
        except TimeoutError:
            raise Unavailable("store_unavailable", retry_after=1) from None
        return marks[-1], None


def _keep(cache: OrderedDict[bytes, T], mark: bytes, value: T, capacity: int) -> None:
    cache[mark] = value
    cache.move_to_end(mark)
    if len(cache) > capacity:
        cache.popitem(last=False)
