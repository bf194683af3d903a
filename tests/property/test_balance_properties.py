"""The estimate under any load and any nonsense: it grows with the load, fades with age, and always stays a number."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from types import MappingProxyType

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.fleet.balance.estimate import Load, Quote, estimate
from gateway.fleet.balance.pace import BytesPerToken, Pace, Prior
from gateway.fleet.balance.strategies import BOUND, STRATEGIES, Ask, point_of
from gateway.fleet.signals import Reading, Signal

STEADY = settings(deadline=None, derandomize=True)
ANY = st.one_of(st.floats(), st.sampled_from([0.0, -1.0, 1e-308, 1e308, math.nan, math.inf, -math.inf]))
WHOLE = st.integers(-5, 10**6)
SLOTS = st.one_of(st.none(), st.integers(-2, 2000))

LOADS = st.builds(
    Load,
    queued=st.floats(0, 1e6),
    sent=st.floats(0, 1e5),
    others=st.floats(0, 1e5),
    running=st.floats(0, 1000),
    waiting=st.floats(0, 1000),
    in_flight=st.integers(0, 1000),
    slots=st.one_of(st.none(), st.integers(1, 512)),
    used=st.floats(0, 1e6),
    room=st.floats(0, 1e6),
    preempting=st.floats(0, 100),
    age=st.floats(0, 60),
    share=st.floats(0.01, 1),
    mean_left=st.floats(0, 60),
    unanswered=st.floats(0, 1e5),
    quiet=st.floats(0, 10),
)
HOSTILE = st.builds(
    Load,
    **dict.fromkeys(("queued", "sent", "others", "running", "waiting", "preempting", "age", "share"), ANY),
    **dict.fromkeys(("used", "room", "mean_left", "unanswered", "quiet"), ANY),
    in_flight=st.one_of(WHOLE, st.just(10**400)),
    slots=st.one_of(SLOTS, st.just(10**400)),
)
PACES = st.builds(Prior, prefill=st.floats(10, 1e6), step=st.floats(1e-4, 1)).map(Pace)
TOKENS = st.floats(0, 1e6)
SCRAPED = ("queued", "running", "waiting", "used", "preempting")
UNSCRAPED = dict.fromkeys((*SCRAPED, "room"), 0.0)
GROWING = (*SCRAPED, "sent", "others", "in_flight", "mean_left", "unanswered")


def nearly(value):
    return value + 1e-9 * (1 + abs(value))


# --- estimate


@STEADY
@given(load=LOADS, uncached=TOKENS, pace=PACES, name=st.sampled_from(GROWING), more=st.floats(0, 1e5))
def test_more_load_never_makes_it_sooner(load, uncached, pace, name, more):
    heavier = load._replace(**{name: getattr(load, name) + (int(more) if name == "in_flight" else more)})
    assert nearly(estimate(heavier, uncached, pace).total) >= estimate(load, uncached, pace).total


@STEADY
@given(load=LOADS, uncached=TOKENS, pace=PACES, more=TOKENS, share=st.floats(0.01, 1))
def test_a_longer_prompt_or_a_smaller_share_never_makes_it_sooner(load, uncached, pace, more, share):
    total = estimate(load, uncached, pace).total
    assert nearly(estimate(load, uncached + more, pace).total) >= total
    assert nearly(estimate(load._replace(share=min(share, load.share)), uncached, pace).total) >= total


@STEADY
@given(load=LOADS, uncached=TOKENS, pace=PACES, older=st.floats(0, 1e3))
def test_the_older_a_scrape_the_less_it_says(load, uncached, pace, older):
    def said(age):
        """How much the total is above that of own counts alone."""
        aged = load._replace(age=age)
        blank = aged._replace(**UNSCRAPED)
        with_scrape, without = estimate(aged, uncached, pace).total, estimate(blank, uncached, pace).total
        assert nearly(with_scrape) >= without
        return with_scrape - without, with_scrape

    (early, total), (late, _) = said(load.age), said(load.age + older)
    assert late <= early + 1e-9 * (1 + total)


@STEADY
@given(load=LOADS, uncached=TOKENS, pace=PACES)
def test_a_scrape_that_is_very_old_says_nothing(load, uncached, pace):
    blank = load._replace(**UNSCRAPED)
    old = estimate(load._replace(age=1e4), uncached, pace).total
    assert math.isclose(old, estimate(blank, uncached, pace).total, rel_tol=1e-9)


@STEADY
@given(load=HOSTILE, uncached=ANY, pace=PACES, now=st.floats(-1e9, 1e9))
def test_whatever_gauges_say_it_is_a_number_and_not_negative(load, uncached, pace, now):
    found = estimate(load, uncached, pace)
    assert all(0 <= term < math.inf for term in found)
    quote = Quote()
    quote.renew(load, pace, now)
    assert 0 <= quote.seconds(1e6, now) < math.inf


@STEADY
@given(load=LOADS, uncached=TOKENS, pace=PACES, now=st.floats(0, 1e7))
def test_a_quote_is_the_estimate(load, uncached, pace, now):
    quote = Quote()
    quote.renew(load, pace, now)
    total = estimate(load, uncached, pace).total
    assert math.isclose(quote.seconds(uncached, now), total, rel_tol=1e-6, abs_tol=1e-6)
    assert quote.holds(now)


# --- strategies


@dataclass(eq=False)
class Replica:
    """A candidate with a load of its own."""

    id: str
    described: Load
    pace: Pace
    room: int = 1 << 30
    turn: int = 0
    quote: Quote = field(default_factory=Quote)

    def __post_init__(self):
        self.point = point_of(self.id)
        self.in_flight, self.share = self.described.in_flight, self.described.share

    def load(self, now):
        return self.described


REPLICAS = st.lists(st.tuples(LOADS, PACES, st.integers(0, 50)), min_size=1, max_size=12).map(
    lambda found: [Replica(f"r{n}", load, pace, turn=turn) for n, (load, pace, turn) in enumerate(found)]
)
KEYS = st.one_of(st.none(), st.integers(0, 2**64 - 1))


@st.composite
def asks(draw):
    size = draw(st.integers(0, 10_000))
    held = draw(st.dictionaries(st.integers(0, 11).map(lambda n: f"r{n}"), st.integers(0, size), max_size=8))
    return Ask(draw(TOKENS), 100.0, size, held, draw(KEYS), draw(KEYS))


@STEADY
@given(replicas=REPLICAS, ask=asks(), seed=st.integers(0, 2**32))
def test_the_estimate_chooses_one_of_the_nearly_soonest(replicas, ask, seed):
    chosen = STRATEGIES["estimate"](replicas, ask, random.Random(seed).random)
    totals = {view.id: estimate(view.described, ask.uncached(view.id), view.pace).total for view in replicas}
    best = min(totals.values())
    assert totals[chosen.id] <= nearly(max(1.05 * best, best + 0.001)) + 1e-6 * best


@STEADY
@given(replicas=REPLICAS, ask=asks(), seed=st.integers(0, 2**32))
def test_the_order_of_replicas_does_not_matter_but_for_ties(replicas, ask, seed):
    def no_dice():
        return 0.0

    shuffled = random.Random(seed).sample(replicas, len(replicas))
    one, other = STRATEGIES["estimate"](replicas, ask, no_dice), STRATEGIES["estimate"](shuffled, ask, no_dice)
    if one is not other:  # then nothing but dice could tell them apart
        assert ask.anchor is None
        assert one.in_flight == other.in_flight
        assert ask.held.get(one.id, 0) == ask.held.get(other.id, 0)


@STEADY
@given(
    replicas=st.lists(st.tuples(HOSTILE, PACES), min_size=1, max_size=6),
    ask=asks(),
    clocks=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=5),
    tokens=ANY,
    name=st.sampled_from(sorted(STRATEGIES)),
    seed=st.integers(0, 2**32),
)
def test_a_strategy_answers_whatever_gauges_and_clocks_say(replicas, ask, clocks, tokens, name, seed):
    views = [Replica(f"r{number}", load, pace) for number, (load, pace) in enumerate(replicas)]
    for view in views:
        view.in_flight, view.share = 1, 0.5  # these are the gateway's own, not an engine's
    dice = random.Random(seed).random
    assert STRATEGIES[name](views, ask._replace(tokens=tokens), dice) in views
    for now in clocks:
        assert STRATEGIES[name](views, ask._replace(now=now), dice) in views


@STEADY
@given(
    loads=st.lists(st.integers(0, 60), min_size=1, max_size=12),
    sessions=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=60),
)
def test_a_session_never_goes_where_the_bound_is_reached(loads, sessions):
    pace = Pace(Prior())
    views = [Replica(f"r{number}", Load(in_flight=load), pace) for number, load in enumerate(loads)]
    for session in sessions:
        chosen = STRATEGIES["session"](views, Ask(10.0, 1.0, session=session), random.Random(1).random)
        total = sum(view.in_flight for view in views)
        assert chosen.in_flight + 1 <= math.ceil(BOUND * (total + 1) / len(views))
        chosen.in_flight += 1


# --- pace

READINGS = st.dictionaries(st.sampled_from(Signal), ANY, max_size=len(Signal)).map(
    lambda values: Reading(MappingProxyType(values), frozenset())
)
FIRSTS = st.tuples(ANY, ANY, ANY, ANY)
SCRAPES = st.tuples(READINGS, READINGS, ANY)


@STEADY
@given(prior=st.builds(Prior, prefill=ANY, step=ANY), notes=st.lists(st.one_of(FIRSTS, SCRAPES), max_size=20))
def test_whatever_is_noted_a_pace_stays_within_bounds(prior, notes):
    pace = Pace(prior)
    for note in notes:
        if len(note) == 4:
            uncached, ahead, seconds, now = note
            pace.note_first_token(uncached=uncached, ahead=ahead, seconds=seconds, now=now)
        else:
            pace.note_scrape(*note)
        assert 1 <= pace.prefill <= 1e7
        assert 1e-5 <= pace.step <= 10
        assert 0 <= pace.known <= 1
        assert pace.slots is None or 1 <= pace.slots <= 1 << 20


@STEADY
@given(
    rate=st.floats(100, 50_000),
    prior=st.floats(1000, 20_000),
    tokens=st.lists(st.floats(500, 8000), min_size=60, max_size=60),
    seed=st.integers(0, 1000),
)
def test_any_rate_is_found_from_any_prior(rate, prior, tokens, seed):
    pace, dice = Pace(Prior(prefill=prior, step=0.01)), random.Random(seed)
    for number, size in enumerate(tokens):
        seconds = (size / rate + 0.01 * (1.5 + size / 8192)) * math.exp(dice.gauss(0, 0.1))
        pace.note_first_token(uncached=size, ahead=0, seconds=seconds, now=number / 4)
    assert math.isclose(pace.prefill, rate, rel_tol=0.3)


@STEADY
@given(notes=st.lists(st.tuples(ANY, ANY), max_size=30))
def test_bytes_for_each_token_stay_within_bounds(notes):
    learned = BytesPerToken()
    for size, tokens in notes:
        learned.note(size, tokens)
        assert 0.5 <= learned.value <= 16
