"""The queue and its gate under any order of events: fair, in order, within bounds, and nothing is lost or left over."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from gateway.admission.drain import DrainMeter
from gateway.admission.flows import EARLY, MOST_TOKENS, QUANTUM, Flows, Ticket
from gateway.admission.gate import Claim, Gate
from gateway.admission.holdings import UNBOUNDED, QueueFull, Together, part
from gateway.admission.limit import UNLIMITED, places
from gateway.admission.mix import Mix
from gateway.admission.outcomes import Outcome
from gateway.admission.queue import STARVED_EVERY, FairQueue
from gateway.errors import GatewayError
from gateway.model import Priority
from gateway.policy.admission import Admission, PerClass

STEADY = settings(deadline=None, derandomize=True)
CLASSES = tuple(Priority)
PRIORITIES = st.sampled_from(CLASSES)
TENANTS = st.sampled_from(["a", "b", "c"])
ALIASES = st.sampled_from(["x", "y"])
TOKENS = st.integers(0, 10_000) | st.sampled_from([-1, 0, 1, 10**9, 10**30])
WEIGHTS = st.sampled_from([0.01, 0.5, 1.0, 3.0, 1_000.0])
SHARES = st.sampled_from([PerClass(1, 1, 1), PerClass(1, 0.8, 0.5), PerClass(0.9, 0.4, 0.01)])
STARVES = st.sampled_from([PerClass(0, 0, 0), PerClass(0, 10, 30), PerClass(0, 1, 1), PerClass(0, 5, 0)])
POLICIES = st.builds(
    Admission,
    queue=st.integers(0, 6),
    queue_bytes=st.sampled_from([0, 50, 100, 1 << 30]),
    wait=st.sampled_from([PerClass(30, 60, 300), PerClass(5, 5, 5)]),
    share=SHARES,
    starve=STARVES,
)


def ticket(number: int, tenant: str, tokens: int, weight: float, priority: Priority = Priority.STANDARD, **kwargs):
    given = {"alias": "x", "size": 1, "deadline": 1e9, "entered": 0.0, **kwargs}
    return Ticket(number=number, tenant=tenant, tokens=tokens, weight=weight, priority=priority, **given)


# --- fairness


@STEADY
@given(
    st.lists(
        st.tuples(WEIGHTS, st.lists(st.integers(0, 20_000), min_size=1, max_size=40)),
        min_size=2,
        max_size=5,
    ),
    st.data(),
)
def test_two_that_wait_get_as_much_for_each_unit_of_weight_over_any_time(tenants, data):
    """Within two quanta and the largest request of one, where all begin at once."""
    flows = Flows()
    for index, (weight, costs) in enumerate(tenants):
        for number, cost in enumerate(costs):
            flows.add(ticket(1_000 * index + number, str(index), cost, weight))
    one, other = data.draw(st.permutations(range(len(tenants))))[:2]
    left = [len(costs) for _, costs in tenants]
    served = [0.0 for _ in tenants]
    apart = [0.0]
    while left[one] and left[other]:
        taken = flows.next()
        index = int(taken.tenant)
        left[index] -= 1
        served[index] += taken.tokens / taken.weight
        apart.append(served[one] - served[other])
    largest = [max(1, *costs) / weight for weight, costs in (tenants[one], tenants[other])]
    slack = 1e-6 * (1 + max(map(abs, apart)))
    assert max(map(abs, apart)) <= 2 * QUANTUM + max(largest) + slack
    assert max(apart) - min(apart) <= 2 * QUANTUM + sum(largest) + slack


@STEADY
@given(
    st.dictionaries(st.sampled_from("abcde"), st.tuples(WEIGHTS, st.integers(1, 4_000)), min_size=2),
    st.lists(st.none() | st.tuples(st.sampled_from("abcde"), st.integers(1, 4_000)), min_size=50, max_size=400),
)
def test_whoever_comes_and_goes_two_that_wait_get_as_much_over_any_time_in_which_both_do(tenants, events):
    """Within three quanta and the largest request of each. ``None``: one is served."""
    flows = Flows()
    waiting: Counter[str] = Counter()
    apart: dict[tuple[str, str], list[float]] = {}
    for number, event in enumerate(events):
        if event is not None:
            tenant, cost = event
            weight, most = tenants.get(tenant, (1.0, 4_000))
            flows.add(ticket(number, tenant, min(cost, most), weight))
            waiting[tenant] += 1
        elif waiting.total():
            taken = flows.next()
            for pair, seen in apart.items():
                if taken.tenant in pair:
                    sign = 1 if taken.tenant == pair[0] else -1
                    seen.append(seen[-1] + sign * taken.tokens / taken.weight)
            waiting[taken.tenant] -= 1
        both = [(one, other) for one in "abcde" for other in "abcde" if one < other and waiting[one] and waiting[other]]
        apart = {pair: apart.get(pair, [0.0]) for pair in both}
        for pair, seen in apart.items():
            largest = sum(most / weight for weight, most in (tenants.get(each, (1.0, 4_000)) for each in pair))
            assert max(seen) - min(seen) <= (3 * QUANTUM + largest) * (1 + 1e-9)


@STEADY
@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, QUANTUM)), min_size=1, max_size=60),
    st.integers(1, 5),
)
def test_whoever_keeps_coming_anew_those_that_wait_have_their_turns(arrivals, others):
    """Within so many requests for each tenant that waited at its last turn, where a turn is a request."""
    flows = Flows()
    for number in range(100 * others):
        flows.add(ticket(number, f"old{number % others}", QUANTUM, 1.0))
    left = {f"old{number}": (EARLY + 1) * others for number in range(others)}
    tenants = Counter(dict.fromkeys(left, 100))
    for turn, (many, tokens) in enumerate(arrivals):
        for number in range(many):
            flows.add(ticket(1_000 + 10 * turn + number, f"new{turn}.{number}", tokens, 1.0))
            tenants[f"new{turn}.{number}"] = 1
        taken = flows.next()
        tenants[taken.tenant] -= 1
        left = {tenant: most - 1 for tenant, most in left.items()}
        assert min(left.values()) >= 0
        if taken.tenant in left:
            left[taken.tenant] = (EARLY + 1) * len(+tenants)


@STEADY
@given(st.lists(st.tuples(TENANTS, TOKENS, WEIGHTS), min_size=1, max_size=60))
def test_all_are_served_and_each_tenant_in_order(asked):
    flows = Flows()
    for number, (tenant, tokens, weight) in enumerate(asked):
        flows.add(ticket(number, tenant, tokens, weight, entered=float(number)))
    served = [flows.next() for _ in asked]
    assert sorted(each.number for each in served) == list(range(len(asked)))
    for tenant in "abc":
        numbers = [each.number for each in served if each.tenant == tenant]
        assert numbers == sorted(numbers)
    assert (len(flows), flows.tokens, flows.oldest) == (0, 0, None)


@STEADY
@given(
    st.lists(st.tuples(TENANTS, st.integers(1, 5_000)), max_size=30),
    TENANTS,
    st.integers(1, 5_000),
    st.integers(0, 30),
)
def test_what_is_told_to_be_before_a_newcomer_is(asked, tenant, tokens, taken):
    """No less is, and no more but for what the others overdraw, and those whose turn it is while others are early."""
    flows = Flows()
    for number, (each, cost) in enumerate(asked):
        flows.add(ticket(number, each, cost, 1.0))
    for _ in range(min(taken, len(asked))):
        flows.next()
    held, left = flows.tokens, len(flows)
    mine = ticket(99, tenant, tokens, 1.0)
    told = flows.ahead(mine)
    flows.add(mine)
    before: list[int] = []
    while (one := flows.next()) is not mine:
        before.append(one.tokens)
    assert told.tokens <= sum(before) + 1e-6
    assert sum(before) <= told.tokens + (2 + len(before) / (EARLY + 1) + 1) * 5_000
    assert told.tokens <= held
    assert told.requests <= left + 1e-9


# --- the queue, beside a plain list of what should wait


class Crowded(Mix):
    """The classes above any may need all that is held back for them."""

    def above(self, model: str, priority: Priority) -> float:
        return 1e9


def parts(bound: int) -> tuple[int, int, int]:
    """What each class has of a bound for itself."""
    lower = max(min(math.ceil(bound / 8), (bound - 1) // 2), 0)
    return bound - 2 * lower, lower, lower


class QueueMachine(RuleBasedStateMachine):
    """Whatever comes, goes and changes: the queue is what a list would be, searched from end to end."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = Admission()
        self.together = Together()
        self.queue = FairQueue(lambda: self.policy, self.together)
        self.waiting: list[Ticket] = []  # in order of arrival
        self.gone: list[Ticket] = []
        self.number = 0
        self.now = 1_000.0
        self.since_starved = STARVED_EVERY

    @initialize(policy=POLICIES, whole=st.sampled_from([60, 120, UNBOUNDED]))
    def begin(self, policy, whole):
        self.policy = policy
        self.together.whole = whole

    @rule(policy=POLICIES)
    def change(self, policy):
        self.policy = policy

    @rule(seconds=st.sampled_from([0.1, 4.0, 20.0, -50.0, 1e9]))
    def pass_time(self, seconds):
        self.now += seconds

    @rule(
        tenant=TENANTS,
        tokens=TOKENS,
        weight=WEIGHTS,
        priority=PRIORITIES,
        alias=ALIASES,
        size=st.integers(0, 60) | st.just(10**12),
        earlier=st.just(0.0) | st.floats(0, 50),
    )
    def offer(self, tenant, tokens, weight, priority, alias, size, earlier):
        self._offer(tenant, tokens, weight, priority, alias, size, earlier)

    @rule(tenant=TENANTS, priority=PRIORITIES, alias=ALIASES, size=st.sampled_from([1, 20]), many=st.integers(3, 8))
    def flood(self, tenant, priority, alias, size, many):
        for _ in range(many):
            self._offer(tenant, 100, 1.0, priority, alias, size, 0.0)

    def _offer(self, tenant, tokens, weight, priority, alias, size, earlier):
        self.number += 1
        each = ticket(self.number, tenant, tokens, weight, priority, alias=alias, size=size, entered=self.now - earlier)
        bounds = self._bounds(each)
        ways = list(self._ways_in(each, *bounds))
        within = self._within(each, *bounds)
        before = {rank: self._of_class(alias, rank) for rank in range(3)}
        try:
            evicted = self.queue.offer(each)
        except QueueFull:
            assert None in ways
            assert not within
            return
        assert set(evicted) in ways
        here = [one for one in evicted if one.alias == alias]
        self._check_that_none_is_less_than(each, here)
        for one in here:  # nobody of another class that is within its part
            limits = [parts(bound)[one.priority.rank] for bound in bounds]
            count, size = before[one.priority.rank]
            assert one.priority is each.priority or count > limits[0] or size > limits[1]
        for one in evicted:
            self._forget(one)
        later = next((n for n, one in enumerate(self.waiting) if one.entered > each.entered), len(self.waiting))
        self.waiting.insert(later, each)
        held = [one for one in self.waiting if one.alias == alias]
        assert len(held) <= self.policy.queue
        assert sum(one.size for one in held) <= self.policy.queue_bytes
        assert self.together.size <= self.together.whole

    def _bounds(self, each: Ticket) -> tuple[int, int]:
        """What its alias may hold: as policy says, and of all together what is free, but an equal part at least."""
        aliases = {one.alias for one in [*self.waiting, each]}
        held = sum(one.size for one in self.waiting if one.alias == each.alias)
        free = self.together.whole - sum(one.size for one in self.waiting)
        together = max(self.together.whole // len(aliases), held + free)
        return self.policy.queue, min(self.policy.queue_bytes, together)

    def _of_class(self, alias: str, rank: int) -> tuple[int, int]:
        sizes = [one.size for one in self.waiting if (one.alias, one.priority.rank) == (alias, rank)]
        return len(sizes), sum(sizes)

    def _within(self, each: Ticket, count: int, size: int) -> bool:
        """Whether its class is within its part with it, of what there is too much of."""
        held = [one.size for one in self.waiting if one.alias == each.alias]
        rank = each.priority.rank
        own = self._of_class(each.alias, rank)
        counted = len(held) + 1 <= count or own[0] + 1 <= parts(count)[rank]
        return counted and (sum(held) + each.size <= size or own[1] + each.size <= parts(size)[rank])

    def _ways_in(self, each: Ticket, most: int, most_bytes: int) -> Iterator[set[Ticket] | None]:
        """Who may give way; ``None``: not enough. There are several ways where tenants hold equally much."""
        held = [one for one in self.waiting if one.alias == each.alias]
        over = len(held) + 1 - most, sum(one.size for one in held) + each.size - most_bytes
        if max(over) <= 0:
            yield from self._others_that_leave([one for one in self.waiting if one.alias != each.alias], each, held)
            return
        rank, within = each.priority.rank, self._within(each, most, most_bytes)
        ranks = [lower for lower in (2, 1, 0) if lower > rank or (within and lower < rank)]
        beyond = [
            sum(max(self._of_class(each.alias, lower)[measure] - parts(bound)[lower], 0) for lower in ranks)
            for measure, bound in enumerate((most, most_bytes))
        ]
        own = [one for one in held if one.priority is each.priority]
        for equals in self._equals_that_leave(own, each, over[0] - beyond[0], over[1] - beyond[1]):
            if equals is None:
                yield None
                continue
            left = over[0] - len(equals), over[1] - sum(one.size for one in equals)
            givers = [one for one in held if one.priority.rank in ranks]
            for lower in self._lower_that_leave(givers, *left, (most, most_bytes)):
                gone = equals | lower
                others = [one for one in self.waiting if one.alias != each.alias]
                for far in self._others_that_leave(others, each, [one for one in held if one not in gone]):
                    yield gone | far

    def _others_that_leave(self, others: list[Ticket], each: Ticket, held: list[Ticket]) -> Iterator[set[Ticket]]:
        """Of the other alias, since there are two: all beyond its part that is too much."""
        over = sum(one.size for one in [*others, *held, each]) - self.together.whole
        if over <= 0:
            yield set()
            return
        part_of_all = self.together.whole // 2
        lowest = next(
            rank
            for rank in (2, 1, 0)
            if sum(one.size for one in others if one.priority.rank == rank) > parts(part_of_all)[rank]
        )
        for one, _ in self._newest_of_most([one for one in others if one.priority.rank == lowest], True):
            for more in self._others_that_leave([other for other in others if other is not one], each, held):
                yield {one} | more

    def _equals_that_leave(self, own, each, count, size):
        if count <= 0 and size <= 0:
            yield set()
            return
        if not own:
            yield None
        for one, most in self._newest_of_most(own, size > 0):
            mine = sum(self._measure(other, size > 0) for other in [*own, each] if other.tenant == each.tenant)
            if one.tenant == each.tenant or most - self._measure(one, size > 0) < mine:
                yield None
                continue
            rest = [other for other in own if other is not one]
            for more in self._equals_that_leave(rest, each, count - 1, size - one.size):
                yield None if more is None else {one} | more

    def _lower_that_leave(self, givers, count, size, bounds):
        if count <= 0 and size <= 0:
            yield set()
            return
        by_size = size > 0
        limits = parts(bounds[by_size])
        lowest = next(
            rank
            for rank in (2, 1, 0)
            if sum(self._measure(one, by_size) for one in givers if one.priority.rank == rank) > limits[rank]
        )
        for one, _ in self._newest_of_most([one for one in givers if one.priority.rank == lowest], by_size):
            rest = [other for other in givers if other is not one]
            for more in self._lower_that_leave(rest, count - 1, size - one.size, bounds):
                yield {one} | more

    def _newest_of_most(self, tickets, by_size):
        holdings = Counter()
        for one in tickets:
            holdings[one.tenant] += self._measure(one, by_size)
        most = max(holdings.values(), default=0)
        for tenant in (tenant for tenant, much in holdings.items() if much == most):
            yield [one for one in tickets if one.tenant == tenant][-1], most

    def _measure(self, one: Ticket, by_size: bool) -> int:
        return one.size if by_size else 1

    def _check_that_none_is_less_than(self, each: Ticket, evicted: list[Ticket]) -> None:
        """Of its class, and by what was full: those who gave way hold no less now than the tenant of the newcomer."""
        held = [one for one in self.waiting if (one.alias, one.priority) == (each.alias, each.priority)]
        held = [one for one in held if one not in evicted] + [each]
        for tenant in {one.tenant for one in evicted if one.priority is each.priority}:
            theirs = [one for one in held if one.tenant == tenant]
            mine = [one for one in held if one.tenant == each.tenant]
            by_size = sum(one.size for one in theirs) >= sum(one.size for one in mine)
            assert len(theirs) >= len(mine) or by_size

    def _forget(self, one: Ticket) -> None:
        self.waiting.remove(one)
        self.gone.append(one)

    @rule(allowed=st.integers(0, 3))
    def take(self, allowed):
        """The classes that may fill a place are always the highest so many."""
        taken = self.queue.take(self.now, lambda priority: priority.rank < allowed)
        may = [one for one in self.waiting if one.priority.rank < allowed]
        starved = {one.priority for one in self.waiting if self._starves(one)}
        due = bool(starved) and allowed > 0 and self.since_starved >= STARVED_EVERY - 1
        if taken is None:
            assert not may
            assert not due
            return
        flow = [one for one in self.waiting if (one.tenant, one.priority) == (taken.tenant, taken.priority)]
        assert taken is flow[0]
        if due:
            assert taken.priority in starved
            self.since_starved = 0
        else:
            assert taken.priority is min((one.priority for one in may), key=lambda priority: priority.rank)
            self.since_starved += 1
        self._forget(taken)

    def _starves(self, one: Ticket) -> bool:
        limit = self.policy.starve.of(one.priority)
        return limit > 0 and self.now - one.entered >= limit

    @rule(data=st.data())
    def remove(self, data):
        if self.waiting:
            one = data.draw(st.sampled_from(self.waiting))
            assert self.queue.remove(one)
            self._forget(one)

    @rule(data=st.data())
    def remove_again(self, data):
        if self.gone:
            assert not self.queue.remove(data.draw(st.sampled_from(self.gone)))

    @rule()
    def clear(self):
        assert set(self.queue.clear()) == set(self.waiting)
        self.gone += self.waiting
        self.waiting.clear()

    @rule(tenant=TENANTS, tokens=TOKENS, weight=WEIGHTS, priority=PRIORITIES)
    def look_ahead(self, tenant, tokens, weight, priority):
        told = self.queue.ahead(ticket(0, tenant, tokens, weight, priority))
        before = [one for one in self.waiting if one.priority.rank <= priority.rank]
        assert 0 <= told.requests <= len(before) + 1e-6
        assert 0 <= told.tokens <= sum(one.tokens for one in before) * (1 + 1e-9)

    @invariant()
    def it_counts_what_waits(self):
        assert len(self.queue) == len(self.waiting)
        assert self.queue.size == sum(one.size for one in self.waiting)
        depths = Counter(one.priority for one in self.waiting)
        assert self.queue.depths() == {each: depths[each] for each in CLASSES}
        for alias in ("x", "y"):
            sizes = [one.size for one in self.waiting if one.alias == alias]
            assert self.queue.depth_of(alias) == (len(sizes), sum(sizes))
        assert self.together.size == sum(one.size for one in self.waiting)

    def teardown(self):
        while self.waiting:
            self.take(3)
        assert len(self.queue) == 0


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(STEADY, max_examples=60, stateful_step_count=60)


@STEADY
@given(
    st.lists(st.tuples(PRIORITIES, TENANTS, st.integers(1, 5_000)), min_size=1, max_size=40),
    st.sampled_from(CLASSES),
)
def test_whatever_keeps_coming_above_all_that_starve_are_served(asked, above):
    policy = Admission(starve=PerClass(5, 5, 5))
    queue = FairQueue(lambda: policy)
    for number, (priority, tenant, tokens) in enumerate(asked):
        queue.offer(ticket(number, tenant, tokens, 1.0, priority))
    left = set(range(len(asked)))
    for number in range(10_000, 10_000 + 3 * STARVED_EVERY * (len(asked) + 1)):
        queue.offer(ticket(number, "flood", 100, 1.0, above, entered=100.0 + number))
        taken = queue.take(100.0, lambda _: True)
        left.discard(taken.number)
    below = {n for n in left if asked[n][0].rank > above.rank}
    assert not below


def floods(size: int) -> st.SearchStrategy[list[tuple[Priority, str, str, int]]]:
    """Bodies of no more than so many bytes."""
    return st.lists(st.tuples(PRIORITIES, TENANTS, ALIASES, st.integers(0, size)), min_size=25, max_size=120)


@STEADY
@given(st.integers(0, 10**6))
def test_the_parts_of_a_bound_are_all_of_it_and_what_the_highest_has_is_no_less(bound):
    told = [part(bound, each.rank) for each in CLASSES]
    assert tuple(told) == parts(bound)
    assert sum(told) == bound
    assert told[0] >= told[1] == told[2] >= 0


@STEADY
@given(
    flood=floods(60),
    bound=st.integers(1, 12),
    memory=st.sampled_from([200, 400, UNBOUNDED]),
    victim=st.sampled_from(CLASSES),
    places=st.lists(st.booleans(), min_size=120, max_size=120),
    late=st.integers(0, 24),
)
def test_whatever_floods_a_class_within_its_part_is_let_in_and_stays_until_it_is_served(
    flood, bound, memory, victim, places, late
):
    """The victim has one request at a time, and no other tenant of its class comes."""
    policy = Admission(queue=bound, queue_bytes=300, starve=PerClass(0, 5, 5))
    together = Together(memory)
    queues = {alias: FairQueue(lambda: policy, together) for alias in "xy"}
    waits = None
    for number, ((priority, tenant, alias, size), place) in enumerate(zip(flood, places, strict=False)):
        if waits is None and number >= late:
            waits = ticket(10_000 + number, "victim", 10, 1.0, victim, size=5)
            if part(bound, victim.rank):
                assert waits not in queues["x"].offer(waits)
            else:
                waits = None
        if priority is not victim:
            try:
                evicted = queues[alias].offer(ticket(number, tenant, 100, 1.0, priority, alias=alias, size=size))
            except QueueFull:
                evicted = ()
            assert waits is None or waits not in evicted
        if waits is not None and place and queues["x"].take(10.0, lambda _: True) is waits:
            waits = None
        assert together.size <= memory
        for name, each in queues.items():
            count, held = each.depth_of(name)
            assert count <= bound
            assert held <= 300


@STEADY
@given(
    flood=floods(6),
    bound=st.integers(1, 24),
    memory=st.sampled_from([100, 200, UNBOUNDED]),
)
def test_those_who_come_again_at_once_do_not_drive_out_each_other_for_ever(flood, bound, memory):
    """Nobody is served, and whoever is refused or has to give way asks again: in the end nobody gives way any more.

    Where no body is larger than a part. The room that a larger one leaves may let in others, again and again.
    """
    policy = Admission(queue=bound, queue_bytes=100)
    together = Together(memory)
    queues = {alias: FairQueue(lambda: policy, together) for alias in "xy"}
    outside = [
        ticket(number, tenant, 100, 1.0, priority, alias=alias, size=size)
        for number, (priority, tenant, alias, size) in enumerate(flood)
    ]
    for _ in range(len(flood) + 10):
        refused: list[Ticket] = []
        let_in = 0
        for each in outside:
            try:
                refused += queues[each.alias].offer(each)
            except QueueFull:
                refused.append(each)
            else:
                let_in += 1
        outside = refused
        if not let_in:
            return
    raise AssertionError("they drive out each other")


# --- the gate


class SteppedLoop(asyncio.SelectorEventLoop):
    now = 1_000.0

    def time(self):
        return self.now


class Replica:
    def __init__(self, room: int) -> None:
        self.room = room
        self.in_flight = 0


class Request:
    """One request's life: it waits, enters a lane of the replica with the fewest, and ends when it is told to."""

    def __init__(self, machine: GateMachine, claim: Claim) -> None:
        self.machine = machine
        self.claim = claim
        self.stage = "new"
        self.go = asyncio.Event()
        self.task = machine.loop.create_task(self.live())

    async def live(self) -> None:
        self.stage = "waits"
        try:
            place = await self.machine.gate.turn(self.claim)
        except GatewayError:
            self.stage = "ended"
            return
        except asyncio.CancelledError:
            self.stage = "ended"
            raise
        try:
            self.stage = "woken"
            await self._told_to_go_on()
            replicas = self.machine.replicas
            lane = min(replicas, key=lambda each: each.in_flight - each.room) if replicas else Replica(1)
            lane.in_flight += 1
            try:
                place.done()
                self.stage = "in flight"
                await self._told_to_go_on()
            finally:
                lane.in_flight -= 1
                self.machine.gate.freed("m")
        finally:
            self.stage = "ended"
            place.done()

    async def _told_to_go_on(self) -> None:
        self.go.clear()
        await self.go.wait()


class GateMachine(RuleBasedStateMachine):
    """Requests that come, go on, and are cancelled between any two steps of the loop; a fleet and a policy that change.

    The loop takes steps only where a rule says so, so that what happens at once really does.
    """

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.loop = SteppedLoop()
        self.policy = Admission(queue=5)
        self.replicas = [Replica(2), Replica(1)]
        self.all: list[Request] = []
        self.outcomes: list[Outcome] = []
        self.gate = Gate(self.loop, lambda: self.policy, lambda _: self.replicas, on_outcome=self._told, mix=Crowded())

    def _told(self, priority: Priority, outcome: Outcome, waited: float) -> None:
        assert waited >= 0
        self.outcomes.append(outcome)

    def _spin(self, steps: int) -> None:
        async def so_many() -> None:
            for _ in range(steps):
                await asyncio.sleep(0)

        self.loop.run_until_complete(so_many())

    @rule(
        target=requests,
        priority=PRIORITIES,
        tenant=TENANTS,
        alias=ALIASES,
        tokens=st.integers(1, 5_000),
        size=st.integers(0, 40),
        earlier=st.sampled_from([0.0, 0.0, 3.0, 400.0]),
    )
    def arrive(self, priority, tenant, alias, tokens, size, earlier):
        request = Request(self, Claim("m", alias, tenant, priority, 1.0, tokens, size, self.loop.now - earlier))
        self.all.append(request)
        return request

    @rule(request=requests)
    def go_on(self, request):
        request.go.set()

    @rule(request=consumes(requests))
    def cancel(self, request):
        request.task.cancel()

    @rule(steps=st.integers(1, 4))
    def spin(self, steps):
        self._spin(steps)

    @rule(seconds=st.sampled_from([0.5, 6.0, 40.0, 400.0]))
    def pass_time(self, seconds):
        self.loop.now += seconds

    @rule(rooms=st.lists(st.sampled_from([1, 1, 2, 5, UNLIMITED]), max_size=3))
    def change_the_fleet(self, rooms):
        kept = self.replicas[: len(rooms)]
        self.replicas = kept + [Replica(1) for _ in rooms[len(kept) :]]
        for replica, room in zip(self.replicas, rooms, strict=True):
            replica.room = room
        self.gate.pump()

    @rule(policy=POLICIES)
    def change_the_policy(self, policy):
        self.policy = policy
        self.gate.pump()

    @rule()
    def come_to_rest(self):
        """Nobody waits where a place is free that its class may take."""
        self._spin(8)
        self.gate.pump()
        self._spin(8)
        waiting = Counter({key[1]: depth for key, depth in self.gate.depths().items()})
        stages = Counter(request.stage for request in self.all)
        assert sum(waiting.values()) == stages["waits"]
        room = sum(replica.room for replica in self.replicas)
        taken = stages["woken"] + sum(min(replica.in_flight, replica.room) for replica in self.replicas)
        for priority in CLASSES:
            share = self.policy.share.of(priority)
            most = room if share >= 1 else min(max(math.floor(room - room * (1 - share) + 1e-9), 1), room)
            assert not (waiting[priority] and taken < most)
        assert self.gate.waits("m") is bool(waiting.total() or (stages["woken"] and taken >= self._most_of_all(room)))
        assert set(self.gate.sizes()) <= {"m"}

    def _most_of_all(self, room: int) -> int:
        share = self.policy.share.interactive
        return room if share >= 1 else min(max(math.floor(room - room * (1 - share) + 1e-9), 1), room)

    def teardown(self):
        for request in self.all:
            request.task.cancel()
        self._spin(8)
        assert all(request.task.done() for request in self.all)
        assert len(self.outcomes) <= len(self.all)  # one that was cancelled before it ran has none
        assert not any(self.gate.depths().values())
        assert not self.gate.waits("m")
        assert all(replica.in_flight == 0 for replica in self.replicas)
        self.loop.close()


TestGate = GateMachine.TestCase
TestGate.settings = settings(STEADY, max_examples=80, stateful_step_count=60)


# --- what is told, and the limit


@STEADY
@given(
    st.lists(
        st.tuples(st.sampled_from(["begin", "end", "note", "ask"]), st.floats(-1e9, 1e9), st.floats(-1e9, 1e12)),
        max_size=50,
    ),
    st.floats(0, 1, exclude_max=True),
)
def test_whatever_a_meter_sees_what_it_tells_is_bounded(events, chance):
    meter = DrainMeter()
    for what, now, tokens in events:
        match what:
            case "begin":
                meter.begin(now)
            case "end":
                meter.end(now)
            case "note":
                meter.note(tokens, now)
        wait = meter.wait_for(10, 1_000, now)
        assert wait is None or 0 <= wait < math.inf
        assert 1 <= meter.retry_after(7, now, chance) <= 60


@STEADY
@given(st.none() | st.integers(1, 10**6), st.none() | st.integers(1, 10**5), st.floats(), st.integers(-5, 10**7))
def test_the_room_of_a_replica_is_a_place_at_least_and_falls_with_what_others_have(policy, slots, share, others):
    room = places(policy, slots, share, others)
    assert 1 <= room <= places(policy, slots, 1.0, 0) <= UNLIMITED
    assert places(policy, slots, share, others + 1) <= room


@STEADY
@given(TOKENS)
def test_what_a_ticket_costs_is_always_a_number_of_tokens(tokens):
    assert 1 <= ticket(1, "a", tokens, 1.0).tokens <= MOST_TOKENS
