"""What is left of the places of a pool, for each class."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gateway.admission.limit import UNLIMITED
from gateway.admission.vacancy import vacancy
from gateway.model import Priority
from gateway.policy.admission import PerClass

SHARE = PerClass(1.0, 0.9, 0.5)


def pool(*replicas):
    return [SimpleNamespace(in_flight=in_flight, room=room) for in_flight, room in replicas]


def many(_: Priority) -> float:
    """The classes above may need all that is held back for them."""
    return 1e9


def who_may(replicas, promised=0, share=SHARE, above=many):
    left = vacancy(replicas, promised, share, above)
    return [priority.value for priority in Priority if left.may(priority)]


@pytest.mark.parametrize(
    ("taken", "classes"),
    [(0, 3), (9, 3), (10, 2), (17, 2), (18, 1), (19, 1), (20, 0), (25, 0)],
)
def test_a_class_may_fill_its_share_of_all_places(taken, classes):
    expected = ["interactive", "standard", "bulk"][:classes]
    assert who_may(pool((taken, 20))) == expected
    assert who_may(pool((0, 20)), promised=taken) == expected
    assert who_may(pool((0, 10), (0, 10)), promised=taken) == expected


def test_one_place_of_all_is_for_every_class():
    assert who_may(pool((0, 1))) == ["interactive", "standard", "bulk"]
    assert who_may(pool((1, 1))) == []


def test_without_a_replica_there_is_no_place():
    left = vacancy([], 0, SHARE, many)
    assert (left.ready, who_may([])) == (False, [])
    assert vacancy(pool((5, 1)), 0, SHARE, many).ready


def test_one_that_has_more_than_its_room_takes_no_places_of_others():
    assert who_may(pool((30, 2), (0, 2)), share=PerClass(1, 1, 1)) == ["interactive", "standard", "bulk"]
    assert who_may(pool((30, 2), (2, 2)), share=PerClass(1, 1, 1)) == []


def test_without_a_limit_there_is_always_a_place():
    assert who_may(pool(*[(10_000, UNLIMITED)] * 256), promised=10**6) == ["interactive", "standard", "bulk"]


def test_what_is_filled_is_taken():
    left = vacancy(pool((0, 2)), 0, SHARE, many)
    seen = []
    for _ in range(3):
        seen.append([priority.value for priority in Priority if left.may(priority)])
        left.fill()
    assert seen == [["interactive", "standard", "bulk"], ["interactive"], []]


@pytest.mark.parametrize(("usual", "most"), [(0.0, 20), (0.04, 20), (1.0, 16), (4.0, 14), (1e9, 10)])
def test_no_more_is_held_back_than_those_above_may_need(usual, most):
    """2.5 times the square root of what they have, and one; the share says how much at most."""
    bulk = [taken for taken in range(21) if "bulk" in who_may(pool((taken, 20)), above=lambda _: usual)]
    assert bulk == list(range(most))
