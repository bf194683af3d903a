"""The ring: who a key belongs to, how soon a change is seen, what happens while the store is gone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gateway.errors import Unavailable
from gateway.identity.keyring import MISS, KeyRing
from gateway.identity.keys import Digester, digest, new_key
from gateway.model import Limits, Principal
from gateway.secret import Secret
from gateway.stores.interfaces import AuditEntry, FoundKey, KeyRecord, KeySecret, StoreUnavailable, Versions

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

    keys: dict[bytes, FoundKey] = field(default_factory=dict)
    lines: list[AuditEntry] = field(default_factory=list)
    version: int = 0
    reads: int = 0
    fault: Exception | None = None
    gate: asyncio.Event | None = None
    audit_gate: asyncio.Event | None = None

    async def versions(self) -> Versions:
        if self.fault:
            raise self.fault
        return Versions(keys=self.version, aliases=0)

    async def audit(self, *, after: int, limit: int) -> list[AuditEntry]:
        found = [line for line in self.lines if line.number > after][:limit]
        gate, self.audit_gate = self.audit_gate, None
        if gate:
            await gate.wait()
        return found

    async def audit_head(self) -> tuple[int, bytes]:
        return len(self.lines), b""

    async def find_key(self, digest: bytes) -> FoundKey | None:
        self.reads += 1
        found = self.keys.get(digest)
        if self.gate:
            await self.gate.wait()
        if self.fault:
            raise self.fault
        return found

    def add(self, number: int, pepper: Secret = PEPPER, **more: Any) -> str:
        made = new_key("live", random.Random(number))
        secret = KeySecret(0.0)
        record = KeyRecord(made.id, f"app{number}", "t1", ("user",), ("chat-*",), 0.0, secrets=(secret,), **more)
        self.keys[digest(pepper.reveal().encode(), made.text.reveal())] = FoundKey(record, secret)
        self.tell("key.create", made.id)
        return made.text.reveal()

    def revoke(self, number: int) -> None:
        key_id = new_key("live", random.Random(number)).id
        for mark, found in self.keys.items():
            if found.key.id == key_id:
                self.keys[mark] = replace(found, key=replace(found.key, revoked_at=1.0))
        self.tell("key.revoke", key_id)

    def tell(self, verb: str, subject: str) -> None:
        self.lines.append(AuditEntry(len(self.lines) + 1, 0.0, "ann", verb, subject, "{}", b"", b""))
        self.version += verb.startswith("key.")


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
        bench.store.revoke(1)
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
        bench.store.revoke(1)
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


def test_the_limits_of_a_key_and_the_end_of_the_secret_go_with_the_principal(bench: Bench) -> None:
    async def body() -> None:
        limits = Limits(requests_per_minute=60)
        text = bench.store.add(1, limits=limits, expires_at=5_000.0)
        mark = digest(PEPPER.reveal().encode(), text)
        bench.store.keys[mark] = replace(bench.store.keys[mark], secret=KeySecret(0.0, 1_010.0))
        ring = bench.ring()
        await ring.refresh()
        principal = await ring.fetch(text)
        assert principal is not None
        assert (principal.limits, principal.expires_at) == (limits, 1_010.0)
        bench.wall.now = 1_010.0
        assert ring.lookup(text) is None
        assert await ring.fetch(text) is None

    run(body())


def cached(ring: KeyRing, texts: list[str]) -> list[bool]:
    return [isinstance(ring.lookup(text), Principal) for text in texts]


def test_a_write_drops_only_the_keys_that_it_changed(bench: Bench) -> None:
    async def body() -> None:
        texts = [bench.store.add(number) for number in range(3)]
        ring = bench.ring()
        await ring.refresh()
        for text in texts:
            await ring.fetch(text)
        epoch = ring.epoch
        bench.store.tell("alias.set", "chat")
        bench.store.revoke(1)
        bench.store.tell("fleet.drain", "r0")
        await ring.refresh()
        assert cached(ring, texts) == [True, False, True]
        assert ring.epoch != epoch
        bench.store.revoke(2)
        bench.store.add(9)
        await ring.refresh()
        assert cached(ring, texts) == [True, False, False]
        bench.store.version += 1
        await ring.refresh()
        assert cached(ring, texts) == [False, False, False]

    run(body())


def too_many_lines(store: Store) -> None:
    for _ in range(1_000):
        store.tell("alias.set", "chat")
    store.revoke(1)


def too_many_lines_that_look_like_writes(store: Store) -> None:
    for _ in range(1_000):
        store.tell("key.looked_at", "x")
    store.version -= 1_000
    store.revoke(1)


def lines_are_gone(store: Store) -> None:
    store.version += 1


def part_of_the_lines_is_gone(store: Store) -> None:
    store.revoke(2)
    store.version += 1


def an_older_copy_came_back(store: Store) -> None:
    store.lines = store.lines[:1]
    store.version -= 1


@pytest.mark.parametrize(
    "happening",
    [
        too_many_lines,
        too_many_lines_that_look_like_writes,
        lines_are_gone,
        part_of_the_lines_is_gone,
        an_older_copy_came_back,
    ],
)
def test_when_the_trail_does_not_account_for_every_write_all_is_dropped(
    bench: Bench, happening: Callable[[Store], None]
) -> None:
    async def body() -> None:
        texts = [bench.store.add(number) for number in range(3)]
        ring = bench.ring()
        await ring.refresh()
        for text in texts:
            await ring.fetch(text)
        happening(bench.store)
        await ring.refresh()
        assert cached(ring, texts) == [False, False, False]
        for text in texts:
            await ring.fetch(text)
        bench.store.revoke(0)
        await ring.refresh()
        assert not cached(ring, texts)[0]
        assert cached(ring, texts)[2] == bench.store.keys[digest(PEPPER.reveal().encode(), texts[2])].live(1_000.0)

    run(body())


def test_every_refused_key_costs_the_same_hashes_and_reads(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    plain = Digester.__call__
    monkeypatch.setattr(Digester, "__call__", lambda self, text: hashed.append(text) or plain(self, text))

    async def body() -> None:
        old, new = bench.store.add(1, OLD_PEPPER), bench.store.add(2)
        bench.store.revoke(1)
        bench.store.revoke(2)
        unknown = new_key("live", random.Random(3)).text.reveal()
        ring = bench.ring({1: OLD_PEPPER, 2: PEPPER})
        await ring.refresh()
        costs = set()
        for text in (old, new, unknown):
            hashed.clear()
            reads = bench.store.reads
            assert ring.lookup(text) is MISS
            assert await ring.fetch(text) is None
            first = len(hashed), bench.store.reads - reads
            assert ring.lookup(text) is None
            costs.add((*first, len(hashed)))
        assert costs == {(4, 2, 6)}

    run(body())


def test_a_key_that_ends_in_the_cache_costs_what_an_unknown_one_costs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    plain = Digester.__call__

    async def body() -> None:
        text = bench.store.add(1, expires_at=1_010.0)
        ring = bench.ring({1: OLD_PEPPER, 2: PEPPER})
        await ring.refresh()
        await ring.fetch(text)
        monkeypatch.setattr(Digester, "__call__", lambda self, text: hashed.append(text) or plain(self, text))
        bench.wall.now = 1_010.0
        reads = bench.store.reads
        for _ in range(2):
            hashed.clear()
            assert ring.lookup(text) is None
            assert len(hashed) == 2
        assert bench.store.reads == reads

    run(body())


def test_refreshes_at_the_same_time_follow_each_other(bench: Bench) -> None:
    async def body() -> None:
        texts = [bench.store.add(number) for number in range(3)]
        ring = bench.ring()
        await ring.refresh()
        for text in texts:
            await ring.fetch(text)
        held = bench.store.audit_gate = asyncio.Event()
        bench.store.revoke(0)
        first = asyncio.create_task(ring.refresh())
        while bench.store.audit_gate:
            await asyncio.sleep(0)
        bench.store.revoke(1)
        second = asyncio.create_task(ring.refresh())
        await asyncio.sleep(0)
        held.set()
        await asyncio.gather(first, second)
        assert cached(ring, texts) == [False, False, True]

    run(body())
