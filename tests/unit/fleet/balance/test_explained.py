"""Why a request went where it went: terms add up to what was compared, the reason is the strategy's, little is kept."""

from __future__ import annotations

import random

import pytest

from gateway.fleet.balance.estimate import Load, Quote
from gateway.fleet.balance.explained import KEPT, SENTENCES, VIEWS, Decision, Decisions, Why, explain
from gateway.fleet.balance.pace import Prior
from gateway.fleet.balance.strategies import STRATEGIES, Ask, point_of


class View:
    """A candidate whose load is said outright."""

    def __init__(self, number, load=None, room=1 << 30):
        self.id = f"r{number}"
        self.point = point_of(self.id)
        self.described = Load() if load is None else load
        self.in_flight, self.room, self.share, self.turn = self.described.in_flight, room, 1.0, 0
        self.pace, self.quote = Prior(), Quote()

    def load(self, now):
        return self.described


def decided(views, ask, strategy="estimate", later=0.0, pool=None):
    if later:
        STRATEGIES[strategy](views, ask, random.Random(1).random)
        ask = ask._replace(now=ask.now + later)
    chosen = STRATEGIES[strategy](views, ask, random.Random(1).random)
    return Decision(
        ("req_1", "general", "m"), ask.now, strategy, 1, ask.tokens, ask.size, ask.held, ask.anchor is not None,
        pool or len(views), [(view.id, view.quote.said, view.in_flight, view.room) for view in views],
        None if chosen is None else chosen.id,
    )  # fmt: skip


def ask(tokens=1000.0, **fields):
    return Ask(tokens, 50.0, **fields)


@pytest.mark.parametrize("later", [0.0, 0.1, 0.2])
def test_the_totals_are_those_that_were_compared(later):
    full = Load(used=9800, room=10_000, mean_left=1.0)
    views = [View(0, full._replace(unanswered=3000, in_flight=2)), View(1, Load(running=40)), View(2, full)]
    decision = decided(views, ask(size=4000, held={"r0": 2000}), later=later)
    told = {one.replica: one for one in explain(decision).candidates}
    for view in views:
        uncached = 500 if view.id == "r0" else 1000
        assert told[view.id].terms.total == pytest.approx(view.quote.seconds(uncached, decision.now))
        assert told[view.id].terms.total == pytest.approx(sum(told[view.id].terms[:5]) * told[view.id].terms.factor)
    assert (told["r0"].holds, told["r1"].holds, told["r0"].in_flight) == (2000, 0, 2)
    assert [one.replica for one in explain(decision).candidates if one.chosen] == [decision.chosen]


BUSY = Load(unanswered=20_000, in_flight=3)


@pytest.mark.parametrize(
    ("views", "request_", "why"),
    [
        ([View(0, BUSY), View(1), View(2, BUSY)], ask(anchor=3), Why.SOONEST),
        ([View(0), View(1), View(2)], ask(anchor=3), Why.ANCHOR),
        ([View(0), View(1), View(2)], ask(), Why.FEWEST),
        ([View(0, BUSY), View(1, BUSY)], ask(20.0, size=80, anchor=3, held={"r1": 40}), Why.HOLDS_MOST),
        ([View(0, BUSY), View(1, BUSY), View(2)], ask(20.0, size=80, held={"r1": 40}), Why.SOONEST),
        ([View(0, room=0), View(1, BUSY)], ask(anchor=3), Why.ALONE),
        ([View(0)], ask(anchor=3), Why.ALONE),
        ([View(0, room=0), View(1, BUSY), View(2, BUSY._replace(unanswered=900))], ask(anchor=3), Why.SOONEST),
        ([View(0, room=0), View(1, room=0)], ask(), Why.FULL),
        ([], ask(), Why.FULL),
    ],
)
def test_the_reason_is_what_decided(views, request_, why):
    assert explain(decided(views, request_)).why is why


@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES) - {"estimate"}))
def test_of_other_strategies_there_is_what_they_go_by(strategy):
    views = [View(0, Load(in_flight=4)), View(1, Load(in_flight=1)), View(2)]
    views[0].quote.renew(views[0].described, views[0].pace, 50.0)  # by a strategy that was tried beside
    told = explain(decided(views, ask(session=3), strategy))
    assert told.why.value == strategy
    assert all(one.terms is None for one in told.candidates)
    assert sorted(one.in_flight for one in told.candidates) == [0, 1, 4]


def test_one_of_a_shortlist_is_not_the_only_one():
    assert explain(decided([View(0)], ask(), pool=256)).why is Why.SOONEST


def test_each_reason_has_a_sentence():
    assert set(SENTENCES) == set(Why)


def numbered(number, alias="general", views=2):
    return Decision(
        (f"req_{number}", alias, "m"), 1.0, "round-robin", 1, 0.0, 0, {}, False, views, [("r", None, 0, 1)] * views, "r"
    )


def test_the_newest_are_kept_and_found():
    kept = Decisions()
    assert kept.latest() is kept.of("req_1") is None
    for number in range(KEPT + 10):
        kept.add(numbered(number, alias="other" if number % 2 else "general"))
    assert len(kept) == KEPT
    assert kept.of("req_9") is None
    assert kept.of("req_10").alias == "general"
    assert kept.latest().request_id == f"req_{KEPT + 9}"
    assert kept.latest("general").request_id == f"req_{KEPT + 8}"
    assert kept.latest("nothing") is None


def test_of_the_attempts_of_a_request_the_last_is_told():
    kept = Decisions()
    for attempt in (1, 2):
        kept.add(numbered(1)._replace(attempt=attempt))
    assert kept.of("req_1").attempt == 2


def test_where_pools_are_large_fewer_are_kept():
    kept = Decisions()
    for number in range(KEPT):
        kept.add(numbered(number, views=VIEWS // 100))
    assert len(kept) == 100
    kept.add(numbered(1, views=VIEWS))
    assert len(kept) == 1
