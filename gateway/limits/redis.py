"""Limits that all instances share in one Redis, with a local limiter to fall back on.

One admission is one script for all budgets together, by the server's clock: what several instances admit at once is
decided in one place. What requests used and gave back is delivered behind their backs. While the store fails, each
instance holds its share of every limit by itself: a limit never vanishes with the store.

What an outage can let through beyond the figures: at its begin one share of each more, since the fallback did not count
before, beside the requests in flight; at its end as much as the store has got back meanwhile, at most each figure once.
No request waits for the store longer than ``deadline`` seconds, and of those that come during an outage one in each
probe waits at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import count, islice
from typing import Any, Protocol

from gateway.limits import gcra
from gateway.limits.breaker import Breaker
from gateway.limits.interfaces import Lease, Limiter, LimitReached, Standing
from gateway.limits.outbox import Outbox
from gateway.limits.question import PLACES, Figure, Heads, figures_of, read_answer, reservable
from gateway.limits.scripts import ADMIT, DELIVER, RENEW, key_of
from gateway.limits.told import Told
from gateway.limits.verdict import refusal, shared, standing
from gateway.model import Budget, Limits
from gateway.redislink import LinkFault, Script

_MAX_PARTS = 10_000
_RENEWED_AT_ONCE = 1_000


class Link(Protocol):
    """What the limiter asks of a connection to Redis: no retries, and ``LinkFault`` for everything that goes wrong."""

    async def evaluate(self, script: Script, keys: Sequence[str], *values: str | bytes | int | float) -> Any:
        """The answer of a script."""
        ...


class RedisLease:
    """A ``Lease`` of a ``RedisLimiter``. ``standing`` is what was left when the request was admitted."""

    __slots__ = ("_budgets", "_figures", "_heads", "_limiter", "_name", "_open", "_taken")

    def __init__(
        self,
        limiter: RedisLimiter,
        name: str,
        budgets: Sequence[Budget],
        *,
        figures: Sequence[Figure],
        heads: Sequence[Heads],
        taken: int,
    ) -> None:
        self._limiter = limiter
        self._name = name
        self._budgets = budgets
        self._figures = figures
        self._heads = heads
        self._taken = taken
        self._open = True

    @property
    def standing(self) -> Standing | None:
        """See ``Lease``."""
        return standing(self._budgets, self._heads, 0.0)

    def settle(self, tokens: int) -> None:
        """See ``Lease``."""
        taken = self._taken
        if taken < 0:
            return
        self._taken = -1
        more = gcra.excess(tokens, taken)
        if more:
            self._limiter.correct([(f.key, more * f.spacing) for f in self._figures if f.kind in {"tokens", "day"}])

    def close(self) -> None:
        """See ``Lease``."""
        if self._open:
            self._open = False
            self._limiter.release(self._name)


class RedisLimiter:
    """A ``Limiter`` over a shared store.

    ``share`` is the part of each figure that this instance grants while the store fails, from 0 to 1: one over the
    number of instances. ``name`` is unique among all instances that ever were (it is in the name of each lease).
    ``link`` answers within about ``deadline`` seconds or fails, and does not retry. Control loops call ``flush`` again
    and again (every 5 ms), and ``renew`` three times in ``lease_seconds``: places of an instance that died come back
    when its leases end.
    """

    def __init__(
        self,
        link: Link,
        fallback: Limiter,
        breaker: Breaker,
        *,
        share: float | Callable[[], float],
        name: str,
        deadline: float = 0.15,
        lease_seconds: int = 60,
        outbox: Outbox | None = None,
        told: Told | None = None,
    ) -> None:
        self._link = link
        self._fallback = fallback
        self._breaker = breaker
        self._share = share
        self._name = name
        self._deadline = deadline
        self._lease_seconds = lease_seconds
        self._outbox = Outbox() if outbox is None else outbox
        self._told = Told() if told is None else told
        self._numbers = count(1)
        self._live: dict[str, tuple[str, ...]] = {}
        self._parts: dict[tuple[Limits, float], Limits] = {}
        self._waiting = asyncio.Event()
        # Deliveries and renewals take turns: a renewal under way must not bring back what a delivery frees.
        self._turn = asyncio.Lock()

    @property
    def alone(self) -> bool:
        """Whether the store is lost and this instance grants its share."""
        return self._breaker.open

    @property
    def dropped(self) -> int:
        """Corrections and releases that could not be kept until the store is back."""
        return self._outbox.dropped

    def admit(self, budgets: Sequence[Budget], tokens: int) -> Lease | Awaitable[Lease]:
        """See ``Limiter``. Waits for the store at most ``deadline`` seconds; not at all while it is lost."""
        # Who has no limits must not use up the one probe of a lost store.
        ticket = self._breaker.enter() if budgets else None
        return self._admit_alone(budgets, tokens) if ticket is None else self._ask(ticket, budgets, tokens)

    def spent(self, budgets: Sequence[Budget]) -> LimitReached | None:
        """See ``Limiter``. By what the store has just said to this instance; while it is lost, ``admit`` says all."""
        return None if self._breaker.open else self._told.refusal(budgets)

    async def _ask(self, ticket: int, budgets: Sequence[Budget], tokens: int) -> Lease:
        figures = figures_of(budgets, tokens)
        if not figures:
            return RedisLease(self, "", budgets, figures=(), heads=[Heads()] * len(budgets), taken=tokens)
        name = f"{self._name}:{next(self._numbers)}"
        places = tuple(figure.key for figure in figures if figure.kind == PLACES)
        answered = False
        try:
            admitted, heads = await self._ask_store(ticket, name, figures, len(budgets))
            answered = True
        except LinkFault:
            return await _given(self._admit_alone(budgets, tokens))
        finally:
            if not answered:  # the answer was lost, or the caller left: the places may be taken
                self._free(name, places)
        if not admitted:
            self._told.hear(budgets, heads)
            raise refusal(budgets, heads, 0.0, tokens)
        self._live[name] = places
        return RedisLease(self, name, budgets, figures=figures, heads=heads, taken=tokens)

    async def _ask_store(
        self, ticket: int, name: str, figures: Sequence[Figure], budgets: int
    ) -> tuple[bool, list[Heads]]:
        values: list[str | int | float] = [name, self._lease_seconds]
        for figure in figures:
            values += (figure.units, figure.spacing, figure.period)
        for number, figure in enumerate(figures, 1):
            if figure.kind == PLACES:
                for lease in self._outbox.freed(figure.key):
                    values += (number, lease)

        keys = [figure.key for figure in figures]
        found: tuple[bool, list[Heads]] = await self._call(
            ticket, ADMIT, keys, values, lambda answer: read_answer(answer, budgets, figures)
        )
        return found

    async def _call(
        self,
        ticket: int,
        script: Script,
        keys: Sequence[str],
        values: Sequence[str | int | float],
        read: Callable[[Any], Any] = int,
    ) -> Any:
        """What ``read`` makes of a script's answer. Raises ``LinkFault``, of which the breaker has been told."""
        try:
            async with asyncio.timeout(self._deadline):
                answer = await self._link.evaluate(script, keys, *values)
            found = read(answer)
        except LinkFault as fault:
            raise self._failed(ticket, fault) from fault.__cause__
        except TimeoutError:
            raise self._failed(ticket, LinkFault("TIMEOUT")) from None
        except (ValueError, TypeError):
            raise self._failed(ticket, LinkFault("PROTOCOL")) from None
        self._breaker.succeeded(ticket)
        return found

    def _failed(self, ticket: int, fault: LinkFault) -> LinkFault:
        self._breaker.failed(ticket, fault.reason)
        return fault

    def _admit_alone(self, budgets: Sequence[Budget], tokens: int) -> Lease | Awaitable[Lease]:
        share = self._share() if callable(self._share) else self._share
        parts = [Budget(holder, self._part(limits, share)) for holder, limits in budgets]
        return self._fallback.admit(parts, reservable(budgets, parts, tokens))

    def _part(self, limits: Limits, share: float) -> Limits:
        """The same object for the same question: a local limiter compares by identity first."""
        part = self._parts.get((limits, share))
        if part is None:
            if len(self._parts) >= _MAX_PARTS:
                self._parts.clear()
            part = self._parts[limits, share] = shared(limits, share)
        return part

    def correct(self, moves: Sequence[tuple[str, float]]) -> None:
        """Have rates moved by seconds. For leases."""
        for key, seconds in moves:
            self._outbox.correct(key, seconds)
        self._waiting.set()

    def release(self, name: str) -> None:
        """Have a lease's places freed. For leases."""
        self._free(name, self._live.pop(name, ()))

    def _free(self, name: str, places: Sequence[str]) -> None:
        for key in places:
            self._outbox.free(key, name)
            self._waiting.set()

    async def flush(self) -> None:
        """Wait until there is something to tell the store, and try to tell it once. Expects to be called again."""
        await self._waiting.wait()
        await self._deliver()

    async def _deliver(self) -> bool:
        """Whether a batch was delivered and more may follow."""
        async with self._turn:
            batch = self._outbox.next()
            ticket = self._breaker.enter() if batch is not None else None
            if batch is None or ticket is None:
                return False
            try:
                await self._call(ticket, DELIVER, [self._mark, *batch.keys], [batch.number, *batch.values])
            except LinkFault:
                return False
            self._outbox.delivered(batch)
            if not self._outbox:
                self._waiting.clear()
            return bool(self._outbox)

    @property
    def _mark(self) -> str:
        return key_of("delivered", self._name)

    async def renew(self) -> None:
        """Have all live leases last ``lease_seconds`` from now; those that a restarted store has lost are back."""
        async with self._turn:
            live = ((key, name) for name, keys in list(self._live.items()) for key in keys)
            while groups := _grouped(islice(live, _RENEWED_AT_ONCE)):
                ticket = self._breaker.enter()
                if ticket is None:
                    return
                values: list[str | int] = [self._lease_seconds]
                for names in groups.values():
                    values += (len(names), *names)
                try:
                    await self._call(ticket, RENEW, list(groups), values)
                except LinkFault:
                    return

    async def close(self) -> None:
        """Deliver what is still to be told, as long as the store takes it. Leases still held end by themselves."""
        while await self._deliver():
            pass


async def _given(lease: Lease | Awaitable[Lease]) -> Lease:
    return await lease if isinstance(lease, Awaitable) else lease


def _grouped(pairs: Iterator[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for key, name in pairs:
        groups.setdefault(key, []).append(name)
    return groups
