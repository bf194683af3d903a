"""From a presented key to its principal: a bounded cache in front of the store.

The request path calls ``lookup``, which never waits; on ``MISS`` it awaits ``fetch``. A control loop calls ``refresh``
a few times a second; a write to any key by anybody moves the store's counter, and the keys that the audit trail names
since are dropped from the cache, so that a revocation or a rotation takes effect within one poll.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, Protocol

from gateway.errors import Unavailable
from gateway.identity.keycache import KeyCache, UnknownKeys
from gateway.identity.keys import Digester, well_formed
from gateway.model import Limits, Principal
from gateway.secret import Secret

_MAX_LINES = 1_000  # of the audit trail at one refresh; after more writes than that everything is dropped
_KEY_VERB = "key."


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
    def limits(self) -> Limits: ...


class FoundRow(Protocol):
    """A stored key, as found by one of its secrets."""

    @property
    def key(self) -> KeyRow: ...
    @property
    def expires_at(self) -> float | None:
        """When that secret ends; ``None``: never."""
        ...

    def live(self, now: float) -> bool:
        """Whether that secret may be used at ``now``."""
        ...


class KeyVersions(Protocol):
    """What the ring reads of the store's counters."""

    @property
    def keys(self) -> int: ...


class TrailLine(Protocol):
    """What the ring reads of a line of the audit trail."""

    @property
    def number(self) -> int: ...
    @property
    def verb(self) -> str: ...
    @property
    def subject(self) -> str: ...


class KeySource(Protocol):
    """What the ring needs of a store. All methods raise ``Unavailable`` when it cannot be read."""

    async def versions(self) -> KeyVersions:
        """The counters."""
        ...

    async def find_key(self, digest: bytes) -> FoundRow | None:
        """The key with a secret of that keyed hash, live or not."""
        ...

    async def audit(self, *, after: int, limit: int) -> Sequence[TrailLine]:
        """Lines of the audit trail with a number above ``after``, oldest first."""
        ...

    async def audit_head(self) -> tuple[int, bytes]:
        """Number and hash of the newest line."""
        ...


class Miss(Enum):
    """The cache cannot tell; ask ``fetch``."""

    MISS = "miss"


MISS: Final = Miss.MISS


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
        self._negative_ttl = negative_ttl
        self.stale_limit = stale_limit
        self._max_reads = max_reads
        self._read_timeout = read_timeout
        self._known = KeyCache(capacity)
        self._unknown = UnknownKeys(negative_capacity)
        self._reads: dict[bytes, asyncio.Task[Principal | None]] = {}
        self._refreshing = asyncio.Lock()
        self._version: int | None = None
        self._line = 0
        self._epoch = 0
        self._confirmed = -math.inf

    def lookup(self, presented: str) -> Principal | Miss | None:
        """The principal, ``None`` when the text is no key or is known not to be a live one, or ``MISS``."""
        now = self._monotonic()
        if now - self._confirmed > self.stale_limit:
            return MISS if well_formed(presented) else None
        # Only a live key ends the loop: every other one costs the same number of hashes, whatever is wrong with it.
        mark, ended = b"", False
        for digester in self._digesters:
            mark = digester(presented)
            principal = self._known.get(mark)
            if principal is not None:
                if self._clock() < principal.expires_at:
                    return principal
                self._known.forget(mark)
                ended = True
        if ended:
            self._unknown.keep(mark, now + self._negative_ttl)
        # Only what is not known is looked at for its shape: the usual case costs no more than its hash.
        return None if self._unknown.holds(mark, now) or not well_formed(presented) else MISS

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
        """Confirm contact with the store, and forget what changed.

        Raises ``Unavailable`` when the store cannot be read; the cache then stands, for as long as ``stale_limit``.
        """
        # One at a time: the control loop calls it, and so does whoever has just written.
        async with self._refreshing:
            version = (await self._store.versions()).keys
            if version != self._version:
                await self._take_in(version)
            self._confirmed = self._monotonic()

    @property
    def epoch(self) -> int | None:
        """Moves whenever any key may have changed; ``None`` while what is known is too old to be used.

        A principal that was found stands as long as the epoch at that time does, and until it expires.
        """
        fresh = self._monotonic() - self._confirmed <= self.stale_limit
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

    async def _take_in(self, version: int) -> None:
        """Forget the keys that changed; all of them when the audit trail does not account for every write.

        The trail is read after the counter, so that it tells of every write that the counter has counted.
        """
        first = self._version is None
        lines = () if first else await self._store.audit(after=self._line, limit=_MAX_LINES)
        told = sum(line.verb.startswith(_KEY_VERB) for line in lines)
        accounted = 0 < version - (self._version or 0) <= told and len(lines) < _MAX_LINES
        if accounted:
            for line in lines:
                self._known.forget_principal(line.subject)
            self._line = lines[-1].number
        else:
            self._line, _ = await self._store.audit_head()
            self._known.clear()
        self._unknown.clear()
        self._version = version
        self._epoch += 1

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
        mark, found = await self._find(marks)
        principal = None if found is None else _principal(found)
        if epoch != self._epoch:
            return principal
        if principal is None:
            self._unknown.keep(mark, self._monotonic() + self._negative_ttl)
        else:
            self._known.keep(mark, principal)
        return principal

    async def _find(self, marks: tuple[bytes, ...]) -> tuple[bytes, FoundRow | None]:
        """The live key with one of the marks. One that has ended costs as many reads as one that never was."""
        try:
            async with asyncio.timeout(self._read_timeout):
                for mark in marks:
                    found = await self._store.find_key(mark)
                    if found is not None and found.live(self._clock()):
                        return mark, found
        except TimeoutError:
            raise Unavailable("store_unavailable", retry_after=1) from None
        return marks[-1], None


def _principal(found: FoundRow) -> Principal:
    key = found.key
    return Principal(
        id=key.id,
        tenant=key.tenant,
        name=key.name,
        roles=key.roles,
        aliases=key.aliases,
        expires_at=math.inf if found.expires_at is None else found.expires_at,
        limits=key.limits,
    )
