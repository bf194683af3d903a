"""The shared state store: one Redis 7 (or Valkey), used by any number of instances.

Reads are one script each, so that they are of one moment; how writes stay whole is told in ``redis_state``. A write is
announced on a channel, which other instances hear within milliseconds; announcements can be lost, so the counters that
instances poll stay the truth.

What Redis itself must be told (``redis_scripts`` lists the keys): ``maxmemory-policy noeviction`` and persistence
(``appendonly yes``), or it may lose keys, aliases and drains; a user of its own for the gateway, which then cannot
delete the audit trail or have it expire (scripts run with the rights of their caller):

    ACL SETUSER gateway on >PASSWORD ~{gw}:* &{gw}:changed -@all +select +evalsha +eval +exists +type +time +hget \\
        +hmget +hgetall +hvals +hset +hsetnx +hdel +xadd +xrange +publish +subscribe +unsubscribe \\
        (~{gw}:limit:* ~{gw}:load ~{gw}:hints -@all +get +set +del +pexpire +zadd +zcard +zrem +zremrangebyscore)

Replication is asynchronous: a failover may lose the last writes, a revoked key among them, unless
``min-replicas-to-write`` narrows that. The chain of the trail stays whole, its head goes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from random import Random, SystemRandom
from types import MappingProxyType
from typing import Self, TypeVar

from gateway.model import AliasTable, EngineOrder, EngineOrders, Instance, Revision, Target
from gateway.redislink import BULK_TIMEOUT, LinkFault, RedisLink
from gateway.stateurl import RedisPlace
from gateway.stores import redis_aliases, redis_engines, redis_instances, redis_keys
from gateway.stores.engine_standing import Decide
from gateway.stores.interfaces import AuditEntry, FoundKey, KeyRecord, KeySecret, Versions
from gateway.stores.redis_records import line_of
from gateway.stores.redis_scripts import AUDIT, CHANGED, MARKS, Command
from gateway.stores.redis_state import Planned, RedisState
from gateway.stores.trail import Change

T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


class RedisStore:
    """``StateStore`` and ``Notifying`` over one Redis. Make it with ``open``; ``close`` releases its connections."""

    def __init__(self, place: RedisPlace, random: Random | None = None) -> None:
        """For a gateway that starts without its store: nothing is asked of it before the first call."""
        self._link = RedisLink(place)
        self._random = random or SystemRandom()
        self._state = RedisState(self._link, RedisLink(place, timeout=BULK_TIMEOUT, connections=2), self._random)
        self._closed = asyncio.Event()

    @classmethod
    async def open(cls, place: RedisPlace) -> Self:
        """Connect, and make an empty database a store.

        Raises ``StoreUnavailable`` when it cannot be reached, its data is another program's or a newer version's.
        """
        store = cls(place)
        try:
            await store._state.meet()
        except BaseException:
            await store.close()
            raise
        return store

    async def close(self) -> None:
        """Release all connections. Idempotent; calls under way fail."""
        self._closed.set()
        await self._state.close()

    async def changes(self) -> AsyncGenerator[None, None]:
        """As ``Notifying`` says. Ends when the store is closed."""
        pause = _FIRST_PAUSE
        while not self._closed.is_set():
            with suppress(LinkFault):
                async with aclosing(self._link.listen(CHANGED)) as heard:
                    async for _ in heard:
                        pause = _FIRST_PAUSE
                        yield
            with suppress(TimeoutError):
                async with asyncio.timeout(self._random.uniform(pause / 2, pause)):
                    await self._closed.wait()
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def versions(self) -> Versions:
        """All counters, cheaply."""
        head, _ = await self._state.read()
        return head.versions

    async def add_key(self, digest: bytes, record: KeyRecord, *, author: str) -> None:
        """Store a key under the keyed hash of its text; ``Conflict`` as the interface says."""
        await self._state.write(lambda: redis_keys.plan_add(self._state, digest, record, author))

    async def rotate_key(
        self, key_id: str, digest: bytes, secret: KeySecret, *, overlap_until: float, author: str
    ) -> KeyRecord:
        """Give a key another secret. Raises ``NotFound``, and ``Conflict`` as the interface says."""
        return await self._state.write(
            lambda: redis_keys.plan_rotation(
                self._state, key_id, digest, secret, overlap_until=overlap_until, author=author
            )
        )

    async def find_key(self, digest: bytes) -> FoundKey | None:
        """The key with a secret of that keyed hash, live or not."""
        return await redis_keys.found_by(self._state, digest)

    async def get_key(self, key_id: str) -> KeyRecord:
        """A key by id or by name. Raises ``NotFound``."""
        _, key = await redis_keys.named(self._state, key_id)
        return key.record

    async def list_keys(self) -> Sequence[KeyRecord]:
        """All keys, oldest first."""
        return await redis_keys.all_keys(self._state)

    async def revoke_key(self, key_id: str, *, at: float, author: str) -> KeyRecord:
        """End a key by id or name; ending an ended one changes nothing. Raises ``NotFound``."""
        return await self._state.write(lambda: redis_keys.plan_revocation(self._state, key_id, at, author))

    async def alias_table(self) -> AliasTable:
        """All current revisions and the generation, of one moment."""
        return await redis_aliases.table(self._state)

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
        """Append a revision and make it current; ``Conflict`` as the interface says."""
        wanted = Revision(alias, 0, tuple(targets), author, at, note, source, canary_of)
        return await self._state.write(lambda: redis_aliases.plan_assignment(self._state, wanted, expect_revision))

    async def delete_alias(
        self, alias: str, *, author: str, at: float, note: str = "", expect_revision: int | None = None
    ) -> Revision:
        """Take an alias out of the table. Raises ``NotFound``, and ``Conflict`` as the interface says."""
        return await self._state.write(
            lambda: redis_aliases.plan_deletion(
                self._state, alias, author=author, at=at, note=note, expect=expect_revision
            )
        )

    async def alias_revision(self, alias: str, number: int) -> Revision:
        """Any revision, also of a deleted alias. Raises ``NotFound``."""
        return await redis_aliases.revision(self._state, alias, number)

    async def note_uses(self, uses: Mapping[tuple[str, int], float]) -> None:
        """When revisions last served; the latest known is kept."""
        await redis_aliases.note_uses(self._state, uses)

    async def alias_uses(self, alias: str) -> Mapping[int, float]:
        """When each revision of an alias last served."""
        return await redis_aliases.uses(self._state, alias)

    async def alias_history(self, alias: str) -> Sequence[Revision]:
        """All revisions, oldest first. Raises ``NotFound``."""
        return await redis_aliases.history(self._state, alias)

    async def engine_orders(self) -> EngineOrders:
        """All orders about engines and their generation, of one moment."""
        return await redis_engines.engine_orders(self._state)

    async def add_engine(
        self, url: str, *, labels: Mapping[str, str], author: str, at: float, note: str = ""
    ) -> EngineOrder:
        """Make an engine part of the fleet; ``Conflict`` as the interface says."""
        wanted = EngineOrder(url, added=True, labels=MappingProxyType(dict(labels)), author=author, at=at, note=note)
        return await self._order(url, lambda now: now.added(wanted))

    async def remove_engine(self, url: str, *, author: str, at: float, note: str = "") -> EngineOrder:
        """Take back that an engine was added, and a drain with it. Raises ``NotFound``."""
        return await self._order(url, lambda now: now.removed(author=author, at=at, note=note))

    async def drain_engine(
        self, url: str, *, draining: bool, author: str, at: float, note: str = ""
    ) -> tuple[EngineOrder, bool]:
        """Drain an engine or lift its drain; ``Conflict`` as the interface says."""
        return await self._order(url, lambda now: now.drained(draining=draining, author=author, at=at, note=note))

    async def beat(self, instance: Instance) -> None:
        """Register an instance, or tell that it still lives."""
        await redis_instances.beat(self._state, instance)

    async def instances(self) -> Sequence[Instance]:
        """Instances heard of within an hour, oldest first."""
        return await redis_instances.instances(self._state)

    async def forget_instance(self, instance_id: str) -> None:
        """An instance has ended properly."""
        await redis_instances.forget(self._state, instance_id)

    async def note(self, *, at: float, author: str, verb: str, subject: str, detail: Mapping[str, object]) -> None:
        """Append a line to the audit trail alone."""

        async def plan() -> Planned[None]:
            head, _ = await self._state.read()
            return Planned(head, None, Change(at, author, verb, subject, detail))

        await self._state.write(plan)

    async def audit(self, *, after: int = 0, limit: int = 1_000) -> Sequence[AuditEntry]:
        """Lines of the audit trail with a number above ``after``, oldest first."""
        if limit < 1:
            return ()
        command = Command("XRANGE", AUDIT, (f"{max(after, 0) + 1}-0", "+", "COUNT", limit))
        _, (entries,) = await self._state.read_bulk(command)
        with self._state.decoding():
            return tuple(map(line_of, entries))

    async def audit_head(self) -> tuple[int, bytes]:
        """Number and hash of the newest line, as kept apart from the lines."""
        head, _ = await self._state.read()
        return head.number, head.seal

    async def pepper_mark(self, version: int, mark: bytes) -> bytes:
        """The mark kept for a version of the pepper. Only the first of a version is written."""
        kept = await self._mark(version)
        if kept is None:
            await self._state.run(Command("HSETNX", MARKS, (version, mark.hex())))
            kept = await self._mark(version)
        return kept or mark

    async def _order(self, url: str, decide: Decide[T]) -> T:
        return await self._state.write(lambda: redis_engines.plan_change(self._state, url, decide))

    async def _mark(self, version: int) -> bytes | None:
        _, (text,) = await self._state.read(Command("HGET", MARKS, (version,)))
        with self._state.decoding():
            return None if text is None else bytes.fromhex(text.decode())
