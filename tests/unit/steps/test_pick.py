"""Two choices: never one that was tried, never the busier of the two, and so no replica far ahead of the others."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.balance.strategies import Ask, by_two_choices
from gateway.steps.pick import fewest
from gateway.steps.pick import pick as pick_by

ALMOST_ONE = 1 - 2**-53


@dataclass(eq=False)
class Replica:
    """A candidate."""

    in_flight: int = 0
    room: int = 1 << 30
    share: float = 1.0


def pick(candidates, tried, dice):
    """The step with the strategy that is the default."""
    return pick_by(candidates, tried, lambda left: by_two_choices(left, Ask(0.0, 0.0), dice))


LOADS = st.lists(st.integers(0, 50), max_size=8)
SEEDS = st.integers(0, 2**32)
EDGES = st.sampled_from([0.0, 0.5, ALMOST_ONE])


@given(LOADS, st.sets(st.integers(0, 7)), SEEDS)
def test_never_one_that_was_tried_and_none_only_when_all_were(loads, tried, seed):
    replicas = [Replica(load) for load in loads]
    gone = [replica for number, replica in enumerate(replicas) if number in tried]
    picked = pick(replicas, gone, random.Random(seed).random)
    assert picked is None or picked in replicas
    assert picked not in gone
    assert (picked is None) is (len(gone) == len(replicas))


@given(LOADS.filter(lambda loads: len(loads) > 1), EDGES, EDGES)
def test_the_two_are_different_and_dice_at_their_ends_stay_in_range(loads, first, second):
    replicas = [Replica(load) for load in loads]
    dice = iter([first, second])
    picked = pick(replicas, [], lambda: next(dice))
    assert picked in replicas
    assert picked.in_flight < max(loads) or loads.count(max(loads)) > 1


@given(st.lists(st.integers(0, 50), min_size=2, max_size=8, unique=True), SEEDS)
def test_the_busiest_of_all_is_never_picked(loads, seed):
    replicas = [Replica(load) for load in loads]
    dice = random.Random(seed)
    for _ in range(20):
        picked = pick(replicas, [], dice.random)
        assert picked is not None
        assert picked.in_flight != max(loads)


@given(st.integers(0, 50), st.integers(0, 50), SEEDS)
def test_of_two_the_less_loaded_one(one, other, seed):
    picked = pick([Replica(one), Replica(other)], [], random.Random(seed).random)
    assert picked is not None
    assert picked.in_flight == min(one, other)


def test_one_that_is_left_takes_no_dice():
    def dice() -> float:
        raise AssertionError("one candidate needs no dice")

    replicas = [Replica(9), Replica(0)]
    assert pick(replicas, [replicas[1]], dice) is replicas[0]
    assert pick(replicas[:1], [], dice) is replicas[0]
    assert pick([], [], dice) is None


@pytest.mark.parametrize("count", [2, 3, 8])
def test_equal_replicas_get_equal_shares(count):
    """Five standard deviations of a fair choice; nothing in flight at any time."""
    replicas, dice, rounds = [Replica() for _ in range(count)], random.Random(5), 12_000
    seen = [pick(replicas, [], dice.random) for _ in range(rounds)]
    share = rounds / count
    deviation = (share * (1 - 1 / count)) ** 0.5
    for replica in replicas:
        assert abs(seen.count(replica) - share) <= 5 * deviation


@given(SEEDS)
def test_requests_that_stay_pile_up_evenly(seed):
    """Power of two choices: with 3 replicas and 300 requests the gap stays small, where one random choice makes it 20.

    The bound is the theory's log log n with room for every seed.
    """
    replicas, dice = [Replica() for _ in range(3)], random.Random(seed)
    for _ in range(300):
        picked = pick(replicas, [], dice.random)
        assert picked is not None
        picked.in_flight += 1
        loads = [replica.in_flight for replica in replicas]
        assert max(loads) - min(loads) <= 10
    assert sum(replica.in_flight for replica in replicas) == 300


def test_a_replica_that_is_slow_gets_less():
    """Each round one request comes; two replicas end one each round, the third one in ten."""
    replicas, dice, got = [Replica() for _ in range(3)], random.Random(6), [0, 0, 0]
    for turn in range(3_000):
        picked = pick(replicas, [], dice.random)
        assert picked is not None
        picked.in_flight += 1
        got[replicas.index(picked)] += 1
        for number, replica in enumerate(replicas):
            if replica.in_flight and (number < 2 or turn % 10 == 0):
                replica.in_flight -= 1
    assert got[2] < 0.5 * min(got[:2])


# --- room and share


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1, 2, 1 << 30])), max_size=8),
    st.sets(st.integers(0, 7)),
    SEEDS,
)
def test_never_one_without_room_and_none_only_when_none_has_any(loads, tried, seed):
    replicas = [Replica(load, room) for load, room in loads]
    gone = [replica for number, replica in enumerate(replicas) if number in tried]
    open_ones = [each for each in replicas if each not in gone and each.in_flight < each.room]
    picked = pick(replicas, gone, random.Random(seed).random)
    assert (picked in open_ones) if open_ones else (picked is None)


def test_on_probation_it_gets_one_at_a_time():
    proving, full, dice = Replica(room=1), Replica(), random.Random(1)
    for _ in range(100):
        picked = pick([proving, full], [], dice.random)
        assert picked is not None
        picked.in_flight += 1
        assert proving.in_flight <= 1
    assert (proving.in_flight, full.in_flight) == (1, 99)
    assert pick([proving], [], dice.random) is None


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_in_slow_start_it_gets_its_share_of_what_others_get(share):
    """While requests stay, the loads stand as the shares do, to one request of the smaller one."""
    new, old, dice = Replica(share=share), Replica(), random.Random(3)
    for _ in range(200):
        picked = pick([new, old], [], dice.random)
        assert picked is not None
        picked.in_flight += 1
        assert abs(new.in_flight + 1 - share * (old.in_flight + 1)) <= 1.0 + share


def test_a_small_share_is_no_bar_where_nobody_else_has_room():
    new, full = Replica(share=0.1), Replica(1, room=1)
    for seed in range(20):
        assert pick([new, full], [], random.Random(seed).random) is new


# --- what may exceed a limit


@dataclass(eq=False)
class Loaded:
    """A replica as far as its load goes."""

    in_flight: int
    proven: bool = True


@given(st.lists(st.builds(Loaded, st.integers(0, 9), st.booleans()), max_size=8))
def test_the_least_busy_of_those_that_have_proved_well(replicas):
    chosen, proven = fewest(replicas), [each for each in replicas if each.proven]
    assert (chosen is None) == (not proven)
    if chosen is not None:
        assert chosen.proven
        assert chosen.in_flight == min(each.in_flight for each in proven)
