"""Which of hundreds are weighed: the same in all instances, and never all but the one that is free."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from gateway.fleet.balance.estimate import Load, Quote
from gateway.fleet.balance.pace import Prior
from gateway.fleet.balance.shortlist import Shortlist
from gateway.fleet.balance.strategies import point_of


class View:
    """A candidate with a quote of what waits there."""

    def __init__(self, number, waiting=0.0):
        self.id = f"10.0.0.{number}:8000"
        self.point = point_of(self.id)
        self.in_flight, self.room, self.share, self.turn = 0, 1 << 30, 1.0, 0
        self.pace, self.quote = Prior(), Quote()
        self.quote.renew(Load(unanswered=waiting), self.pace, 50.0)


def pool(size, waiting=0.0):
    return tuple(View(number, waiting) for number in range(size))


KEYS = [random.Random(number).getrandbits(60) for number in range(4000)]


def test_instances_agree_whatever_the_order():
    views = pool(256)
    one, other = Shortlist(views), Shortlist(random.Random(1).sample(views, 256))
    assert all(one.near(key) == other.near(key) for key in KEYS[:200])
    assert all(len(set(one.near(key))) == 12 for key in KEYS)


def test_all_have_about_their_part():
    listed = Shortlist(pool(256))
    seen = Counter(view.id for key in KEYS for view in listed.near(key))
    assert len(seen) == 256
    assert max(seen.values()) < 2.5 * 4000 * 12 / 256


def test_one_that_goes_changes_little():
    views = pool(256)
    whole, less = Shortlist(views), Shortlist(views[:100] + views[101:])
    for key in KEYS[:300]:
        before, after = set(whole.near(key)), set(less.near(key))
        assert len(before - after) == (1 if views[100] in before else 0)


def test_the_free_one_is_found_though_the_key_leads_elsewhere():
    views = pool(256, waiting=50_000)
    free = views[77]
    free.quote.renew(Load(), free.pace, 50.0)
    listed = Shortlist(views)
    busy = next(view for view in listed.near(KEYS[0]) if view is not free)
    assert free in listed.sooner(busy, 1000, 1000, 50.0)
    assert listed.sooner(free, 1000, 1000, 50.0) == []
    assert listed.sooner(busy, 1000, 0, 50.0) != []
    assert free in listed.sooner(None, 1000, 0, 50.0)


@pytest.mark.parametrize("later", [0.2, -1.0])
def test_who_is_the_soonest_is_found_out_anew(later):
    views = pool(256, waiting=50_000)
    listed = Shortlist(views)
    busy = views[0]
    assert listed.sooner(busy, 1000, 1000, 50.0) == []
    views[77].quote.renew(Load(), views[77].pace, 50.0)
    assert listed.sooner(busy, 1000, 1000, 50.05) == []
    assert views[77] in listed.sooner(busy, 1000, 1000, 50.0 + later)


def test_names_that_are_gone_are_passed_over():
    views = pool(40)
    assert Shortlist(views).named(["gone", views[3].id]) == [views[3]]
