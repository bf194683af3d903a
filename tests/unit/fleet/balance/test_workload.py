"""What one replica has to do: counts that balance out in whatever order things happen, and what is forgotten when."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.balance.estimate import FRESH, HALF_LIFE, Load, estimate
from gateway.fleet.balance.pace import Pace, Prior
from gateway.fleet.balance.reuse import Reuse
from gateway.fleet.balance.workload import Workload
from gateway.fleet.signals import Reading, Signal

NOW = 1_000.0


def reading(**values: float) -> Reading:
    return Reading({Signal(name): value for name, value in values.items()}, frozenset())


def load(work: Workload, now: float = NOW, in_flight: int = 0, share: float = 1.0) -> Load:
    return work.load(in_flight, share, now)


def quoted(work: Workload, now: float = NOW, in_flight: int = 0) -> None:
    work.quote.renew(load(work, now, in_flight), work.pace, now)


def full_at(work: Workload, slots: int) -> None:
    """Have it see, scrape after scrape, that so many sequences are all that its batch holds."""
    for number in range(6):
        work.scraped(reading(running=slots, waiting=3, kv_use=0.2, ttft_count=10 * number), NOW - 60 + number)
    assert work.pace.slots == slots


# --- counts


@dataclass
class Request:
    """One that was sent, as the test remembers it."""

    tokens: float
    epoch: int
    process: int
    scrape: int
    streamed: bool


class Story:
    """A workload, and the plain sums that it ought to show."""

    def __init__(self) -> None:
        self.work = Workload(Prior())
        self.now = NOW
        self.process = self.scrape = 0
        self.open: list[Request] = []
        self.quiet_from = 0.0

    def unanswered(self) -> int:
        return sum(round(each.tokens) for each in self.open if each.streamed and each.process == self.process)

    def sent(self) -> int:
        current = (self.process, self.scrape)
        return sum(round(each.tokens) for each in self.open if (each.process, each.scrape) == current)

    def pending(self) -> int:
        unshown = [e for e in self.open if not e.streamed and (e.process, e.scrape) == (self.process, self.scrape)]
        return self.unanswered() + sum(round(each.tokens) for each in unshown)

    def begin(self, tokens: float, *, streamed: bool) -> None:
        if streamed and not self.unanswered():
            self.quiet_from = self.now
        self.work.began(tokens, self.now, streamed=streamed)
        self.open.append(Request(tokens, self.work.epoch, self.process, self.scrape, streamed))

    def end(self, which: int, *, answered: bool) -> None:
        if not self.open:
            return
        request = self.open.pop(which % len(self.open))
        self.work.left(request.tokens, request.epoch)
        if not (answered and request.streamed):  # refused, broken off, its client has left, or no stream: all the same
            self.work.dropped(request.tokens, request.epoch, streamed=request.streamed)
            return
        if request.process == self.process:
            self.quiet_from = self.now
        self.work.answered(request.tokens, request.epoch, self.now)

    def scraped(self) -> None:
        self.work.scraped(reading(running=2, kv_tokens=1e9), self.now)
        self.scrape += 1

    def restart(self) -> None:
        self.work.reset()
        self.process += 1

    def check(self) -> None:
        seen = load(self.work, self.now)
        assert (seen.unanswered, seen.sent) == (self.unanswered(), self.sent())
        assert self.work.pending == self.pending()
        assert seen.quiet == (self.now - self.quiet_from if self.unanswered() else 0.0)


TOKENS = st.one_of(st.floats(0, 1e6), st.sampled_from([0.0, 0.1, 0.2, 0.3, 1 / 3, 0.5, 1e12]))
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["stream", "whole"]), TOKENS),
        st.tuples(st.just("answered"), st.integers(0, 99)),
        st.tuples(st.just("dropped"), st.integers(0, 99)),
        st.tuples(st.sampled_from(["scraped", "restart"]), st.just(0)),
    ),
    max_size=60,
)


@given(EVENTS)
def test_what_was_begun_is_ended_exactly_once_whatever_comes_between(events):
    story = Story()
    steps = {
        "stream": lambda tokens: story.begin(tokens, streamed=True),
        "whole": lambda tokens: story.begin(tokens, streamed=False),
        "answered": lambda which: story.end(which, answered=True),
        "dropped": lambda which: story.end(which, answered=False),
        "scraped": lambda _: story.scraped(),
        "restart": lambda _: story.restart(),
    }
    for name, value in events:
        story.now += 0.25
        steps[name](value)
        story.check()
    while story.open:
        story.end(0, answered=len(story.open) % 2 == 0)
        story.check()
    seen = load(story.work, story.now)
    assert (seen.unanswered, seen.sent, seen.quiet) == (0, 0, 0.0)
    story.scraped()
    story.begin(5.0, streamed=True)
    assert load(story.work, story.now).used == 5


def test_fractions_of_tokens_leave_nothing_behind_that_would_pass_for_a_request():
    work = Workload(Prior())
    for tokens in (1_000.1, 2_000.2):
        work.began(tokens, NOW)
    for tokens in (1_000.1, 2_000.2):
        work.dropped(tokens, work.epoch)
    work.began(5_000.0, NOW + 600)
    assert load(work, NOW + 600).quiet == 0.0


def test_what_was_sent_to_the_process_before_takes_nothing_from_what_its_successor_was_sent():
    work = Workload(Prior())
    work.began(700.0, NOW)
    old = work.epoch
    work.reset()
    work.began(50.0, NOW + 1)
    work.answered(700.0, old, NOW + 2)
    seen = load(work, NOW + 3)
    assert (seen.unanswered, seen.sent, seen.quiet) == (50, 50, 2.0)


def test_a_scrape_knows_of_what_was_sent_before_it():
    work = Workload(Prior())
    work.began(100.0, NOW)
    before = work.epoch
    work.scraped(reading(running=1), NOW + 1)
    work.began(30.0, NOW + 1)
    assert (load(work).sent, load(work).unanswered) == (30, 130)
    work.answered(100.0, before, NOW + 2)
    assert (load(work).sent, load(work).unanswered) == (30, 30)


def test_one_whose_first_token_is_not_seen_counts_until_the_next_scrape():
    work = Workload(Prior())
    work.began(100.0, NOW, streamed=False)
    assert (load(work).sent, load(work).unanswered) == (100, 0)
    early = work.epoch
    work.scraped(reading(running=1), NOW + 1)
    assert (load(work).sent, load(work).unanswered) == (0, 0)
    work.dropped(100.0, early, streamed=False)
    assert (load(work).sent, load(work).unanswered) == (0, 0)


@pytest.mark.parametrize("event", ["began", "answered", "dropped", "left", "scraped", "reset"])
def test_whatever_happens_ends_the_quote(event):
    work = Workload(Prior())
    work.began(10.0, NOW)
    quoted(work)
    assert work.quote.holds(NOW)
    {
        "began": lambda: work.began(1.0, NOW),
        "answered": lambda: work.answered(10.0, work.epoch, NOW),
        "dropped": lambda: work.dropped(10.0, work.epoch),
        "left": lambda: work.left(10.0, work.epoch),
        "scraped": lambda: work.scraped(reading(), NOW),
        "reset": work.reset,
    }[event]()
    assert not work.quote.holds(NOW)


# --- scrapes


def test_a_load_says_what_was_scraped_counted_and_given():
    work = Workload(Prior())
    work.began(400.0, NOW)
    work.scraped(reading(running=7, waiting=3, kv_use=0.5, kv_tokens=10_000, preemptions=10), NOW)
    work.scraped(reading(running=5, waiting=2, kv_use=0.6, kv_tokens=10_000, preemptions=16), NOW + 2)
    work.ended(8.0)
    seen = load(work, NOW + 3, in_flight=9, share=0.4)
    assert seen == Load(
        queued=800.0, sent=0, running=5, waiting=2, in_flight=9, slots=None, used=6000 + 2 * 1200,
        room=10_000, preempting=3.0, age=1.0, share=0.4, mean_left=4.0, unanswered=400, quiet=3.0,
    )  # fmt: skip


def test_what_a_cache_has_in_use_is_that_of_the_scrape_and_what_has_come_and_gone_since():
    work = Workload(Prior())
    work.began(400.0, NOW)
    epoch = work.epoch
    work.scraped(reading(running=1, kv_use=0.5, kv_tokens=1_000), NOW)
    assert load(work).used == 500  # the engine has counted it
    work.began(300.0, NOW, streamed=False)
    assert load(work).used == 800
    work.answered(400.0, epoch, NOW)
    assert load(work).used == 800
    work.left(400.0, epoch)
    assert load(work).used == 400
    work.scraped(reading(running=0, kv_use=0.0, kv_tokens=1_000), NOW)
    work.left(300.0, epoch)
    assert load(work).used == 0  # never below


def test_requests_of_others_that_came_since_and_those_that_wait_have_what_others_have():
    work = Workload(Prior())
    work.heard_of_others(3, 0)
    work.scraped(reading(running=4, waiting=1, kv_use=0.8, kv_tokens=1_000), NOW)
    assert load(work).used == 800 + 200
    work.heard_of_others(5, 0)
    assert load(work).used == 800 + 3 * 200
    work.heard_of_others(0, 0)
    assert load(work).used == 800 - 2 * 200


def test_where_nobody_ran_one_that_waits_has_an_usual_prompt():
    work = Workload(Prior())
    work.began(250.0, NOW)
    work.scraped(reading(running=0, waiting=2, kv_use=0.0, kv_tokens=1_000), NOW)
    assert load(work).used == 500


def test_what_left_the_process_before_frees_nothing_at_its_successor():
    work = Workload(Prior())
    work.began(700.0, NOW)
    old = work.epoch
    work.reset()
    work.scraped(reading(kv_tokens=1_000), NOW)
    work.began(50.0, NOW)
    work.left(700.0, old)
    assert load(work).used == 50


@pytest.mark.parametrize("values", [{"kv_use": 1e308, "kv_tokens": 1e308}, {"kv_use": 7.0, "kv_tokens": 10.0}])
def test_nonsense_about_the_cache_leaves_an_estimate(values):
    work = Workload(Prior())
    work.scraped(reading(running=1e308, waiting=1e308, **values), NOW)
    work.heard_of_others(9, 9)
    assert 0 <= estimate(load(work), 100, work.pace).total < 1e9


@pytest.mark.parametrize(
    ("before", "after"),
    [({"preemptions": 9}, {"preemptions": 2}), ({}, {"preemptions": 9}), ({"preemptions": 9}, {}), ({}, {})],
)
def test_counters_that_went_back_or_are_missing_are_no_preemptions(before, after):
    work = Workload(Prior())
    work.scraped(reading(preemptions=0), NOW)
    work.scraped(reading(preemptions=9), NOW + 1)
    assert load(work).preempting == 9.0
    work.scraped(reading(**before), NOW + 2)
    work.scraped(reading(**after), NOW + 3)
    assert load(work).preempting == 0.0


def test_a_reading_without_a_value_is_a_replica_of_which_nothing_is_known():
    work = Workload(Prior())
    work.scraped(reading(), NOW)
    assert load(work) == Load()


@pytest.mark.parametrize("later", [0.0, -5.0])
def test_two_scrapes_at_one_moment_or_a_clock_that_was_set_back_teach_nothing(later):
    work = Workload(Prior())
    work.scraped(reading(itl_sum=0, itl_count=0), NOW)
    work.scraped(reading(itl_sum=500, itl_count=1_000), NOW + later)
    assert work.pace.step == Prior().step
    work.scraped(reading(itl_sum=1_000, itl_count=2_000), NOW + 10)
    assert work.pace.step > Prior().step


def test_who_comes_for_what_is_held_is_told_of_by_the_engine_too_until_its_counters_stand_still():
    work = Workload(Prior())
    work.scraped(reading(ttft_count=0, cache_queries=0, cache_hits=0, prompt_tokens=0), NOW)
    work.scraped(reading(ttft_count=40, cache_queries=40_000, cache_hits=30_000, prompt_tokens=40_000), NOW + 10)
    all_of_them = load(work, NOW + 10).returning
    assert all_of_them == pytest.approx(40 / 10 * 0.75 * 0.75)  # of which a quarter came too long ago to count
    fading = [load(work, NOW + later).returning for later in (11, 15, 30, 300)]
    assert all_of_them > fading[0] > fading[1] > fading[2] > fading[3] < 1e-9
    work.began(0, NOW + 300, bound=1.0)
    assert load(work, NOW + 300).returning == pytest.approx(0.2)
    work.reset()
    assert load(work, NOW + 300).returning == 0.0


def test_what_the_cache_drops_is_wanted_less_the_longer_nobody_asks_for_it():
    work, reuse = Workload(Prior()), Reuse()
    for _ in range(50):
        reuse.note(4_000, 3_000, 2.0)
    assert (load(work).spare, load(work).wanted) == (0.0, 0.0)
    work.keeps(500.0, NOW - 1.0, reuse)
    assert load(work).spare == 500.0
    assert 0.75 > load(work).wanted == reuse.wanted(1.0) > load(work, NOW + 1.0).wanted > 0.0
    work.reset()
    assert (load(work).spare, load(work).wanted) == (0.0, 0.0)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1)), max_size=60))
def test_no_more_are_said_to_come_than_have_come(sent):
    work, now = Workload(Prior()), NOW
    for after, bound in sent:
        now += after
        work.began(100, now, bound=bound)
    assert 0.0 <= load(work, now).returning <= sum(bound for _, bound in sent) / 5.0 + 1e-9


def test_what_is_usual_of_a_request_follows_slowly():
    work = Workload(Prior())
    for _ in range(3):
        work.began(100.0, NOW)
        work.ended(2.0)
    assert load(work).mean_left == pytest.approx(1.0)
    work.ended(22.0)
    assert load(work).mean_left == pytest.approx(2.0)
    work.began(1_100.0, NOW)
    work.scraped(reading(waiting=1), NOW)
    assert load(work).queued == pytest.approx(200.0)


# --- other instances


def test_requests_of_others_count_beside_the_own_ones():
    work = Workload(Prior())
    work.began(500.0, NOW)
    work.heard_of_others(3, 2_000)
    seen = load(work, in_flight=1)
    assert (seen.in_flight, seen.unanswered, seen.others, seen.sent) == (4, 500, 2_000, 2_500)
    assert work.others_in_flight == 3
    assert work.pending == 500
    work.heard_of_others(0, 0)
    seen = load(work, in_flight=1)
    assert (seen.in_flight, seen.unanswered, seen.others, seen.sent) == (1, 500, 0, 500)


def test_what_the_scrape_saw_of_others_is_not_taken_for_sent_since():
    work = Workload(Prior())
    work.heard_of_others(2, 2_000)
    work.scraped(reading(waiting=2), NOW)
    assert load(work).sent == 0
    work.heard_of_others(3, 2_700)
    assert load(work).sent == 700
    work.heard_of_others(1, 900)  # more were answered than came
    assert load(work).sent == 0
    work.scraped(reading(waiting=1), NOW)
    work.heard_of_others(2, 1_000)
    assert load(work).sent == 100


@given(st.integers(0, 50_000), st.integers(0, 50_000), st.integers(0, 50_000), st.integers(1, 20))
def test_no_request_of_another_instance_is_missed_and_none_counts_twice(own, before, since, waiting):
    """``before`` the scrape and ``since``, all of them waiting, and as long as the mean when the engine counts them."""
    work = Workload(Prior())
    work.began(own, NOW)
    work.heard_of_others(waiting, before)
    work.scraped(reading(waiting=waiting), NOW)
    mean = load(work).queued / waiting
    work.heard_of_others(2 * waiting, before + since)
    ahead = estimate(load(work), 0.0, work.pace).queue * work.pace.prefill
    assert ahead == pytest.approx(max(own + before, mean * waiting) + since)


def test_news_of_others_voids_a_quote_and_what_is_no_news_does_not():
    work = Workload(Prior())
    quoted(work)
    work.heard_of_others(0, 0)
    assert work.quote.holds(NOW)
    for figures in ((1, 0), (1, 5)):
        work.heard_of_others(*figures)
        assert not work.quote.holds(NOW)
        quoted(work)
        work.heard_of_others(*figures)
        assert work.quote.holds(NOW)


def test_a_batch_that_others_fill_is_full():
    work = Workload(Prior())
    full_at(work, 4)
    quoted(work)
    assert work.ahead(3, NOW) is not None
    work.heard_of_others(1, 0)
    quoted(work)
    assert work.ahead(3, NOW) is None


# --- a new process


def test_of_the_process_before_nothing_holds():
    work, fresh = Workload(Prior()), Workload(Prior())
    kept, pace, epoch = work.quote, work.pace, work.epoch
    full_at(work, 4)
    work.began(900.0, NOW)
    work.began(100.0, NOW, streamed=False)
    work.heard_of_others(2, 700)
    work.ended(3.0)
    for _ in range(20):
        work.pace.note_first_token(uncached=8_000.0, ahead=0.0, seconds=20.0, now=NOW)
    assert work.pace.prefill < Prior().prefill
    work.reset()
    assert load(work) == load(fresh)
    assert (work.others_in_flight, work.pending) == (0, 0)
    assert work.pace is not pace
    assert (work.pace.prefill, work.pace.step, work.pace.slots) == (Prior().prefill, Prior().step, None)
    assert work.quote is kept  # whoever has it goes on having the one that counts
    assert work.epoch > epoch
    work.scraped(reading(preemptions=50), NOW + 1)
    assert load(work).preempting == 0.0  # against nothing of the process before


def test_the_next_process_is_supposed_to_be_what_is_usual_in_the_pool():
    work = Workload(Prior())
    work.suppose(Prior(prefill=500.0, step=0.3))
    assert (work.pace.prefill, work.pace.step) == pytest.approx((500.0, 0.3))
    work.pace.note_first_token(uncached=100_000.0, ahead=0.0, seconds=10.0, now=NOW)
    assert work.pace.prefill > 510.0
    work.reset()
    assert (work.pace.prefill, work.pace.step) == pytest.approx((500.0, 0.3))


# --- what waits before a request


def test_what_is_ahead_is_what_the_quote_counted_and_gets_less_with_time():
    work = Workload(Prior())
    work.began(4_000.0, NOW)
    quoted(work)
    ahead = work.ahead(0, NOW)
    assert ahead == pytest.approx(estimate(load(work), 0.0, work.pace).queue * work.pace.prefill)
    assert ahead == pytest.approx(4_000.0)
    later = work.ahead(0, NOW + FRESH / 2)
    assert later is not None
    assert 0.0 < later < ahead


def test_where_nobody_asked_for_a_quote_nothing_is_said_of_what_is_ahead():
    work = Workload(Prior())
    assert work.ahead(0, NOW) is None
    quoted(work)
    assert work.ahead(0, NOW) == 0.0
    assert work.ahead(0, NOW + FRESH) is None


@pytest.mark.parametrize(
    ("in_flight", "running", "waiting", "age", "full"),
    [
        (3, 0, 0, 0.0, False),
        (4, 0, 0, 0.0, True),
        (0, 4, 0, 0.0, True),  # with requests of other instances
        (0, 2, 2, HALF_LIFE, True),
        (0, 2, 1, 0.0, False),
        (0, 4, 9, HALF_LIFE + 0.1, False),  # long ago
    ],
)
def test_a_full_batch_has_no_tokens_ahead_that_could_be_counted(in_flight, running, waiting, age, full):
    work = Workload(Prior())
    full_at(work, 4)
    work.scraped(reading(running=running, waiting=waiting), NOW - age)
    quoted(work)
    assert (work.ahead(in_flight, NOW) is None) is full


def test_scrapes_that_say_the_same_cost_nothing_and_lose_nothing():
    """An idle engine's: what it was before and after them is told at once, over all of the time."""
    work, steady = Workload(Prior()), Workload(Prior())
    first, later = reading(itl_sum=1, itl_count=100), reading(itl_sum=9, itl_count=200)
    for each in (work, steady):
        each.scraped(first, NOW)
    for second in range(1, 10):
        work.scraped(reading(itl_sum=1, itl_count=100), NOW + second)
    for each in (work, steady):
        each.scraped(later, NOW + 10)
    assert work.pace.step == steady.pace.step != Pace(Prior()).step
    assert work.load(0, 1.0, NOW + 10).age == 0.0
