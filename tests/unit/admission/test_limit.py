"""How many requests a replica may have: by policy or by what was learned, less what others have there."""

from __future__ import annotations

import math

import pytest

from gateway.admission.limit import UNLIMITED, places, spare, tries


@pytest.mark.parametrize(
    ("policy", "slots", "share", "others", "room"),
    [
        (None, None, 1.0, 0, UNLIMITED),
        (None, None, 0.1, 50, UNLIMITED),
        (None, 8, 1.0, 0, 8),
        (None, 1, 1.0, 0, 1),
        (None, 256, 1.0, 0, 256),
        (None, 256, 0.5, 0, 128),
        (None, 256, 1.0, 100, 156),
        (None, 8, 1.0, 100, 1),
        (16, None, 1.0, 0, 16),
        (16, 256, 1.0, 0, 16),
        (16, None, 0.5, 3, 5),
        (1, None, 0.01, 9, 1),
    ],
)
def test_the_room_of_a_replica(policy, slots, share, others, room):
    assert places(policy, slots, share, others) == room


@pytest.mark.parametrize(
    ("others", "instances", "room"),
    [(100, 1, 50), (10, 1, 90), (99, 3, 25), (30, 3, 70), (100, 200, 1), (0, 5, 100), (100, 0, 1)],
)
def test_an_equal_part_is_for_each_instance_whatever_the_others_have(others, instances, room):
    assert places(100, None, 1.0, others, instances=instances) == room


def test_what_is_to_be_there_beyond_a_batch_counts_only_where_its_size_was_learned():
    assert (places(None, 8, 1.0, 0, 2), places(16, 8, 1.0, 0, 2), places(None, None, 1.0, 0, 2)) == (10, 16, UNLIMITED)


@pytest.mark.parametrize(
    ("slots", "step", "left", "more"),
    [
        (8, 0.02, 0.6, 0),  # one in seven steps ends: none has to be there
        (64, 0.02, 0.6, 1),
        (256, 0.03, 0.5, 8),
        (256, 0.03, 0.01, 32),  # an eighth at most
        (8, 0.02, 0.0, 1),  # not known
        (64, 0.02, 0.0, 8),
        (1, 0.02, 0.0, 1),
    ],
)
def test_as_many_are_at_hand_as_end_in_a_step(slots, step, left, more):
    assert spare(slots, step, left, trying=False) == more


@pytest.mark.parametrize(("slots", "more"), [(1, 1), (8, 1), (256, 32)])
def test_a_batch_is_tried_with_more(slots, more):
    assert spare(slots, 0.02, 100.0, trying=True) == more


def test_each_replica_is_tried_for_a_second_in_64_and_not_all_at_once():
    assert all(sum(tries(point, now / 4) for now in range(256)) == 4 for point in (1, 2**64 - 1, 12345))
    assert len({point for point in range(64) if tries(point, 1_000.0)}) == 1


@pytest.mark.parametrize("share", [0.0, -1.0, 2.0, math.nan, math.inf, -math.inf])
def test_a_share_that_is_none_takes_nothing(share):
    assert places(16, None, share, 0) == 16


@pytest.mark.parametrize("others", [-5, 10**30])
def test_whatever_others_say_there_is_a_place_and_no_more_than_policy_gives(others):
    assert 1 <= places(16, None, 1.0, others) <= 16


@pytest.mark.parametrize("slots", [-3, 0, 10**30])
def test_whatever_was_learned_there_is_a_place_and_no_more_than_without_a_limit(slots):
    assert 1 <= places(None, slots, 1.0, 0) <= UNLIMITED
