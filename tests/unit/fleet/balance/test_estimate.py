"""Each term of an estimate on its own, what age does to it, and the quote that says the same in less time."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.balance.estimate import FRESH, HALF_LIFE, Load, Quote, Terms, estimate


class Rates(NamedTuple):
    prefill: float = 10_000.0
    step: float = 0.02


RATES = Rates()
IDLE = Load()
loads = st.builds(
    Load,
    running=st.floats(0, 500),
    in_flight=st.integers(0, 500),
    unanswered=st.floats(0, 1e5),
    returning=st.floats(0, 1e4),
    spare=st.floats(0, 1e6),
    wanted=st.floats(0, 1),
)


def terms(uncached=0.0, rates=RATES, **load):
    return estimate(IDLE._replace(**load), uncached, rates)


def test_an_idle_replica_takes_a_step_and_the_prompt():
    found = terms(1000)
    assert found.prefill == pytest.approx(0.1)
    assert found.decode == pytest.approx(0.02 * (1 + 1000 / 8192))
    assert (found.queue, found.slot, found.pressure, found.factor) == (0, 0, 0, 1)
    assert found.total == pytest.approx(found.prefill + found.decode)


def test_the_total_is_the_sum_times_the_factor():
    found = terms(
        500, queued=9000, others=100, running=300, waiting=9, slots=256, mean_left=2, used=900, room=1000, preempting=1,
        share=0.5, returning=2,
    )  # fmt: skip
    assert min(found) > 0
    assert found.total == pytest.approx(sum(found[:6]) * 2)


# --- queue


def test_what_waits_and_what_was_sent_since_add_up():
    assert terms(queued=5000, sent=2000).queue == pytest.approx(0.7)


def test_what_instances_know_of_each_other_adds_up_and_what_the_engine_counted_of_it_does_not_count_twice():
    assert terms(unanswered=2000, others=3000).queue == pytest.approx(0.5)
    assert terms(queued=4000, sent=500, unanswered=2000, others=3000).queue == pytest.approx(0.5)
    assert terms(queued=6000, sent=500, unanswered=2000, others=3000).queue == pytest.approx(0.65)  # of somebody else


def test_own_first_tokens_say_nothing_of_what_others_wait_for():
    assert terms(unanswered=2000, others=3000, quiet=60.0).queue == pytest.approx(0.35)


def test_the_engine_works_off_its_queue_after_the_scrape():
    half = 0.5 ** (0.25 / HALF_LIFE)
    assert terms(queued=5000, age=0.25).queue == pytest.approx(half * 0.25)
    assert terms(queued=5000, age=0.6).queue == 0
    assert terms(queued=5000, sent=2000, age=0.6).queue == pytest.approx(0.2)


def test_own_requests_that_wait_are_known_whatever_the_scrape_says():
    assert terms(unanswered=4000).queue == pytest.approx(0.4)
    assert terms(unanswered=4000, age=math.inf).queue == pytest.approx(0.4)
    assert terms(unanswered=4000, queued=6000).queue == pytest.approx(0.6)  # they are among those


def test_of_what_waits_for_its_first_token_a_part_is_done():
    assert terms(unanswered=4000, quiet=0.1).queue == pytest.approx(0.3)
    assert terms(unanswered=4000, quiet=100).queue == pytest.approx(0.1)  # one that hangs is never free


# --- batch


def test_running_sequences_make_the_step_longer():
    alone, crowd = terms(1000).decode, terms(1000, running=256).decode
    assert crowd == pytest.approx(2 * 0.02 * (1.5 + 1000 / 8192))
    assert crowd > 2 * alone


def test_a_full_batch_costs_the_wait_for_a_slot():
    assert terms(running=63, slots=64, mean_left=2).slot == 0
    assert terms(running=64, slots=64, mean_left=2).slot == pytest.approx(2 / 64)
    assert terms(running=64, waiting=63, slots=64, mean_left=2).slot == pytest.approx(2)
    assert terms(in_flight=127, slots=64, mean_left=2, age=math.inf).slot == pytest.approx(2)


@pytest.mark.parametrize("slots", [None, 0, -3])
def test_slots_that_are_not_known_cost_nothing(slots):
    assert terms(running=1000, waiting=1000, slots=slots, mean_left=2).slot == 0


# --- pressure


def test_a_prompt_waits_for_the_memory_that_it_lacks_as_fast_as_that_becomes_free():
    cache = {"room": 16_000, "mean_left": 2.0}  # 4,000 tokens a second
    assert terms(4000, used=16_000, **cache).pressure == pytest.approx(1.0)
    assert terms(4000, used=14_000, **cache).pressure == pytest.approx(0.5)
    assert terms(4000, used=12_000, **cache).pressure == 0


def test_a_full_cache_costs_nothing_where_the_prompt_is_in_it():
    assert terms(0, used=16_000, room=16_000, mean_left=2.0).pressure == 0


def test_those_that_wait_for_memory_get_it_first():
    assert terms(1000, used=20_000, room=16_000, mean_left=2.0).pressure == pytest.approx(5000 / 4000)
    assert terms(0, used=20_000, room=16_000, mean_left=2.0).pressure == pytest.approx(1.0)


@pytest.mark.parametrize("room", [0.0, 0.5, -1.0, math.nan])
def test_a_cache_of_unknown_size_costs_nothing(room):
    assert terms(1e6, used=1e6, room=room, mean_left=9.0).pressure == 0


def test_preemptions_cost_what_is_done_anew():
    assert terms(preempting=3).pressure == pytest.approx(0.3)


# --- share and age


def test_a_new_replica_counts_as_slower():
    assert terms(1000, share=0.25).total == pytest.approx(4 * terms(1000).total)
    assert math.isfinite(terms(1000, share=0).total)


def test_a_scraped_figure_loses_half_of_its_weight_in_its_half_life():
    full = {"used": 16_000, "room": 16_000, "mean_left": 2}
    assert terms(900, age=HALF_LIFE, **full).pressure == pytest.approx(terms(450, **full).pressure)
    assert terms(running=80, age=HALF_LIFE).decode == pytest.approx(terms(running=40).decode)
    assert terms(preempting=4, age=3 * HALF_LIFE).pressure == pytest.approx(0.05)


def test_there_is_no_age_at_which_anything_jumps():
    busy = IDLE._replace(queued=50_000, running=100, waiting=60, in_flight=20, slots=64, mean_left=3)
    busy = busy._replace(used=15_900, room=16_000)
    totals = [estimate(busy._replace(age=age / 100), 500, RATES).total for age in range(3000)]
    assert totals == sorted(totals, reverse=True)
    assert max(before - after for before, after in pairwise(totals)) < 0.02 * totals[0]


def test_an_old_scrape_leaves_the_own_counts():
    old = {"queued": 1e6, "running": 500, "waiting": 500, "preempting": 9, "slots": 64, "mean_left": 2}
    found = terms(100, **old, used=20_000, room=16_000, in_flight=9, unanswered=700, age=math.inf)
    assert found == pytest.approx(terms(100, in_flight=9, unanswered=700, slots=64, mean_left=2))


@pytest.mark.parametrize("age", [-1e9, -0.1])
def test_a_scrape_of_the_future_is_of_now(age):
    assert terms(100, queued=800, running=7, age=age) == terms(100, queued=800, running=7)


# --- garbage

GARBAGE = [math.nan, math.inf, -math.inf, -1.0, 1e300, 10**400]


@pytest.mark.parametrize("value", GARBAGE)
@pytest.mark.parametrize("name", Load._fields)
def test_one_gauge_of_garbage_leaves_an_estimate(name, value):
    found = terms(100, **{name: value})
    assert isinstance(found, Terms)
    assert all(math.isfinite(term) and term >= 0 for term in found)


@pytest.mark.parametrize("value", GARBAGE)
def test_garbage_everywhere_leaves_an_estimate(value):
    found = estimate(Load(*[value] * len(Load._fields)), value, RATES)
    assert all(math.isfinite(term) and term >= 0 for term in found)


def test_what_is_no_number_counts_as_nothing():
    for name in ("queued", "sent", "others", "running", "waiting", "used", "room", "mean_left", "unanswered"):
        assert terms(100, **{name: math.nan}) == terms(100, **{name: -7.0}) == terms(100)


# --- burden


def test_who_comes_meanwhile_waits_for_half_of_it_and_makes_as_many_wait():
    busy = 1000 * (1 / RATES.prefill + RATES.step / 8192)
    assert terms(1000, returning=3).burden == pytest.approx(3 * busy * busy)
    assert terms(0, returning=3).burden == 0
    assert terms(1000).burden == 0


@given(load=loads, more=st.floats(0, 1e4), uncached=st.floats(0, 1e6), less=st.floats(0, 1))
def test_a_burden_only_grows_with_those_who_come_and_with_what_there_is_to_compute(load, more, uncached, less):
    here, busier = (
        estimate(load, uncached, RATES),
        estimate(load._replace(returning=load.returning + more), uncached, RATES),
    )
    assert 0.0 <= here.burden <= busier.burden < math.inf
    assert here.total <= busier.total < math.inf
    assert estimate(load, uncached * less, RATES).burden <= here.burden


def test_what_is_pushed_out_is_computed_again_as_often_as_it_is_wanted():
    assert terms(3000, spare=1000, wanted=0.5).burden == pytest.approx(0.1)
    assert terms(1000, spare=1000, wanted=0.5).burden == 0
    assert terms(3000, spare=1000).burden == 0


@given(load=loads, less=st.floats(0, 1), uncached=st.floats(0, 1e6))
def test_a_burden_only_grows_the_less_is_spare_and_the_more_is_wanted(load, less, uncached):
    here = estimate(load, uncached, RATES).burden
    assert estimate(load._replace(spare=load.spare * less), uncached, RATES).burden >= here
    assert estimate(load._replace(wanted=load.wanted * less), uncached, RATES).burden <= here


@given(load=loads, uncached=st.floats(0, 1e6), share=st.floats(0.01, 1.0))
def test_a_quote_says_what_the_estimate_says_whoever_comes(load, uncached, share):
    load, quote = load._replace(share=share), Quote()
    quote.renew(load, RATES, 1e3)
    assert quote.seconds(uncached, 1e3) == pytest.approx(estimate(load, uncached, RATES).total)


# --- quotes

BUSY = Load(
    queued=3000,
    sent=2000,
    others=500,
    running=60,
    waiting=9,
    in_flight=40,
    slots=64,
    used=15_000,
    room=16_000,
    preempting=0.2,
    age=0.1,
    share=0.5,
    mean_left=2,
    unanswered=2500,
    quiet=0.02,
    returning=4.0,
    spare=500,
    wanted=0.3,
)


@pytest.mark.parametrize("load", [IDLE, BUSY])
@pytest.mark.parametrize("uncached", [0, 1, 7000])
def test_a_quote_says_what_the_estimate_says(load, uncached):
    quote = Quote()
    quote.renew(load, RATES, 1e6)
    assert quote.seconds(uncached, 1e6) == pytest.approx(estimate(load, uncached, RATES).total)


def test_a_quote_holds_for_a_while_and_not_after_something_happened():
    quote = Quote()
    assert not quote.holds(-1e9)
    assert not quote.holds(0.0)
    quote.renew(BUSY, RATES, 12.345678)
    assert quote.holds(12.345678)
    assert quote.holds(12.345678 + 0.99 * FRESH)
    assert not quote.holds(12.345678 + 1.01 * FRESH)
    quote.void()
    assert not quote.holds(12.345678)


def test_a_clock_that_was_set_back_ends_a_quote():
    quote = Quote()
    quote.renew(BUSY, RATES, 1000.0)
    assert not quote.holds(999.0)
    assert not quote.holds(0.0)


def test_meanwhile_the_prompts_before_it_are_worked_off():
    quote = Quote()
    quote.renew(IDLE._replace(unanswered=2000), RATES, 0.0)
    at_once = quote.seconds(100, 0.0)
    assert quote.seconds(100, 0.15) == pytest.approx(at_once - 0.15)
    assert quote.seconds(100, 0.24) == pytest.approx(estimate(IDLE, 100, RATES).total)
