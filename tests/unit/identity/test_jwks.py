"""One issuer's keys over time: when they are asked for, by whom, and what stands while the issuer is down."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.identity.jwk import KeySet, KeySetFault, KeySetReason, parse_keys
from gateway.identity.jwks import CacheLimits, IssuerKeys
from gateway.identity.keyring import MISS
from gateway.identity.keysource import Loaded
from tests.issuer import jwk_of, private_key

DAY = 86_400.0


def keys(*kids: str, number: int = 0) -> KeySet:
    public = private_key("EdDSA", number).public_key()
    return parse_keys(json.dumps({"keys": [jwk_of(public, "EdDSA", kid) for kid in kids]}).encode(), ("EdDSA",))


@dataclass
class Source:
    """A source whose loads are counted, can be held up and made to fail."""

    keys: KeySet = field(default_factory=lambda: keys("k1"))
    lifetime: float = 300.0
    fault: Exception | None = None
    loads: int = 0
    gate: asyncio.Event | None = None

    async def load(self) -> Loaded:
        self.loads += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        return Loaded(self.keys, self.lifetime)


class Bench:
    """A cache over a source, and its clock."""

    def __init__(self, **limits: Any) -> None:
        self.now = 1_000.0
        self.source = Source()
        self.changes: list[bool] = []
        self.cache = IssuerKeys(
            self.source, lambda: self.now, random.Random(1), self.changes.append, CacheLimits(**limits)
        )

    def knows(self, kid: str) -> bool:
        return self.cache.find(kid) not in (None, MISS)

    async def tend(self) -> int:
        """One step of the loop, and the end of what it started. Returns how many loads there were in all."""
        self.cache.tend()
        await settle()
        return self.source.loads

    async def at(self, seconds: float) -> int:
        self.now = 1_000.0 + seconds
        return await self.tend()


async def settle() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


def run(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(body)


UNREACHABLE = KeySetFault(KeySetReason.UNREACHABLE)


def test_keys_are_asked_for_again_at_four_fifths_of_their_lifetime():
    async def body() -> None:
        bench = Bench()
        assert bench.cache.find("k1") is MISS
        assert not bench.cache.usable
        assert await bench.at(0) == 1
        assert bench.knows("k1")
        assert await bench.at(239.9) == 1
        assert await bench.at(240) == 2
        bench.source.lifetime = 60
        assert await bench.at(480) == 3
        assert await bench.at(528) == 4
        assert bench.cache.age() == 0

    run(body())


def test_one_load_at_a_time():
    async def body() -> None:
        bench = Bench()
        bench.source.gate = asyncio.Event()
        asking = [asyncio.create_task(bench.cache.ask(kid)) for kid in ("k1", "k1", "k2")]
        for _ in range(3):
            assert await bench.tend() == 1
        assert not any(task.done() for task in asking)
        bench.source.gate.set()
        await asyncio.gather(*asking)
        assert bench.knows("k1")
        assert bench.source.loads == 2  # one more for k2, which the first could not be asked for

    run(body())


def test_who_asks_may_leave_and_the_load_goes_on():
    async def body() -> None:
        bench = Bench()
        bench.source.gate = asyncio.Event()
        first, second = (asyncio.create_task(bench.cache.ask("k1")) for _ in range(2))
        await settle()
        first.cancel()
        await settle()
        bench.source.gate.set()
        await second
        assert bench.knows("k1")
        assert bench.source.loads == 1

    run(body())


def test_keys_stand_for_a_day_after_their_lifetime_while_the_issuer_is_down():
    async def body() -> None:
        bench = Bench()
        await bench.at(0)
        bench.source.fault = UNREACHABLE
        assert await bench.at(240) == 2
        assert bench.knows("k1")
        assert bench.cache.fault is KeySetReason.UNREACHABLE
        bench.now = 1_000 + 300 + DAY - 1
        assert bench.knows("k1")
        assert bench.cache.age() == 300 + DAY - 1
        bench.now += 1
        assert bench.cache.find("k1") is MISS
        assert not bench.cache.usable
        bench.source.fault = None
        await bench.tend()
        assert bench.knows("k1")
        assert bench.cache.fault is None

    run(body())


def test_failures_back_off_with_jitter_up_to_a_minute():
    async def body() -> None:
        bench = Bench()
        bench.source.fault = UNREACHABLE
        gaps, last = [], None
        for tick in range(6_000):
            before = bench.source.loads
            if await bench.at(tick / 10) > before:
                gaps += [] if last is None else [tick / 10 - last]
                last = tick / 10
        for step, gap in enumerate(gaps):
            longest = min(2**step, 60)
            assert longest / 2 <= gap <= longest + 0.1
        assert len({gap / min(2**step, 60) for step, gap in enumerate(gaps)}) > 5
        bench.source.fault = None
        await bench.at(10_000)
        assert await bench.at(10_239) == bench.source.loads
        bench.source.fault = UNREACHABLE
        count = await bench.at(10_240)
        assert await bench.at(10_241) == count + 1  # the count of failures began anew

    run(body())


def test_requests_do_not_ask_a_failing_issuer_between_tries():
    async def body() -> None:
        bench = Bench()
        bench.source.fault = UNREACHABLE
        for _ in range(50):
            await bench.cache.ask("k1")
        assert bench.source.loads == 1
        assert bench.cache.find("k1") is MISS

    run(body())


def test_unknown_kids_cause_one_load_in_thirty_seconds():
    async def body() -> None:
        bench = Bench()
        await bench.at(0)
        for number in range(200):
            if bench.cache.find(f"bogus-{number}") is MISS:
                await bench.cache.ask(f"bogus-{number}")
        assert bench.source.loads == 2
        assert bench.cache.find("bogus-7") is None
        bench.now += 29.9
        assert bench.cache.find("bogus-8") is None
        bench.now += 0.1
        assert bench.cache.find("bogus-8") is MISS

    run(body())


def test_a_new_key_is_found_by_the_token_that_names_it():
    async def body() -> None:
        bench = Bench()
        await bench.at(0)
        bench.source.keys = keys("k1", "k2")
        assert bench.cache.find("k2") is MISS
        await bench.cache.ask("k2")
        assert bench.knows("k2")
        assert bench.changes == [False, False]

    run(body())


def test_a_load_that_began_before_the_key_was_there_is_followed_by_one_more():
    async def body() -> None:
        bench = Bench()
        await bench.at(0)
        bench.source.gate = asyncio.Event()
        await bench.at(240)
        asking = asyncio.create_task(bench.cache.ask("k2"))
        await settle()
        bench.source.gate.set()
        bench.source.gate = None
        await asking
        assert bench.source.loads == 3

    run(body())


def test_a_kid_that_a_load_did_not_bring_is_not_asked_for_again_for_a_while():
    async def body() -> None:
        bench = Bench()
        await bench.at(0)
        await bench.cache.ask("retired")
        bench.now += 59
        assert bench.cache.find("other") is MISS  # asking as such is allowed again
        assert bench.cache.find("retired") is None
        bench.now += 1
        assert bench.cache.find("retired") is MISS
        bench.source.keys = keys("k1", "retired")
        await bench.at(240)
        assert bench.knows("retired")

    run(body())


def test_a_failed_load_says_nothing_of_a_kid():
    async def body() -> None:
        bench = Bench()
        await bench.at(0)
        bench.source.fault = UNREACHABLE
        await bench.cache.ask("k2")
        bench.source.fault, bench.source.keys = None, keys("k1", "k2")
        bench.now += 30
        assert bench.cache.find("k2") is MISS
        await bench.cache.ask("k2")
        assert bench.knows("k2")

    run(body())


def test_unknown_kids_are_kept_in_bounds():
    async def body() -> None:
        bench = Bench(cool_down=0.0, unknown_capacity=3)
        await bench.at(0)
        for number in range(10):
            await bench.cache.ask(f"bogus-{number}")
        assert [bench.cache.find(f"bogus-{number}") is None for number in range(10)] == [False] * 7 + [True] * 3

    run(body())


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        (keys("a"), keys("a", "b"), [False, False]),
        (keys("a", "b"), keys("a"), [False, True]),
        (keys("a"), keys("b"), [False, True]),
        (keys("a"), keys("a", number=1), [False, True]),
        (keys("a"), keys(), [False, True]),
        (keys("a"), keys("a"), [False]),
    ],
)
def test_a_change_says_whether_a_key_was_lost(before, after, lost):
    async def body() -> None:
        bench = Bench()
        bench.source.keys = before
        await bench.at(0)
        bench.source.keys = after
        await bench.at(240)
        assert bench.changes == lost

    run(body())


def test_a_refused_set_leaves_the_old_one():
    async def body() -> None:
        bench = Bench()
        await bench.at(0)
        bench.source.fault = KeySetFault(KeySetReason.DUPLICATE_KID)
        await bench.at(240)
        assert bench.knows("k1")
        assert bench.cache.fault is KeySetReason.DUPLICATE_KID
        assert bench.changes == [False]

    run(body())


def test_what_nobody_expected_is_a_failure_and_no_more():
    async def body() -> None:
        bench = Bench()
        bench.source.fault = RuntimeError("strange")
        await bench.cache.ask("k1")
        assert bench.cache.fault is KeySetReason.UNEXPECTED
        assert await bench.tend() == 1
        bench.source.fault = None
        await bench.at(1)
        assert bench.knows("k1")

    run(body())


def test_close_ends_the_load_and_starts_no_other():
    async def body() -> None:
        bench = Bench()
        bench.source.gate = asyncio.Event()
        asking = asyncio.create_task(bench.cache.ask("k1"))
        await settle()
        bench.cache.close()
        bench.cache.close()
        await asking
        await bench.cache.ask("k1")
        assert await bench.at(1_000) == 1
        assert len(asyncio.all_tasks()) == 1

    run(body())
