"""What the gateway asks of a state store. Every implementation passes the same test suite.

The store is the truth that instances share; the request path reads snapshots of it and never waits for it, but for the
first sight of a key. Methods are coroutines so that an implementation may do I/O; none blocks the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.errors import Unavailable
from gateway.model import AliasTable, Revision, Target


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
    """No key or alias has that name."""


class Conflict(StoreError):
    """A compare-and-set lost, or the name is taken. Says who changed it and to what."""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An API key as stored: everything but the secret. Times are Unix seconds; ``None`` means never."""

    id: str
    name: str
    tenant: str
    roles: tuple[str, ...]
    aliases: tuple[str, ...]
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    pepper_version: int = 1

    def live(self, now: float) -> bool:
        """Whether the key may be used at ``now``."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True)
class Versions:
    """Counters that move with every committed write, whoever made it. Polled to learn of others' writes."""

    keys: int
    aliases: int


class StateStore(Protocol):
    """Keys and aliases with atomic writes. All methods raise ``StoreUnavailable`` when the store is."""

    async def versions(self) -> Versions:
        """Both counters, cheaply."""
        ...

    async def add_key(self, digest: bytes, record: KeyRecord, *, author: str) -> None:
        """Store a key under the keyed hash of its text.

        Raises ``Conflict`` when its id is taken, a live key has its name, or its name is the id of another key.
        """
        ...

    async def find_key(self, digest: bytes) -> KeyRecord | None:
        """The key with that keyed hash, live or not."""
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
    ) -> Revision:
        """Append a revision and make it current, in one transaction.

        ``expect_revision`` (0: the alias must not exist) makes it a compare-and-set; a lost one raises ``Conflict``.
        """
        ...

    async def alias_history(self, alias: str) -> Sequence[Revision]:
        """All revisions, oldest first. Raises ``NotFound``."""
        ...

    async def close(self) -> None:
        """Release files and threads. Idempotent."""
        ...
