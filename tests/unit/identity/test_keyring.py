"""The ring: who a key belongs to, how soon a change is seen, what happens while the store is gone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gateway.errors import Unavailable
from gateway.identity.keyring import MISS, KeyRing
from gateway.identity.keys import digest, new_key
from gateway.model import Principal
from gateway.secret import Secret
from gateway.stores.interfaces import KeyRecord, StoreUnavailable, Versions

PEPPER = Secret("p" * 43)
OLD_PEPPER = Secret("o" * 43)


@dataclass
class Clock:
    """Time that moves when told to."""

    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Store:
    """A key source whose reads can be counted, held up and made to fail."""

    keys: dict[bytes, KeyRecord] = field(default_factory=dict)
    version: int = 0
    reads: int = 0
    fault: Exception | None = None
    gate: asyncio.Event | None = None

    async def versions(self) -> Versions:
        if self.fault:
            raise self.fault
        return Versions(keys=self.version, aliases=0)

    async def find_key(self, digest: bytes) -> KeyRecord | None:
        self.reads += 1
        found = self.keys.get(digest)
        if self.gate:
            await self.gate.wait()
        if self.fault:
            raise self.fault
        return found

    def add(self, number: int, pepper: Secret = PEPPER, **more: Any) -> str:
        made = new_key("live", random.Random(number))
        record = KeyRecord(made.id, f"app{number}", "t1", ("user",), ("chat-*",), 0.0, **more)
        self.keys[digest(pepper.reveal().encode(), made.text.reveal())] = record
        self.version += 1
        return made.text.reveal()

    def revoke_all(self) -> None:
        self.keys = {mark: replace(record, revoked_at=1.0) for mark, record in self.keys.items()}
        self.version += 1


@dataclass
class Bench:
    """A ring over a store, and its two clocks."""

    store: Store = field(default_factory=Store)
    wall: Clock = field(default_factory=Clock)
    steady: Clock = field(default_factory=Clock)

    def ring(self, peppers: dict[int, Secret] | None = None, **options: Any) -> KeyRing:
        return KeyRing(self.store, peppers or {1: PEPPER}, self.wall, monotonic=self.steady, **options)


def run(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(body)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_key_is_fetched_once_and_then_looked_up(bench: Bench) -> None:
    async def body() -> None:
        text = bench.store.add(1)
        ring = bench.ring()
        await ring.refresh()
        assert ring.lookup(text) is MISS
        principal = await ring.fetch(text)
        assert principal == Principal(new_key("live", random.Random(1)).id, "t1", "app1", ("user",), ("chat-*",))
        assert ring.lookup(text) is principal
        assert bench.store.reads == 1

    run(body())


def test_before_the_first_refresh_nothing_cached_is_trusted(bench: Bench) -> None:
    async def body() -> None:
        text = bench.store.add(1)
        ring = bench.ring()
        assert await ring.fetch(text)
        assert ring.lookup(text) is MISS

    run(body())


def test_a_malformed_key_costs_no_read(bench: Bench) -> None:
    async def body() -> None:
        text = bench.store.add(1)
        ring = bench.ring()
        await ring.refresh()
        for tampered in (text[:-1] + ("A" if text[-1] != "A" else "B"), text.lower(), "", "x" * 1_000_000):
            assert ring.lookup(tampered) is None
            assert await ring.fetch(tampered) is None
        assert bench.store.reads == 0

    run(body())


def test_under_another_pepper_no_key_works(bench: Bench) -> None:
    async def body() -> None:
        text = bench.store.add(1)
        ring = bench.ring({1: OLD_PEPPER})
        await ring.refresh()
        assert await ring.fetch(text) is None

    run(body())


def test_keys_of_an_older_pepper_work_beside_new_ones(bench: Bench) -> None:
    async def body() -> None:
        old, new = bench.store.add(1, OLD_PEPPER), bench.store.add(2)
        ring = bench.ring({1: OLD_PEPPER, 2: PEPPER})
        await ring.refresh()
        for text, name in ((old, "app1"), (new, "app2")):
            fetched = await ring.fetch(text)
            assert fetched is not None
            assert fetched.name == name
            assert ring.lookup(text) is fetched

    run(body())


def test_a_cached_key_ends_at_its_expiry(bench: Bench) -> None:
    async def body() -> None:
        text = bench.store.add(1, expires_at=1_010.0)
        ring = bench.ring()
        await ring.refresh()
        await ring.fetch(text)
        bench.wall.now = 1_009.9
        assert isinstance(ring.lookup(text), Principal)
        bench.wall.now = 1_010.0
        assert ring.lookup(text) is None
        assert await ring.fetch(text) is None

    run(body())


def test_a_revocation_is_seen_at_the_next_refresh(bench: Bench) -> None:
    async def body() -> None:
        text = bench.store.add(1)
        ring = bench.ring()
        await ring.refresh()
        await ring.fetch(text)
        bench.store.revoke_all()
        await ring.refresh()
        assert ring.lookup(text) is MISS
        assert await ring.fetch(text) is None
        assert ring.lookup(text) is None

    run(body())


def test_a_refresh_that_finds_no_change_keeps_the_cache(bench: Bench) -> None:
    async def body() -> None:
        text = bench.store.add(1)
        ring = bench.ring()
        await ring.refresh()
        await ring.fetch(text)
        await ring.refresh()
        assert isinstance(ring.lookup(text), Principal)

    run(body())


def test_a_read_overtaken_by_a_revocation_is_not_kept(bench: Bench) -> None:
    async def body() -> None:
        text = bench.store.add(1)
        ring = bench.ring()
        await ring.refresh()
        bench.store.gate = asyncio.Event()
        reading = asyncio.create_task(ring.fetch(text))
        while not bench.store.reads:
            await asyncio.sleep(0)
        bench.store.revoke_all()
        await ring.refresh()
        bench.store.gate.set()
        await reading
        assert ring.lookup(text) is MISS
        assert await ring.fetch(text) is None

    run(body())


def test_an_unknown_key_is_remembered_for_ten_seconds_or_until_keys_change(bench: Bench) -> None:
    async def body() -> None:
        text = new_key("live", random.Random(1)).text.reveal()
        ring = bench.ring()
        await ring.refresh()
        assert await ring.fetch(text) is None
        bench.steady.now += 9.9
        assert ring.lookup(text) is None
        bench.steady.now += 0.2
        assert ring.lookup(text) is MISS
        assert await ring.fetch(text) is None
        bench.store.add(1)
        await ring.refresh()
        assert ring.lookup(text) is MISS
        assert await ring.fetch(text) is not None

    run(body())


def test_both_caches_are_bounded_and_keep_what_is_used(bench: Bench) -> None:
    async def body() -> None:
        texts = [bench.store.add(number) for number in range(4)]
        ring = bench.ring(capacity=3, negative_capacity=1)
        await ring.refresh()
        for text in texts[:3]:
            await ring.fetch(text)
        assert isinstance(ring.lookup(texts[0]), Principal)
        await ring.fetch(texts[3])
        kept = [isinstance(ring.lookup(text), Principal) for text in texts]
        assert kept == [True, False, True, True]
        unknown = [new_key("live", random.Random(number)).text.reveal() for number in (10, 11)]
        for text in unknown:
            await ring.fetch(text)
        assert [ring.lookup(text) for text in unknown] == [MISS, None]

    run(body())


def test_requests_for_the_same_key_share_one_read_and_may_leave(bench: Bench) -> None:
    async def body() -> None:
        text = bench.store.add(1)
        ring = bench.ring()
        await ring.refresh()
        bench.store.gate = asyncio.Event()
        waiting = [asyncio.create_task(ring.fetch(text)) for _ in range(5)]
        while not bench.store.reads:
            await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.wait(waiting[:1])
        bench.store.gate.set()
        found = await asyncio.gather(*waiting[1:])
        assert {principal.name for principal in found if principal} == {"app1"}
        assert bench.store.reads == 1

    run(body())


@pytest.mark.parametrize("fault", [StoreUnavailable("gone"), Unavailable("store_unavailable")])
def test_while_the_store_is_gone_known_keys_work_for_five_minutes(bench: Bench, fault: Exception) -> None:
    async def body() -> None:
        known, unknown = bench.store.add(1), bench.store.add(2)
        ring = bench.ring()
        await ring.refresh()
        await ring.fetch(known)
        bench.store.fault = fault
        with pytest.raises(Unavailable):
            await ring.refresh()
        bench.steady.now += 300.0
        assert isinstance(ring.lookup(known), Principal)
        assert ring.age() == 300.0
        assert ring.lookup(unknown) is MISS
        with pytest.raises(Unavailable) as refused:
            await ring.fetch(unknown)
        assert refused.value.spec.code == "store_unavailable"
        bench.steady.now += 0.1
        assert ring.lookup(known) is MISS
        with pytest.raises(Unavailable):
            await ring.fetch(known)
        bench.store.fault = None
        await ring.refresh()
        assert isinstance(ring.lookup(known), Principal)

    run(body())


def test_a_failed_read_is_not_remembered_as_unknown(bench: Bench) -> None:
    async def body() -> None:
        text = bench.store.add(1)
        ring = bench.ring()
        await ring.refresh()
        bench.store.fault = StoreUnavailable("gone")
        with pytest.raises(Unavailable):
            await ring.fetch(text)
        bench.store.fault = None
        assert ring.lookup(text) is MISS
        assert await ring.fetch(text) is not None

    run(body())


def test_a_store_that_does_not_answer_is_unavailable(bench: Bench) -> None:
    async def body() -> None:
        text = bench.store.add(1)
        ring = bench.ring(read_timeout=0.01)
        bench.store.gate = asyncio.Event()
        with pytest.raises(Unavailable):
            await ring.fetch(text)

    run(body())


def test_reads_under_way_are_bounded_and_end_with_the_ring(bench: Bench) -> None:
    async def body() -> None:
        texts = [bench.store.add(number) for number in range(3)]
        ring = bench.ring(max_reads=2)
        bench.store.gate = asyncio.Event()
        waiting = [asyncio.create_task(ring.fetch(text)) for text in texts[:2]]
        while bench.store.reads < 2:
            await asyncio.sleep(0)
        with pytest.raises(Unavailable) as refused:
            await ring.fetch(texts[2])
        assert refused.value.retry_after == 1
        await ring.close()
        await ring.close()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(end) for end in ended] == [asyncio.CancelledError] * 2

    run(body())


def test_a_ring_needs_a_pepper(bench: Bench) -> None:
    with pytest.raises(ValueError, match="pepper"):
        KeyRing(bench.store, {})
