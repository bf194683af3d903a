"""Two choices: never one that was tried, never the busier of the two, and so no replica far ahead of the others."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.steps.pick import pick

ALMOST_ONE = 1 - 2**-53


@dataclass(eq=False)
class Replica:
    """A candidate."""

    in_flight: int = 0


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
