"""Reading one moment of the Redis store, and writing all or nothing.

A write reads what it needs and the head, decides in Python, and commits with one script that first checks that the head
is still the one read. Every write moves the head, since every write adds an audit line, so this is an optimistic lock
over the whole store: whatever was read between the first look and the commit was of one moment, or the commit is void
and the write starts again. One script for every kind of write means that none can forget its line or its counter, and
that no rule of the gateway is told twice, in Lua and in Python. The price is that writes come one after the other; they
are an operator's, and no request ever waits for one.

What no line tells of (uses of revisions, heartbeats) goes another way, ``aside``: it comes often and decides nothing,
so it leaves the head alone and no write has to start again for it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from random import Random
from typing import Any, Generic, NamedTuple, TypeVar

import orjson

from gateway.redislink import LinkFault, RedisLink
from gateway.stores.chain import GENESIS, sealed
from gateway.stores.interfaces import StoreUnavailable, Versions
from gateway.stores.redis_records import line_text
from gateway.stores.redis_scripts import ALL, ASIDE, AUDIT, CHANGED, COMMIT, HEAD, MEET, READ, Command, packed
from gateway.stores.trail import Change

T = TypeVar("T")

SCHEMA = 2
_WRITE_DEADLINE = 2.0
_IN_DOUBT = ". The change may have been made: look before you try again"
_REPLACED = "was emptied or replaced while in use. Restart the gateway"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.064


class Head(NamedTuple):
    """What every write moves: the counters, and number and hash of the newest audit line."""

    versions: Versions
    number: int
    seal: bytes


class Planned(NamedTuple, Generic[T]):
    """A write that has been decided: what it gives, and what is to be done for it. No ``change``: nothing is.

    ``head`` is the head of the plan's first read; ``counter`` the one to move, if any.
    """

    head: Head
    result: T
    change: Change | None = None
    counter: str | None = None
    commands: tuple[Command, ...] = ()


class RedisState:
    """One store in one Redis. All methods raise ``StoreUnavailable``; ``close`` is idempotent.

    ``bulk`` is a link for what takes longer than a look: it has a longer deadline and connections of its own.
    """

    def __init__(self, link: RedisLink, bulk: RedisLink, random: Random) -> None:
        self._link = link
        self._bulk = bulk
        self._random = random
        self._writing = asyncio.Lock()
        self._store: str | None = None

    async def meet(self) -> None:
        """Make sure that what is there is a store of ours, an empty database becoming one.

        It is remembered by a random name: a Redis that comes back empty, or another one at the same address, is found
        out at the next read instead of passing for a store without keys and aliases.
        """
        with self._translated():
            found = await self._link.evaluate(MEET, ALL, SCHEMA, secrets.token_hex(16), GENESIS.hex())
        try:
            schema, store = int(found[0].decode()), found[1].decode()
        except (ValueError, TypeError, IndexError, AttributeError):
            raise self._unavailable(
                "holds data of another program under the names of the gateway. Choose another /DB"
            ) from None
        if schema > SCHEMA:
            raise self._unavailable(
                f"was written by a newer gateway (schema {schema}; this one knows {SCHEMA}). Nothing was changed: "
                "upgrade this gateway"
            )
        self._store = store

    async def read(self, *commands: Command) -> tuple[Head, list[Any]]:
        """The head and the reply to each command, all of one moment."""
        return await self._read(self._link, commands)

    async def read_bulk(self, *commands: Command) -> tuple[Head, list[Any]]:
        """The same for what may be megabytes."""
        return await self._read(self._bulk, commands)

    async def _read(self, link: RedisLink, commands: Sequence[Command]) -> tuple[Head, list[Any]]:
        if self._store is None:
            await self.meet()
        keys, values = packed(commands)
        with self._translated():
            answer = await link.evaluate(READ, keys, *values)
        with self.decoding():
            (store, *counts, seal), *replies = answer
            if store is None or store.decode() != self._store:
                raise self._unavailable(_REPLACED)
            # No store of an older gateway has a counter of the fleet: it begins with the first order.
            key_writes, alias_writes, fleet, number = counts
            versions = Versions(int(key_writes), int(alias_writes), 0 if fleet is None else int(fleet))
            return Head(versions, int(number), bytes.fromhex(seal.decode())), replies

    async def write(self, plan: Callable[[], Awaitable[Planned[T]]]) -> T:
        """Plan and commit until no other writer comes between, at most ``_WRITE_DEADLINE`` seconds."""
        try:
            async with asyncio.timeout(_WRITE_DEADLINE), self._writing:
                pause = _FIRST_PAUSE
                while True:
                    planned = await plan()
                    if planned.change is None or await self._commit(planned, planned.change):
                        return planned.result
                    await asyncio.sleep(self._random.uniform(0, pause))
                    pause = min(2 * pause, _LONGEST_PAUSE)
        except TimeoutError:
            raise self._unavailable("is slow or has too many writers" + _IN_DOUBT) from None

    async def aside(self, *commands: Command) -> list[Any]:
        """Write, in one step, what the trail does not tell of; the reply to each command."""
        if self._store is None:
            await self.meet()
        keys, values = packed(commands)
        with self._translated():
            replies = await self._link.evaluate(ASIDE, keys, self._store or "", *values)
        if not isinstance(replies, list):
            raise self._unavailable(_REPLACED)
        return replies

    async def run(self, command: Command) -> Any:
        """The reply to one command that needs no other."""
        with self._translated():
            return await self._link.run(command.verb, command.key, *command.values)

    async def close(self) -> None:
        """Close the connections."""
        await asyncio.gather(self._link.close(), self._bulk.close())

    async def decoded(self, lists: Sequence[bytes], decode: Callable[[Iterator[Any]], T]) -> T:
        """What ``decode`` makes of a whole hash, worked out in a thread: ten thousand aliases take some 60 ms.

        The interpreter goes back and forth between threads, but not while one list is parsed.
        """

        def work() -> T:
            with self.decoding():
                return decode(chain.from_iterable(map(orjson.loads, lists)))

        return await asyncio.to_thread(work)

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Turn what the reading of a value raises into ``StoreUnavailable``."""
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._unavailable("holds a damaged value. Nothing was changed: restore a copy") from error

    async def _commit(self, planned: Planned[Any], change: Change) -> bool:
        head = planned.head
        line = sealed(head.seal, head.number + 1, *change)
        moved = () if planned.counter is None else (planned.counter, getattr(head.versions, planned.counter) + 1)
        commands = (
            Command("XADD", AUDIT, (f"{line.number}-0", "line", line_text(line))),
            Command("HSET", HEAD, ("number", line.number, "seal", line.hash.hex(), *moved)),
            *planned.commands,
        )
        keys, values = packed(commands)
        with self._translated(writing=True):
            return bool(await self._link.evaluate(COMMIT, keys, head.seal.hex(), CHANGED, *values))

    @contextmanager
    def _translated(self, *, writing: bool = False) -> Iterator[None]:
        try:
            yield
        except LinkFault as fault:
            doubt = _IN_DOUBT if writing and fault.uncertain else ""
            raise self._unavailable(fault.reason + doubt) from fault

    def _unavailable(self, reason: str) -> StoreUnavailable:
        return StoreUnavailable(f"state store Redis {self._link.place} {reason}.")
