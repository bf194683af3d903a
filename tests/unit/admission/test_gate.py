"""The gate on a stepped clock: who is let in, what the others are told, and that nothing is left of anybody."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from gateway.admission.gate import Claim, Gate, Place
from gateway.admission.mix import Mix
from gateway.admission.outcomes import Outcome
from gateway.errors import GatewayError
from gateway.model import Priority
from gateway.policy.admission import Admission, PerClass

I, S, B = Priority  # noqa: E741 - the three classes, the highest first
PLAIN = Admission(wait=PerClass(30, 60, 300), share=PerClass(1, 1, 1), starve=PerClass(0, 0, 0))


class SteppedLoop(asyncio.SelectorEventLoop):
    """A loop whose time moves when it is told to."""

    now = 1_000.0

    def time(self):
        return self.now


class Replica:
    def __init__(self, room: int, in_flight: int = 0) -> None:
        self.room = room
        self.in_flight = in_flight


class Crowded(Mix):
    """The classes above any may need all that is held back for them."""

    def above(self, model: str, priority: Priority) -> float:
        return 1e9


class Site:
    """A gate over one replica of model ``m`` that is full, unless told otherwise."""

    def __init__(self, loop: SteppedLoop) -> None:
        self.loop = loop
        self.policy = PLAIN
        self.pools = {"m": [Replica(4, 4)]}
        self.asked = 0
        self.chance = 0.0
        self.outcomes: list[tuple[Priority, Outcome, float]] = []
        self.gate = Gate(
            loop,
            lambda: self.policy,
            self.pool,
            on_outcome=lambda *told: self.outcomes.append(told),
            mix=Crowded(),
            memory=1_000,
            random=lambda: self.chance,
        )

    def pool(self, model: str) -> list[Replica]:
        self.asked += 1
        return self.pools.get(model, [])

    @property
    def replica(self) -> Replica:
        return self.pools["m"][0]

    def free(self, places: int = 1) -> None:
        self.replica.in_flight -= places
        self.gate.freed("m")

    def ask(self, priority: Priority = S, tenant: str = "t", **kwargs) -> asyncio.Task[Place]:
        given = {"model": "m", "alias": "x", "weight": 1.0, "tokens": 100, "size": 10, "entered": self.loop.now}
        return self.loop.create_task(self.gate.turn(Claim(priority=priority, tenant=tenant, **{**given, **kwargs})))

    async def waiting(self, priority: Priority = S, tenant: str = "t", **kwargs) -> asyncio.Task[Place]:
        task = self.ask(priority, tenant, **kwargs)
        await spin()
        assert not task.done()
        return task

    def enter(self, task: asyncio.Task[Place]) -> None:
        """What a task does with its place."""
        self.replica.in_flight += 1
        task.result().done()

    async def pass_time(self, seconds: float) -> None:
        self.loop.now += seconds
        await spin()

    def told(self) -> Counter[str]:
        return Counter(outcome.value for _, outcome, _ in self.outcomes)

    def at_rest(self) -> bool:
        return (
            not any(self.gate.depths().values())
            and not self.gate._sleepers
            and not self.gate.sizes()
            and not self.gate.waits("m")
        )


async def spin(times: int = 5) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


def played(story) -> None:
    async def all_of_it() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SteppedLoop)
        await story(Site(loop))

    with asyncio.Runner(loop_factory=SteppedLoop) as runner:
        runner.run(all_of_it())


def on_a_stepped_clock(story):
    def test():
        played(story)

    test.__name__, test.__doc__ = story.__name__, story.__doc__
    return test


def failure(task: asyncio.Task[Place]) -> tuple[str, int | None]:
    error = task.exception()
    assert isinstance(error, GatewayError), error
    return error.spec.code, error.retry_after


# --- while nothing waits


@on_a_stepped_clock
async def test_where_nothing_waits_nobody_looks_at_the_pool(site: Site):
    assert not site.gate.waits("m")
    site.gate.freed("m")
    site.gate.pump()
    assert site.asked == 0


@on_a_stepped_clock
async def test_who_asks_where_a_place_is_free_gets_it_at_once(site: Site):
    site.replica.in_flight = 3
    place = await site.gate.turn(Claim("m", "x", "t", B, 1.0, 100, 10, 1_000.0))
    assert site.outcomes == [(B, Outcome.DISPATCHED, 0.0)]
    assert site.gate.waits("m")  # it is promised
    site.replica.in_flight = 4
    place.done()
    assert site.at_rest()


@on_a_stepped_clock
async def test_a_place_that_is_kept_is_given_to_nobody_else_meanwhile(site: Site):
    site.replica.in_flight = 3
    place, waiting = await site.ask(), await site.waiting()
    place.kept()
    site.replica.in_flight = 4  # its lane is entered, before anything else runs
    await spin()
    assert not waiting.done()
    place.kept()
    place.done()
    assert not waiting.done()
    site.free()
    await spin()
    site.enter(waiting)
    assert site.at_rest()


@on_a_stepped_clock
async def test_a_promise_is_open_until_it_is_done_with_however_often(site: Site):
    site.replica.in_flight = 2
    first, second = await site.ask(), await site.ask()
    assert site.gate.waits("m")
    third = await site.waiting()
    for _ in range(3):
        first.done()  # it has failed
    await spin()
    assert third.done()
    second.done()
    third.result().done()
    assert site.at_rest()


# --- turns


@on_a_stepped_clock
async def test_a_place_that_becomes_free_wakes_whose_turn_it_is(site: Site):
    bulk, standard = await site.waiting(B), await site.waiting(S)
    site.free()
    await spin()
    assert (standard.done(), bulk.done()) == (True, False)
    site.gate.freed("m")  # the one place is promised
    site.gate.pump()
    await spin()
    assert not bulk.done()
    site.enter(standard)
    await site.pass_time(2)
    site.free()
    await spin()
    site.enter(bulk)
    assert site.outcomes == [(S, Outcome.DISPATCHED, 0.0), (B, Outcome.DISPATCHED, 2.0)]
    assert site.at_rest()


@on_a_stepped_clock
async def test_a_newcomer_cannot_take_what_somebody_was_woken_for(site: Site):
    first = await site.waiting()
    site.free()  # the woken one has not run yet
    assert site.gate.waits("m")
    newcomer = site.ask(I)
    await spin()
    assert (first.done(), newcomer.done()) == (True, False)
    newcomer.cancel()
    await spin()


@on_a_stepped_clock
async def test_as_many_are_woken_as_there_are_places(site: Site):
    tasks = [await site.waiting(tenant=f"t{n}") for n in range(5)]
    site.free(3)
    await spin()
    assert sum(task.done() for task in tasks) == 3
    site.replica.room = 6
    site.gate.pump()
    await spin()
    assert all(task.done() for task in tasks)


@on_a_stepped_clock
async def test_models_do_not_wait_for_each_other(site: Site):
    site.pools["n"] = [Replica(1, 1)]
    here, there = await site.waiting(), await site.waiting(model="n")
    site.pools["n"][0].in_flight = 0
    site.gate.freed("n")
    await spin()
    assert (here.done(), there.done()) == (False, True)
    assert site.gate.depths() == {("m", I): 0, ("m", S): 1, ("m", B): 0, ("n", I): 0, ("n", S): 0, ("n", B): 0}
    assert site.gate.sizes() == {"m": 10, "n": 0}
    here.cancel()
    await spin()


@on_a_stepped_clock
async def test_places_are_held_back_from_a_class_and_found_by_those_above(site: Site):
    site.policy = replace(PLAIN, share=PerClass(1, 1, 0.5))
    site.replica.in_flight = 1
    assert not site.gate.held_back("m", B)
    site.replica.in_flight = 2
    assert site.gate.held_back("m", B)
    assert not site.gate.held_back("m", S)
    bulk = await site.waiting(B)
    assert site.gate.waits("m")
    place = await site.ask(I)
    site.replica.in_flight = 3
    place.done()
    site.free(2)
    await spin()
    assert bulk.done()


@on_a_stepped_clock
async def test_nothing_is_held_back_for_classes_that_do_not_come(site: Site):
    site.policy = replace(PLAIN, share=PerClass(1, 1, 0.5))
    site.gate.mix = Mix()
    site.replica.in_flight = 3
    assert not site.gate.held_back("m", B)
    site.gate.mix.began("m", I)
    site.gate.mix.sample(0.0)
    site.gate.mix.sample(60.0)
    assert site.gate.held_back("m", B)


@on_a_stepped_clock
async def test_from_a_pool_without_a_replica_nothing_is_held_back(site: Site):
    site.policy = replace(PLAIN, share=PerClass(1, 1, 0.5))
    assert not site.gate.held_back("nothing", B)


@on_a_stepped_clock
async def test_one_that_starves_gets_a_held_place_once_others_have_passed(site: Site):
    site.policy = replace(PLAIN, share=PerClass(1, 1, 0.1), starve=PerClass(0, 0, 30))
    site.replica.room, site.replica.in_flight = 20, 10
    bulk = [await site.waiting(B) for _ in range(2)]
    await site.pass_time(30)
    assert not any(task.done() for task in bulk)  # it is told when something moves
    site.gate.pump()
    await spin()
    assert [task.done() for task in bulk] == [True, False]
    for _ in range(3):
        await site.ask(I)
    await spin()
    assert bulk[1].done()


# --- bounds


@on_a_stepped_clock
async def test_who_finds_the_queue_full_is_refused_at_once(site: Site):
    site.policy = replace(PLAIN, queue=1)
    waiting = await site.waiting()
    refused = site.ask()
    await spin()
    assert failure(refused) == ("queue_full", 5)
    higher = await site.waiting(I)
    assert failure(waiting) == ("queue_full", 5)
    assert site.told() == {"full": 1, "evicted": 1}
    higher.cancel()
    await spin()
    assert site.at_rest()


@on_a_stepped_clock
async def test_without_a_queue_a_free_place_is_still_given(site: Site):
    site.policy = replace(PLAIN, queue=0)
    site.replica.in_flight = 3
    (await site.ask()).done()
    site.replica.in_flight = 4
    refused = site.ask()
    await spin()
    assert failure(refused)[0] == "queue_full"
    assert site.at_rest()


@on_a_stepped_clock
async def test_those_who_are_refused_at_once_are_not_told_to_come_back_at_once(site: Site):
    site.policy = replace(PLAIN, queue=0)
    told = []
    for site.chance in (0.0, 0.5, 0.999):
        refused = site.ask()
        await spin()
        told.append(failure(refused))
    assert told == [("queue_full", 5), ("queue_full", 8), ("queue_full", 10)]


@on_a_stepped_clock
async def test_what_waits_of_all_models_is_bounded_and_the_fattest_gives_way(site: Site):
    """All may hold 1 000 bytes together."""
    site.pools["n"] = [Replica(1, 1)]
    fat = [await site.waiting(tenant=f"t{n}", size=200) for n in range(5)]
    lean = await site.waiting(model="n", alias="y", size=300)
    assert [failure(task) for task in fat if task.done()] == [("queue_full", 5)] * 2
    assert site.gate.sizes() == {"m": 600, "n": 300}
    refused = site.ask(model="n", alias="y", size=201)
    await spin()
    assert failure(refused)[0] == "queue_full"
    assert site.told() == {"evicted": 2, "full": 1}
    for task in (*fat, lean):
        task.cancel()
    await spin()
    assert site.at_rest()


@on_a_stepped_clock
async def test_a_model_of_which_all_gave_way_is_left_as_one_that_nobody_waits_for(site: Site):
    site.pools["n"] = [Replica(1, 1)]
    fat = await site.waiting(model="n", alias="y", size=900)
    lean = await site.waiting(size=200)
    assert failure(fat) == ("queue_full", 5)
    assert (site.gate.sizes(), site.gate.waits("n")) == ({"m": 200}, False)
    lean.cancel()
    await spin()
    assert site.at_rest()


# --- what is shown


@on_a_stepped_clock
async def test_a_depth_that_was_shown_once_goes_to_nothing_and_not_away(site: Site):
    assert site.gate.depths() == {}
    task = await site.waiting(B)
    assert site.gate.depths() == {("m", I): 0, ("m", S): 0, ("m", B): 1}
    task.cancel()
    await spin()
    assert site.gate.depths() == {("m", I): 0, ("m", S): 0, ("m", B): 0}


@on_a_stepped_clock
async def test_of_very_many_models_not_all_depths_are_shown(site: Site):
    site.policy = replace(PLAIN, queue=0)
    for number in range(1_100):
        refused = site.ask(model=f"model{number}")
        await spin(3)
        assert refused.exception() is not None
    assert len(site.gate.depths()) == 3 * 1_000
    assert ("model0", I) not in site.gate.depths()


# --- time


@on_a_stepped_clock
async def test_each_class_waits_for_its_time_and_no_longer(site: Site):
    tasks = {each: await site.waiting(each) for each in Priority}
    ended = {}
    for second in range(0, 301, 10):
        for each, task in tasks.items():
            if task.done():
                ended.setdefault(each, second)
        await site.pass_time(10)
    assert ended == {I: 30, S: 60, B: 300}
    assert {failure(task) for task in tasks.values()} == {("queue_timeout", 5)}
    assert [(outcome, waited) for _, outcome, waited in site.outcomes] == [
        (Outcome.EXPIRED, 30.0),
        (Outcome.EXPIRED, 60.0),
        (Outcome.EXPIRED, 300.0),
    ]
    assert site.at_rest()


@on_a_stepped_clock
async def test_one_that_is_tried_again_has_its_place_and_its_deadline_by_its_arrival(site: Site):
    first = await site.waiting()
    again = await site.waiting(entered=960.0)
    site.free()
    await spin()
    assert (first.done(), again.done()) == (False, True)
    last = await site.waiting(entered=941.0)
    await site.pass_time(1)
    assert failure(last)[0] == "queue_timeout"
    first.cancel()
    await spin()


@on_a_stepped_clock
async def test_nobody_gives_way_to_one_whose_time_is_over(site: Site):
    site.policy = replace(PLAIN, queue=1)
    waiting = await site.waiting(B)
    late = site.ask(I, entered=970.0)
    await spin()
    assert (failure(late)[0], waiting.done()) == ("queue_timeout", False)
    assert site.told() == {"expired": 1}
    waiting.cancel()
    await spin()


@on_a_stepped_clock
async def test_a_cost_beyond_all_bounds_is_a_large_one(site: Site):
    waiting = await site.waiting()
    site.free(2)
    for tokens in (10**400, -(10**400)):
        place = site.ask(I, tokens=tokens)
        await spin()
        assert place.done() is (tokens > 0)
    site.gate.close()
    await spin()
    assert waiting.done()


@on_a_stepped_clock
async def test_a_late_one_still_takes_what_is_free(site: Site):
    site.replica.in_flight = 0
    (await site.ask(entered=0.0)).done()
    assert site.told() == {"dispatched": 1}


@on_a_stepped_clock
async def test_who_cannot_be_served_in_time_is_told_at_once_and_when_to_come_back(site: Site):
    waiting = [await site.waiting(B) for _ in range(100)]
    for task in waiting[:40]:  # one a second
        await site.pass_time(1)
        site.free()
        await spin()
        site.enter(task)
    in_time = [await site.waiting(I) for _ in range(28)]
    refused = [site.ask(I) for _ in range(10)]
    await spin()
    hopeless = [task for task in refused if task.done()]
    assert 3 <= len(hopeless) < 10
    assert {failure(task) for task in hopeless} == {("queue_timeout", 40)}
    assert site.told()["hopeless"] == len(hopeless)
    other = await site.waiting(I, tenant="other")  # its turn comes soon
    patient = await site.waiting(B)
    for task in (*waiting, *in_time, *refused, other, patient):
        task.cancel()
    await spin()
    assert site.at_rest()


@on_a_stepped_clock
async def test_a_flood_above_makes_nobody_hopeless_whose_class_will_starve(site: Site):
    site.policy = replace(PLAIN, wait=PerClass(300, 60, 300))
    flood = [await site.waiting(I, tenant=f"t{n}", size=1) for n in range(120)]
    for task in flood[:20]:  # one a second
        await site.pass_time(1)
        site.free()
        await spin()
        site.enter(task)
    refused = site.ask(S, size=1)
    await spin()
    assert failure(refused) == ("queue_timeout", 40)
    site.policy = replace(site.policy, starve=PerClass(0, 10, 30))
    waiting = await site.waiting(S, size=1)
    for task in (*flood, waiting):
        task.cancel()
    await spin()
    assert site.at_rest()


# --- the fleet


@on_a_stepped_clock
async def test_who_waited_without_any_replica_is_told_so(site: Site):
    site.pools = {}
    in_vain = await site.waiting()
    await site.pass_time(60)
    assert failure(in_vain) == ("no_ready_replica", None)
    lucky = await site.waiting()
    site.pools = {"m": [Replica(1)]}
    site.gate.pump()
    await spin()
    assert lucky.done()
    assert site.told() == {"no_replica": 1, "dispatched": 1}


@on_a_stepped_clock
async def test_who_has_waited_too_long_is_told_what_lacks_now(site: Site):
    task = await site.waiting()
    site.pools = {}
    await site.pass_time(60)
    assert failure(task)[0] == "no_ready_replica"
    other = await site.waiting()
    site.pools = {"m": [Replica(1, 1)]}
    await site.pass_time(60)
    assert failure(other)[0] == "queue_timeout"


@on_a_stepped_clock
async def test_who_waits_when_all_stops_is_told(site: Site):
    tasks = [await site.waiting(each) for each in Priority]
    site.free()
    for _ in range(2):
        site.gate.close()
    late = site.ask()
    await spin()
    assert [failure(task) for task in (*tasks[1:], late)] == [("draining", 5)] * 3
    tasks[0].result().done()  # it was woken before
    site.gate.freed("m")
    site.gate.pump()
    assert site.at_rest()


# --- cancellation


@on_a_stepped_clock
async def test_who_leaves_while_it_waits_leaves_nothing(site: Site):
    task = await site.waiting()
    await site.pass_time(3)
    task.cancel()
    await spin()
    assert task.cancelled()
    assert site.outcomes == [(S, Outcome.GONE, 3.0)]
    assert site.at_rest()
    await site.pass_time(1_000)
    assert site.told() == {"gone": 1}


@on_a_stepped_clock
async def test_of_many_who_come_and_leave_while_one_waits_nothing_is_kept(site: Site):
    first = await site.waiting()
    for _ in range(20):
        other = await site.waiting()
        other.cancel()
        await spin()
    assert len(site.gate._sleepers) == site.gate.depths()["m", S] == 1
    first.cancel()
    await spin()


@on_a_stepped_clock
async def test_who_leaves_after_it_was_woken_passes_its_place_on(site: Site):
    first, second = await site.waiting(), await site.waiting()
    site.free()
    first.cancel()
    await spin()
    assert (first.cancelled(), second.done()) == (True, True)
    assert site.told() == {"gone": 1, "dispatched": 1}


@on_a_stepped_clock
async def test_a_place_does_not_go_to_one_who_is_about_to_leave(site: Site):
    first, second = await site.waiting(), await site.waiting()
    first.cancel()  # it has not run yet, so that it still stands in the queue
    site.free()
    await spin()
    assert (first.cancelled(), second.done()) == (True, True)
    site.enter(second)
    assert site.at_rest()


@pytest.mark.parametrize("what", ["evicted", "expired", "closed"])
def test_who_leaves_at_the_moment_of_something_else_is_gone(what):
    @played
    async def story(site: Site):
        site.policy = replace(PLAIN, queue=1)
        for cancel_first in (True, False):
            task = await site.waiting(B)
            if cancel_first:
                task.cancel()
            if what == "closed":
                site.gate.close()
                site.gate = Gate(site.loop, lambda: site.policy, site.pool, on_outcome=site.gate._on_outcome)
            elif what == "evicted":
                higher = site.ask(I)
                site.loop.call_soon(higher.cancel)
            else:
                site.loop.now += 300
            if not cancel_first:
                task.cancel()
            await spin()
            assert task.cancelled()
            assert site.at_rest()


def test_a_pool_that_cannot_be_read_leaves_nothing_behind():
    @played
    async def story(site: Site):
        task = await site.waiting()
        site.pools = None  # type: ignore[assignment]
        broken = site.ask()
        await spin()
        assert isinstance(broken.exception(), AttributeError)
        site.pools = {"m": [Replica(1)]}
        site.gate.pump()
        await spin()
        assert task.done()
        task.result().done()
        assert site.at_rest()
