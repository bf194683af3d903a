"""What the gateway asks of a state store. Every implementation passes the same test suite.

The store is the truth that instances share; the request path reads snapshots of it and never waits for it, but for the
first sight of a key. Methods are coroutines so that an implementation may do I/O; none blocks the event loop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from gateway.errors import Unavailable
from gateway.model import NO_LIMITS, AliasTable, EngineOrder, EngineOrders, Instance, Limits, Revision, Target

MAX_ENGINE_ORDERS = 1_024
"""How many engines there may be orders about: every instance holds them all."""


class StoreError(Exception):
    """The base of everything a store raises."""


class StoreUnavailable(StoreError, Unavailable):
    """The store cannot be read or written now (locked, full, gone, corrupt).

    ``reason`` (and ``str``) says why in words for an operator; a client gets the row ``store_unavailable`` of the error
    table and learns nothing about files.
    """

    def __init__(self, reason: str) -> None:
        Unavailable.__init__(self, "store_unavailable", retry_after=1)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class NotFound(StoreError):
    """No key or alias has that name; no engine was added at that URL."""


class Conflict(StoreError):
    """A compare-and-set lost, the name or URL is taken, or there is no room. Says who changed it and to what."""


@dataclass(frozen=True, slots=True)
class KeySecret:
    """One secret of a key, without the secret. Times are Unix seconds; ``expires_at`` ``None``: as long as the key."""

    created_at: float
    expires_at: float | None = None
    pepper_version: int = 1

    def live(self, now: float) -> bool:
        """Whether the secret may be used at ``now``, as far as it alone is asked."""
        return self.expires_at is None or now < self.expires_at


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An API key as stored: everything but its secrets. Times are Unix seconds; ``None`` means never.

    ``secrets`` are its live and ended ones, newest first: a rotation adds one, and ends the one before
    after an overlap.
    """

    id: str
    name: str
    tenant: str
    roles: tuple[str, ...]
    aliases: tuple[str, ...]
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    limits: Limits = NO_LIMITS
    secrets: tuple[KeySecret, ...] = ()

    def live(self, now: float) -> bool:
        """Whether the key may be used at ``now``."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True)
class FoundKey:
    """A key as found by the keyed hash of one of its secrets."""

    key: KeyRecord
    secret: KeySecret

    def live(self, now: float) -> bool:
        """Whether that secret opens the door at ``now``."""
        return self.key.live(now) and self.secret.live(now)

    @property
    def expires_at(self) -> float | None:
        """When that secret ends: by its own end or the key's, whichever comes first."""
        ends = [end for end in (self.key.expires_at, self.secret.expires_at) if end is not None]
        return min(ends, default=None)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line of the audit trail. ``number`` counts from 1 without a gap; ``detail`` is JSON text.

    ``hash`` is ``chain.entry_hash`` of the line with ``previous``, the hash of the line before (32 zero bytes for the
    first), so that no line can be changed, removed or put in between without breaking all that follow.
    """

    number: int
    at: float
    author: str
    verb: str
    subject: str
    detail: str
    previous: bytes
    hash: bytes


@dataclass(frozen=True, slots=True)
class Versions:
    """Counters that move with every committed write, whoever made it. Polled to learn of others' writes."""

    keys: int
    aliases: int
    fleet: int = 0


@runtime_checkable
class Notifying(Protocol):
    """A store that can tell of writes, whoever made them, sooner than a poll finds them."""

    def changes(self) -> AsyncGenerator[None, None]:
        """One item when listening begins (also again, after a break) and one for each write or several at once.

        Never raises for a store that is gone: it waits until it is back. An item may be lost; poll besides.
        """
        ...


