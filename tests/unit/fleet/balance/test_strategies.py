"""Each strategy by what it promises, and all by what every one does; at the end a simulated fleet."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.balance.estimate import Load, Quote, estimate
from gateway.fleet.balance.pace import Pace, Prior, usual
from gateway.fleet.balance.strategies import BOUND, STRATEGIES, Ask, is_later, nearly, point_of
from loadtests.engine.scheduler import Job, Scheduler
from loadtests.engine.spec import EngineSpec

UNLIMITED = 1 << 30
ALMOST_ONE = 1 - 2**-53


@dataclass(eq=False)
class Replica:
    """A candidate whose load is said outright."""

    id: str
    in_flight: int = 0
    unanswered: float = 0.0
    room: int = UNLIMITED
    share: float = 1.0
    turn: int = 0
    pace: Pace = field(default_factory=lambda: Pace(Prior()))
    quote: Quote = field(default_factory=Quote)
    asked: int = 0
    used: float = 0.0
    returning: float = 0.0
    spare: float = 0.0
    wanted: float = 0.0

    def __post_init__(self):
        self.point = point_of(self.id)

    def load(self, now):
        self.asked += 1
        load = Load(in_flight=self.in_flight, unanswered=self.unanswered, share=self.share)
        load = load._replace(returning=self.returning, spare=self.spare, wanted=self.wanted)
        return load._replace(used=self.used, room=10_000.0, mean_left=1.0)


def fleet(size, **fields):
    return [Replica(f"10.0.0.{number}:8000", **fields) for number in range(size)]


def ask(tokens=1000.0, **fields):
    return Ask(tokens=tokens, **{"now": 50.0, **fields})


def dice(seed=1):
    return random.Random(seed).random


def no_dice():
    raise AssertionError("nothing to be decided by dice")


def choices(name, replicas, request, rounds=400, seed=1):
    """How often each is chosen while nothing changes."""
    throw = dice(seed)
    return Counter(STRATEGIES[name](replicas, request, throw).id for _ in range(rounds))


estimate_strategy = STRATEGIES["estimate"]

every = pytest.mark.parametrize("name", sorted(STRATEGIES))


def test_the_names_are_those_of_policy():
    assert set(STRATEGIES) == {"estimate", "least-in-flight", "power-of-two", "round-robin", "session"}


# --- what all do


@every
@pytest.mark.parametrize("request_", [ask(), ask(session=7), ask(anchor=7), ask(size=400, held={"10.0.0.1:8000": 9})])
@pytest.mark.parametrize("throw", [0.0, 0.5, ALMOST_ONE])
def test_one_that_has_room_or_none(name, request_, throw):
    replicas = fleet(5)
    assert STRATEGIES[name]([], request_, lambda: throw) is None
    for number, replica in enumerate(replicas):
        replica.in_flight, replica.room = 3, 3 if number != 3 else 4
    assert STRATEGIES[name](replicas, request_, lambda: throw) is replicas[3]
    replicas[3].room = 3
    assert STRATEGIES[name](replicas, request_, lambda: throw) is None
    assert STRATEGIES[name](replicas[:1], request_, lambda: throw) is None


@every
def test_one_alone_takes_no_dice(name):
    replicas = fleet(1)
    random_ = no_dice if name == "power-of-two" else dice()
    assert STRATEGIES[name](replicas, ask(), random_) is replicas[0]


@every
def test_a_strategy_that_is_tried_leaves_no_trace(name):
    replicas = fleet(4, in_flight=2, turn=3)
    for replica in replicas:
        replica.quote.renew(replica.load(50.0), replica.pace, 50.0)
    before = [(r.in_flight, r.turn, r.room, r.share, r.quote.base, r.quote.clear) for r in replicas]
    for _ in range(5):
        STRATEGIES[name](replicas, ask(session=3), dice())
    assert [(r.in_flight, r.turn, r.room, r.share, r.quote.base, r.quote.clear) for r in replicas] == before


# --- estimate


def test_the_soonest_is_chosen():
    replicas = fleet(4)
    for replica, unanswered in zip(replicas, (5000, 3000, 1000, 4000), strict=True):
        replica.unanswered = unanswered
    assert estimate_strategy(replicas, ask(), no_dice) is replicas[2]


def test_a_faster_replica_is_chosen_though_more_waits_there():
    replicas = fleet(2)
    replicas[0].unanswered, replicas[1].unanswered = 3000, 1000
    replicas[0].pace = Pace(Prior(prefill=40_000))
    assert estimate_strategy(replicas, ask(), no_dice) is replicas[0]


def test_affinity_yields_to_load():
    replicas = fleet(3)
    held = {replicas[1].id: 3000}
    request = ask(tokens=1000, size=4000, held=held)
    assert estimate_strategy(replicas, request, no_dice) is replicas[1]
    replicas[1].unanswered = 700
    replicas[1].quote.void()
    assert choices("estimate", replicas, request).keys() == {replicas[1].id}
    replicas[1].unanswered = 1500
    replicas[1].quote.void()
    assert replicas[1].id not in choices("estimate", replicas, request)


def test_a_full_cache_turns_away_who_has_much_to_put_into_it_and_not_who_finds_it_there():
    replicas = fleet(2)
    full, free = replicas
    full.used = 10_000.0
    free.unanswered = 1_500.0
    assert estimate_strategy(replicas, ask(4_000, size=4_000), no_dice) is free
    assert estimate_strategy(replicas, ask(4_000, size=4_000, held={full.id: 3_950}), no_dice) is full


@given(
    returning=st.lists(st.floats(0, 50), min_size=2, max_size=6),
    tokens=st.floats(1, 8000),
    turned=st.randoms(use_true_random=False),
)
def test_of_equal_ones_the_one_where_the_fewest_come_for_what_is_there_whatever_their_order(returning, tokens, turned):
    replicas = fleet(len(returning))
    for replica, each in zip(replicas, returning, strict=True):
        replica.returning = each
    first = estimate_strategy(replicas, ask(tokens, anchor=7), no_dice)
    seconds = {replica.id: replica.quote.seconds(tokens, 50.0) for replica in replicas}
    assert seconds[first.id] <= nearly(min(seconds.values()))
    assert first.returning == min(returning) or not is_later(
        seconds[first.id], seconds[min(replicas, key=lambda replica: replica.returning).id]
    )
    turned.shuffle(replicas)
    assert estimate_strategy(replicas, ask(tokens, anchor=7), no_dice) is first


def test_a_conversation_begins_where_no_others_go_on_though_less_of_it_is_held_there():
    replicas = fleet(2)
    request = ask(tokens=2000, size=8000, held={replicas[0].id: 800})
    assert estimate_strategy(replicas, request, no_dice) is replicas[0]
    replicas[0].returning = 5.0
    replicas[0].quote.void()
    assert estimate_strategy(replicas, request, no_dice) is replicas[1]
    request = ask(tokens=2000, size=8000, held={replicas[0].id: 7000})
    assert estimate_strategy(replicas, request, no_dice) is replicas[0]


def test_of_equal_ones_the_one_whose_cache_would_drop_what_is_missed_least():
    replicas = fleet(3)
    for replica, wanted in zip(replicas, (0.9, 0.1, 0.5), strict=True):
        replica.wanted = wanted
    assert estimate_strategy(replicas, ask(2000), no_dice) is replicas[1]
    replicas[2].spare = 2000.0
    replicas[2].quote.void()
    assert estimate_strategy(replicas, ask(2000), no_dice) is replicas[2]
    request = ask(2000, size=8000, held={replicas[0].id: 8000})
    assert estimate_strategy(replicas, request, no_dice) is replicas[0]


def test_a_slow_start_gets_less():
    replicas = fleet(2)
    replicas[0].share = 0.2
    replicas[1].unanswered = 200
    assert estimate_strategy(replicas, ask(), no_dice) is replicas[1]
    replicas[1].unanswered = 9000
    replicas[1].quote.void()
    assert estimate_strategy(replicas, ask(), no_dice) is replicas[0]


def test_of_nearly_equal_ones_the_one_with_the_fewest_requests():
    replicas = fleet(3, unanswered=10_000)
    replicas[0].in_flight, replicas[1].in_flight, replicas[2].in_flight = 3, 1, 2
    replicas[1].unanswered = 10_200
    assert choices("estimate", replicas, ask()).keys() == {replicas[1].id}
    replicas[1].unanswered = 12_000
    replicas[1].quote.void()
    assert replicas[1].id not in choices("estimate", replicas, ask())


def test_equal_ones_share_evenly():
    found = choices("estimate", fleet(5), ask(), rounds=2000)
    assert len(found) == 5
    assert min(found.values()) > 300


def test_of_many_equal_ones_each_has_its_turn():
    assert len(choices("estimate", fleet(100), ask(), rounds=2000)) == 100


def test_many_equal_ones_without_room_do_not_hide_the_one_that_has():
    replicas = fleet(100, in_flight=1, room=1)
    replicas[70].room = 2
    for seed in range(20):
        assert estimate_strategy(replicas, ask(), dice(seed)) is replicas[70]


def test_of_nearly_equal_ones_the_one_that_has_the_least_to_compute():
    replicas = fleet(3, unanswered=100_000)
    replicas[2].unanswered = 100_500
    replicas[2].in_flight = 5
    request = ask(tokens=1000, size=4000, held={replicas[2].id: 2000})
    assert choices("estimate", replicas, request).keys() == {replicas[2].id}


@pytest.mark.parametrize("held", [-50, 0, 4000, 10**9])
def test_uncached_tokens_are_bounded(held):
    request = ask(tokens=1000, size=4000, held={"a": held})
    assert request.uncached("a") == (1000 if held <= 0 else 0)
    assert request.uncached("b") == 1000


def test_uncached_tokens_are_as_many_as_the_bytes():
    assert ask(tokens=1000, size=4000, held={"a": 1000}).uncached("a") == 750
    assert ask(tokens=1000, size=0, held={"a": 1000}).uncached("a") == 1000


def test_instances_agree_by_the_anchor_whatever_their_dice():
    replicas = fleet(8)
    chosen = {anchor: choices("estimate", replicas, ask(anchor=anchor), rounds=5) for anchor in range(1000)}
    assert all(len(found) == 1 for found in chosen.values())
    shares = Counter(found.most_common(1)[0][0] for found in chosen.values())
    assert len(shares) == 8
    assert max(shares.values()) < 2 * min(shares.values())


def test_the_load_is_asked_for_once_until_something_happens():
    replicas = fleet(3)
    for _ in range(5):
        estimate_strategy(replicas, ask(), dice())
    assert [replica.asked for replica in replicas] == [1, 1, 1]
    replicas[1].quote.void()
    estimate_strategy(replicas, ask(), dice())
    assert [replica.asked for replica in replicas] == [1, 2, 1]
    estimate_strategy(replicas, ask(now=60.0), dice())
    estimate_strategy(replicas, ask(now=10.0), dice())
    assert [replica.asked for replica in replicas] == [3, 4, 3]


# --- least in flight, two choices


def test_the_fewest_in_flight():
    replicas = fleet(3)
    replicas[0].in_flight, replicas[1].in_flight, replicas[2].in_flight = 4, 2, 3
    assert choices("least-in-flight", replicas, ask()).keys() == {replicas[1].id}
    replicas[1].share = 0.5
    assert choices("least-in-flight", replicas, ask()).keys() == {replicas[2].id}


def test_of_two_choices_never_the_busiest():
    replicas = fleet(4)
    for number, replica in enumerate(replicas):
        replica.in_flight = number
    found = choices("power-of-two", replicas, ask())
    assert replicas[3].id not in found
    assert found[replicas[0].id] > found[replicas[1].id] > found[replicas[2].id] > 0


# --- round robin


def rounds(replicas, number):
    throw, chosen = dice(), []
    for turn in range(1, number + 1):
        replica = STRATEGIES["round-robin"](replicas, ask(), throw)
        replica.turn = turn
        chosen.append(replicas.index(replica))
    return chosen


def test_each_in_its_turn():
    assert rounds(fleet(3), 7) == [0, 1, 2, 0, 1, 2, 0]


def test_a_new_one_joins_the_round():
    replicas = fleet(3)
    rounds(replicas, 5)
    replicas.append(Replica("new"))
    chosen = [STRATEGIES["round-robin"](replicas, ask(), dice()).id]
    assert chosen == ["new"]


def test_one_that_is_to_get_less_is_passed_over():
    replicas = fleet(4)
    replicas[1].share = 0.25
    found = Counter(rounds(replicas, 4000))
    assert found[1] == pytest.approx(4000 * 0.25 / 3.25, rel=0.2)
    others = [found[0], found[2], found[3]]
    assert max(others) - min(others) <= 60


# --- session


SESSIONS = [point_of(f"session {number}") for number in range(2000)]


def placed(replicas, sessions=SESSIONS):
    return {session: STRATEGIES["session"](replicas, ask(session=session), no_dice).id for session in sessions}


def test_a_session_stays_where_it_is_and_all_are_spread():
    replicas = fleet(8)
    found = placed(replicas)
    assert found == placed(list(reversed(replicas)))
    shares = Counter(found.values())
    assert len(shares) == 8
    assert max(shares.values()) < 1.35 * len(SESSIONS) / 8


def test_only_the_sessions_of_one_that_goes_move():
    replicas = fleet(8)
    before, after = placed(replicas), placed(replicas[:5] + replicas[6:])
    moved = {session for session in SESSIONS if before[session] != after[session]}
    assert moved == {session for session in SESSIONS if before[session] == replicas[5].id}
    assert max(Counter(after[session] for session in moved).values()) < len(moved) / 2


def test_a_session_spills_over_its_bound_and_comes_back():
    replicas = fleet(4, in_flight=10)
    first = STRATEGIES["session"](replicas, ask(session=5), no_dice)
    first.in_flight = 40
    second = STRATEGIES["session"](replicas, ask(session=5), no_dice)
    assert second is not first
    first.in_flight = 10
    assert STRATEGIES["session"](replicas, ask(session=5), no_dice) is first


def test_one_hot_session_loads_none_beyond_the_bound():
    replicas = fleet(5)
    for total in range(1, 500):
        STRATEGIES["session"](replicas, ask(session=5), no_dice).in_flight += 1
        assert max(replica.in_flight for replica in replicas) <= math.ceil(BOUND * total / 5)


def test_the_bound_of_one_that_is_to_get_less_is_lower():
    replicas = fleet(5)
    replicas[2].share = 0.1
    for _ in range(500):
        STRATEGIES["session"](replicas, ask(session=5), no_dice).in_flight += 1
    assert replicas[2].in_flight <= math.ceil(BOUND * 501 * 0.1 / 4.1)


def test_without_a_session_the_anchor_and_without_both_the_fewest():
    replicas = fleet(3)
    assert STRATEGIES["session"](replicas, ask(anchor=5), no_dice) is STRATEGIES["session"](
        replicas, ask(session=5), no_dice
    )
    replicas[0].in_flight = replicas[2].in_flight = 1
    assert choices("session", replicas, ask()).keys() == {replicas[1].id}


def test_points_are_the_same_in_all_instances():
    assert point_of("10.0.0.1:8000") == 12906351866524944655
    assert point_of("\ud800") % 2 == 1


# --- a simulated fleet


class Fleet:
    """Engines under open-loop load with a heavy tail; first tokens and scrapes teach, nothing is configured."""

    def __init__(self, specs, name, seed):
        self.replicas = fleet(len(specs))
        self.engines = {replica.id: Scheduler(spec) for replica, spec in zip(self.replicas, specs, strict=True)}
        self.strategy, self.random = STRATEGIES[name], random.Random(seed)
        self.events, self.order = [], count()
        self.waits = []
        self.sent = {}

    def run(self, seconds, rate):
        now = 0.0
        while now < seconds:
            now += self.random.expovariate(rate)
            prompt = int(min(7000, max(20, self.random.lognormvariate(6, 1.3))))
            output = int(min(400, max(5, self.random.lognormvariate(4, 0.9))))
            self._at(now, lambda at, job: self._arrive(job, at), Job(prompt, output))
        while self.events:
            at, _, act, subject = heapq.heappop(self.events)
            act(at, subject)
        return sorted(self.waits)

    def _at(self, when, act, subject):
        heapq.heappush(self.events, (when, next(self.order), act, subject))

    def _arrive(self, job, now):
        replica = self.strategy(self.replicas, Ask(tokens=float(job.prompt_tokens), now=now), self.random.random)
        ahead = estimate(replica.load(now), 0.0, replica.pace).queue * replica.pace.prefill
        self.sent[id(job)] = (replica, ahead)
        replica.in_flight += 1
        replica.unanswered += job.prompt_tokens
        replica.quote.void()
        engine = self.engines[replica.id]
        idle = engine.idle
        engine.submit(job, now)
        if idle:
            self._step(now, replica)

    def _step(self, now, replica):
        engine = self.engines[replica.id]
        step = engine.begin(now)
        if step is not None:
            self._at(now + step.seconds, lambda at, done: self._stepped(at, replica, done), step)

    def _stepped(self, now, replica, step):
        for token in self.engines[replica.id].finish(step, now):
            if token.index == 0:
                self._answered(now, replica, token.job)
            if token.last:
                replica.in_flight -= 1
                replica.quote.void()
        self._step(now, replica)

    def _answered(self, now, replica, job):
        _, ahead = self.sent.pop(id(job))
        replica.unanswered -= job.prompt_tokens
        replica.quote.void()
        wait = now - job.arrived
        self.waits.append(wait)
        replica.pace.note_first_token(uncached=job.prompt_tokens, ahead=ahead, seconds=wait, now=now)
        replica.pace.suppose(usual([other.pace for other in self.replicas], Prior()))


def spec(factor=1.0):
    return EngineSpec(
        prefill_tokens_per_second=8000 / factor,
        step_time=0.012 * factor,
        step_time_per_sequence=0.0002 * factor,
        max_num_batched_tokens=2048,
        max_num_seqs=64,
        kv_blocks=8192,
    )


@pytest.mark.parametrize("factors", [(1, 1, 1, 1), (1, 1, 1, 2)])
def test_in_a_simulated_fleet_the_estimate_answers_soonest(factors):
    waits = {name: Fleet([spec(f) for f in factors], name, 8).run(25, 16) for name in STRATEGIES if name != "session"}
    tails = {name: found[int(0.9 * len(found))] for name, found in waits.items()}
    assert tails.pop("estimate") < 0.9 * min(tails.values())
