"""Which replicas there are, by what is listed and what is ordered, and the watch over each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.discover.sources import Found
from gateway.fleet.keeper import Keeper
from gateway.fleet.life import Sign, State
from gateway.fleet.registry import Registry
from gateway.fleet.replica import Replica
from gateway.model import EngineOrder, EngineOrders, EngineSpec
from gateway.policy.fleet import FleetPolicy
from gateway.supervise import Supervisor

A, B = "http://127.0.0.1:8001", "http://127.0.0.1:8002"


class FakeWatch:
    """Does nothing but what a test has it do, and ends as a real one does."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.greeted = asyncio.Event()
        self.nudges = 0
        self.fault: Exception | None = None
        self._wake = asyncio.Event()
        replica.nudge = self._nudge

    def _nudge(self) -> None:
        self.nudges += 1
        self._wake.set()

    async def run(self) -> None:
        while not (self.replica.life.state is State.GONE and self.replica.removed):
            await self._wake.wait()
            self._wake.clear()
            if self.fault is not None:
                raise self.fault


class Site:
    """A keeper with its registry and supervisor."""

    def __init__(self) -> None:
        self.closed: list[str] = []
        self.watches: list[FakeWatch] = []
        self.supervisor = Supervisor(asyncio.get_running_loop())
        self.registry = Registry(self._make, FleetPolicy, now=lambda: 0.0)
        self.keeper = Keeper(self.registry, self.supervisor, self._watch)  # type: ignore[arg-type]

    def _make(self, spec: EngineSpec, origin: str, told: Any, spare: Any) -> Replica:
        link: Any = SimpleNamespace(close=lambda: self.closed.append(spec.url), give_up=lambda _: None)
        return Replica(
            spec, lambda _: link, FleetPolicy, told, spare, origin=origin, now=lambda: 0.0, random=lambda: 0.5
        )

    def _watch(self, replica: Replica) -> FakeWatch:
        self.watches.append(FakeWatch(replica))
        return self.watches[-1]

    def lists(self, *urls: str) -> None:
        self.keeper.apply([Found(EngineSpec(url), "file") for url in urls])

    def orders(self, *drained: str, note: str = "") -> None:
        engines = {url: EngineOrder(url, draining=True, author="ops", note=note) for url in drained}
        self.keeper.obey(EngineOrders(1, engines))

    def find(self, url: str) -> Replica:
        return next(replica for replica in self.registry.replicas if replica.spec.url == url)

    def states(self) -> dict[str, str]:
        return {replica.spec.url: replica.life.state.value for replica in self.registry.replicas}

    def empty(self, url: str) -> None:
        """Its last request has ended."""
        self.find(url).take(Sign.EMPTY)

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
def run() -> Callable[[Callable[[Site], Awaitable[None]]], None]:
    """Runs a body with a site, on a loop of its own."""

    def go(body: Callable[[Site], Awaitable[None]]) -> None:
        async def main() -> None:
            site = Site()
            try:
                async with asyncio.timeout(10):
                    await body(site)
            finally:
                await site.supervisor.close()

        asyncio.run(main())

    return go


def test_what_is_listed_is_watched_once(run):
    async def body(site):
        site.lists(A, B)
        site.lists(B, A)
        site.lists(A, B)
        await site.settle()
        assert site.states() == {A: "found", B: "found"}
        assert [watch.replica.spec.url for watch in site.watches] == [A, B]
        assert [watch.nudges for watch in site.watches] == [0, 0]
        assert site.find(A).origin == "file"

    run(body)


def test_what_is_listed_no_more_leaves_when_its_requests_have_ended_and_is_forgotten_then(run):
    async def body(site):
        site.lists(A, B)
        await site.settle()
        site.lists(B)
        assert (site.states(), site.find(A).life.reason) == ({A: "draining", B: "found"}, "listed no more")
        assert site.watches[0].nudges == 1
        site.lists(B)
        assert site.watches[0].nudges == 1
        site.empty(A)
        site.watches[0].replica.nudge()
        await site.settle()
        assert (site.states(), site.closed) == ({B: "found"}, [A])
        site.lists(A, B)
        assert (site.states(), len(site.watches)) == ({B: "found", A: "found"}, 3)

    run(body)


def test_what_is_listed_again_before_it_was_gone_stays(run):
    async def body(site):
        site.lists(A)
        site.lists()
        replica = site.find(A)
        site.lists(A)
        assert (replica.life.state, replica.life.reason, replica.removed) == (State.FOUND, "to be used again", False)
        assert site.find(A) is replica
        await site.settle()
        assert site.closed == []

    run(body)


def test_what_was_gone_and_is_listed_again_in_the_same_moment_stays(run):
    async def body(site):
        site.lists(A)
        await site.settle()
        site.lists()
        site.empty(A)
        site.find(A).nudge()
        site.lists(A)
        await site.settle()
        assert site.states() == {A: "found"}
        assert (len(site.watches), site.closed) == (1, [])

    run(body)