class StateStore(Protocol):
    """Keys, aliases and orders about engines, with atomic writes.

    All methods raise ``StoreUnavailable`` when the store is.
    """

    async def versions(self) -> Versions:
        """All counters, cheaply."""
        ...

    async def add_key(self, digest: bytes, record: KeyRecord, *, author: str) -> None:
        """Store a key under the keyed hash of its text; ``record.secrets`` holds its one secret.

        Raises ``Conflict`` when its id is taken, a live key has its name, or its name is the id of another key.
        """
        ...

    async def rotate_key(
        self, key_id: str, digest: bytes, secret: KeySecret, *, overlap_until: float, author: str
    ) -> KeyRecord:
        """Give a key, by id or name, another secret; the ones before end at ``overlap_until`` at the latest.

        Raises ``NotFound``; ``Conflict`` for a key that is not live at ``secret.created_at``, or that has two live
        secrets already.
        """
        ...

    async def find_key(self, digest: bytes) -> FoundKey | None:
        """The key with a secret of that keyed hash, live or not."""
        ...

    async def get_key(self, key_id: str) -> KeyRecord:
        """A key by id or by name (the newest of that name). Raises ``NotFound``."""
        ...

    async def list_keys(self) -> Sequence[KeyRecord]:
        """All keys, oldest first."""
        ...

    async def revoke_key(self, key_id: str, *, at: float, author: str) -> KeyRecord:
        """End a key by id or name; ending an ended one changes nothing. Raises ``NotFound``."""
        ...

    async def alias_table(self) -> AliasTable:
        """All current revisions and the generation, read in one transaction."""
        ...

    async def assign_alias(
        self,
        alias: str,
        targets: Sequence[Target],
        *,
        author: str,
        at: float,
        note: str = "",
        source: str = "api",
        expect_revision: int | None = None,
        canary_of: int | None = None,
    ) -> Revision:
        """Append a revision and make it current, in one transaction.

        ``expect_revision`` (0: the alias must not exist) makes it a compare-and-set; a lost one raises ``Conflict``,
        which says who changed it, when and to what.
        """
        ...

    async def delete_alias(
        self, alias: str, *, author: str, at: float, note: str = "", expect_revision: int | None = None
    ) -> Revision:
        """Take an alias out of the table; the revision that was current. Its revisions stay, and numbers go on.

        Raises ``NotFound``, and ``Conflict`` as ``assign_alias`` does.
        """
        ...

    async def alias_revision(self, alias: str, number: int) -> Revision:
        """Any revision, current or not, also of a deleted alias. Raises ``NotFound``."""
        ...

    async def note_uses(self, uses: Mapping[tuple[str, int], float]) -> None:
        """When revisions (alias and number) last served a request, in Unix seconds; the latest known is kept."""
        ...

    async def alias_uses(self, alias: str) -> Mapping[int, float]:
        """When each revision of an alias last served, for those that ever did."""
        ...

    async def engine_orders(self) -> EngineOrders:
        """All orders about engines and their generation, read in one transaction."""
        ...

    async def add_engine(
        self, url: str, *, labels: Mapping[str, str], author: str, at: float, note: str = ""
    ) -> EngineOrder:
        """Make an engine part of the fleet; a drain that stands already goes on.

        Raises ``Conflict`` when it was added already, which says who changed its order last and when, and when there
        are ``MAX_ENGINE_ORDERS`` already, none of them about this engine.
        """
        ...

    async def remove_engine(self, url: str, *, author: str, at: float, note: str = "") -> EngineOrder:
        """Take back that an engine was added, and a drain with it; the order that was there. Raises ``NotFound``."""
        ...

    async def drain_engine(
        self, url: str, *, draining: bool, author: str, at: float, note: str = ""
    ) -> tuple[EngineOrder, bool]:
        """Drain an engine, added or listed elsewhere, or lift its drain; the order, and whether that changed anything.

        An order that neither adds nor drains is not kept. What changes nothing leaves no line. Raises ``Conflict`` for
        an engine without an order when there are ``MAX_ENGINE_ORDERS`` already.
        """
        ...

    async def beat(self, instance: Instance) -> None:
        """Register an instance, or tell that it still lives."""
        ...

    async def instances(self) -> Sequence[Instance]:
        """Instances heard of within the last hour, by the newest heartbeat among them; by start, oldest first."""
        ...

    async def forget_instance(self, instance_id: str) -> None:
        """An instance has ended properly. Unknown ones are ignored."""
        ...

    async def alias_history(self, alias: str) -> Sequence[Revision]:
        """All revisions, oldest first. Raises ``NotFound``."""
        ...

    async def note(self, *, at: float, author: str, verb: str, subject: str, detail: Mapping[str, object]) -> None:
        """Append to the audit trail something that changes nothing else in the store."""
        ...

    async def audit(self, *, after: int = 0, limit: int = 1_000) -> Sequence[AuditEntry]:
        """Lines of the audit trail with a number above ``after``, oldest first, at most ``limit``."""
        ...

    async def audit_head(self) -> tuple[int, bytes]:
        """Number and hash of the newest line; (0, 32 zero bytes) for an empty trail.

        The store keeps it apart from the lines, so that a trail cut at its end is found out.
        """
        ...

    async def pepper_mark(self, version: int, mark: bytes) -> bytes:
        """The mark kept for a version of the pepper: ``mark`` itself when none was kept before.

        It is a keyed hash of a constant: a gateway with another pepper finds out at start, not by refusing every key.
        """
        ...

    async def close(self) -> None:
        """Release files and threads. Idempotent."""
        ...