def test_a_drain_by_order_says_who_ordered_it_and_stays_listed_when_it_is_gone(run):
    async def body(site):
        site.lists(A, B)
        site.orders(A, note="new driver")
        assert (site.states(), site.find(A).life.reason) == (
            {A: "draining", B: "found"},
            "drained by ops: new driver",
        )
        site.empty(A)
        site.find(A).nudge()
        await site.settle()
        assert site.states() == {A: "gone", B: "found"}
        site.lists(A, B)
        assert site.states() == {A: "gone", B: "found"}
        site.orders()
        assert site.states() == {A: "found", B: "found"}

    run(body)


def test_an_order_without_a_note_is_told_without_one(run):
    async def body(site):
        site.lists(A)
        site.orders(A)
        assert site.find(A).life.reason == "drained by ops"

    run(body)


def test_what_is_drained_and_gone_is_forgotten_when_it_is_listed_no_more(run):
    async def body(site):
        site.lists(A)
        site.orders(A)
        site.empty(A)
        await site.settle()
        site.lists()
        await site.settle()
        assert site.states() == {}

    run(body)


def test_an_order_from_before_holds_from_the_first_moment(run):
    async def body(site):
        site.orders(A)
        site.lists(A, B)
        assert site.states() == {A: "draining", B: "found"}

    run(body)


def test_an_order_for_an_engine_that_nobody_knows_waits_for_it(run):
    async def body(site):
        site.lists(B)
        site.orders(A)
        assert site.states() == {B: "found"}
        site.lists(A, B)
        assert site.states()[A] == "draining"

    run(body)


def test_lifting_an_order_does_not_bring_back_what_is_listed_no_more(run):
    async def body(site):
        site.lists(A)
        site.orders(A)
        site.lists()
        site.orders()
        assert (site.states(), site.find(A).removed) == ({A: "draining"}, True)
        site.lists(A)
        assert site.states() == {A: "found"}

    run(body)


def test_an_order_that_adds_an_engine_drains_nothing(run):
    async def body(site):
        site.lists(A)
        site.keeper.obey(EngineOrders(1, {A: EngineOrder(A, added=True, author="ops")}))
        assert site.states() == {A: "found"}

    run(body)


def test_two_changes_in_a_row_leave_what_the_last_one_says(run):
    async def body(site):
        site.lists(A)
        site.orders(A)
        site.orders()
        assert site.states() == {A: "found"}
        site.lists()
        site.lists(A, B)
        site.lists(B)
        assert site.states() == {A: "draining", B: "found"}

    run(body)


def test_other_labels_are_taken_over(run):
    async def body(site):
        site.lists(A)
        site.keeper.apply([Found(EngineSpec(A, {"gpu": "a100"}), "dns")])
        assert (site.find(A).spec.labels, site.find(A).origin) == ({"gpu": "a100"}, "dns")
        assert len(site.registry.replicas) == 1

    run(body)


def test_a_watch_that_fails_is_the_supervisors_matter(run):
    async def body(site):
        site.lists(A)
        await site.settle()
        site.watches[0].fault = LookupError("unexpected")
        site.watches[0].replica.nudge()
        assert isinstance(await site.supervisor.failed, LookupError)

    run(body)


def test_the_start_waits_for_the_first_looks_but_not_for_long(run):
    async def body(site):
        loop = asyncio.get_running_loop()
        await site.keeper.met(0.01)
        site.lists(A, B)
        begun = loop.time()
        await site.keeper.met(0.05)
        assert 0.04 < loop.time() - begun < 5
        for watch in site.watches:
            watch.greeted.set()
        begun = loop.time()
        await site.keeper.met(60)
        assert loop.time() - begun < 5

    run(body)


CHANGES = st.lists(
    st.tuples(st.sampled_from(["lists", "orders", "empty", "settle"]), st.sets(st.sampled_from([A, B]))), max_size=30
)


@given(CHANGES)
def test_after_any_changes_what_is_listed_and_not_drained_is_used_and_nothing_else(changes):
    async def main():
        site, listed, drained = Site(), set(), set()
        for change, urls in changes:
            if change == "lists":
                listed = urls
                site.lists(*sorted(urls))
            elif change == "orders":
                drained = urls
                site.orders(*urls)
            elif change == "empty":
                for replica in site.registry.replicas:
                    if replica.spec.url in urls and replica.take(Sign.EMPTY):
                        replica.nudge()
            else:
                await site.settle()
            states = site.states()
            assert {url for url, state in states.items() if state == "found"} == listed - drained
            assert listed <= states.keys()
        for replica in site.registry.replicas:
            if replica.take(Sign.EMPTY):
                replica.nudge()
        await site.settle()
        assert site.states().keys() == listed
        assert not site.supervisor.failed.done()
        await site.supervisor.close()

    asyncio.run(main())
