"""What is learned of a replica: from a plain model with noise, from a simulated engine, and never from garbage."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from types import MappingProxyType

import pytest

from gateway.fleet.balance.pace import FIRST_PASSES, PASS_TOKENS, BytesPerToken, Pace, Prior, usual
from gateway.fleet.signals import Reading, Signal
from loadtests.engine.scheduler import Job, Scheduler
from loadtests.engine.spec import EngineSpec

PRIOR = Prior()
NOTHING = frozenset[Signal]()


def reading(**values):
    return Reading(MappingProxyType({Signal(name): float(value) for name, value in values.items()}), NOTHING)


def first_token(rate, tokens, step=PRIOR.step):
    """What a request waits at a replica of this rate, after the model that estimates go by."""
    return tokens / rate + step * (FIRST_PASSES + tokens / PASS_TOKENS)


def serve(pace, rate, count, *, begin=0.0, noise=0.2, outliers=0.0, seed=1):
    """So many own requests, each half a second after the one before; ``outliers`` is the share that take 50 times."""
    dice = random.Random(seed)
    for number in range(count):
        tokens, ahead = dice.uniform(200, 4000), dice.choice([0.0, 0.0, dice.uniform(0, 4000)])
        seconds = first_token(rate, tokens + ahead) * math.exp(dice.gauss(0, noise))
        if dice.random() < outliers:
            seconds *= 50
        pace.note_first_token(uncached=tokens, ahead=ahead, seconds=seconds, now=begin + number / 2)


@dataclass
class Engine:
    """A simulated engine under open-loop load, whose own requests and scrapes are told to a pace."""

    spec: EngineSpec
    pace: Pace
    own: bool = True
    now: float = 0.0
    counters: dict[Signal, float] = field(default_factory=dict)
    unanswered: float = 0.0

    def __post_init__(self):
        self.scheduler = Scheduler(self.spec)
        self.sent: dict[int, tuple[float, float]] = {}
        self.before: Reading | None = None
        self.counters = dict.fromkeys(Signal, 0.0)

    def run(self, seconds, arrivals, sizes, *, output=30, seed=3, scrape=1.0):
        """``arrivals`` a second, with prompts between the two ``sizes``."""
        dice, end = random.Random(seed), self.now + seconds
        arrival, next_scrape = self.now, self.now
        while self.now < end:
            while arrival <= self.now:
                self._submit(Job(dice.randint(*sizes), output))
                arrival += dice.expovariate(arrivals)
            if next_scrape <= self.now:
                self._scrape(scrape)
                next_scrape += scrape
            step = self.scheduler.begin(self.now)
            if step is None:
                self.now = min(arrival, next_scrape)
                continue
            self.now += step.seconds
            for token in self.scheduler.finish(step, self.now):
                self._tell(token)

    def _submit(self, job):
        self.sent[id(job)] = (job.prompt_tokens, self.unanswered)
        self.unanswered += job.prompt_tokens
        self.scheduler.submit(job, self.now)

    def _tell(self, token):
        job, counters = token.job, self.counters
        if token.index == 0:
            tokens, ahead = self.sent.pop(id(job))
            self.unanswered -= tokens
            wait = self.now - job.arrived
            counters[Signal.PROMPT_TOKENS] += tokens
            counters[Signal.TTFT_SUM] += wait
            counters[Signal.TTFT_COUNT] += 1
            if self.own:
                self.pace.note_first_token(uncached=tokens, ahead=ahead, seconds=wait, now=self.now)
        else:
            counters[Signal.ITL_SUM] += token.gap
            counters[Signal.ITL_COUNT] += 1
        if token.last:
            counters[Signal.PREFILL_SUM] += job.first_token - job.scheduled
            counters[Signal.PREFILL_COUNT] += 1

    def _scrape(self, seconds):
        counters, scheduler = self.counters, self.scheduler
        counters[Signal.RUNNING], counters[Signal.WAITING] = len(scheduler.running), len(scheduler.waiting)
        counters[Signal.KV_USE] = scheduler.kv_usage
        after = Reading(MappingProxyType(dict(counters)), NOTHING)
        if self.before is not None:
            self.pace.note_scrape(self.before, after, seconds)
        self.before = after


@pytest.fixture
def pace():
    return Pace(PRIOR)


def test_at_first_it_is_what_the_prior_says(pace):
    assert (pace.prefill, pace.step, pace.slots, pace.known) == (pytest.approx(8000), pytest.approx(0.02), None, 0)


# --- own first tokens


@pytest.mark.parametrize("rate", [300, 2000, 8000, 40_000, 200_000])
def test_own_requests_teach_the_rate_from_any_prior(pace, rate):
    serve(pace, rate, 60, noise=0.1)
    # What is fast drowns in the step that the prior assumes: of 200,000 no more can be seen than that it is fast.
    assert pace.prefill == pytest.approx(rate, rel=0.25 if rate <= 40_000 else 0.5)


def test_the_first_own_request_tells_already(pace):
    pace.note_first_token(uncached=4000, ahead=0, seconds=first_token(1000, 4000), now=0)
    assert pace.prefill < 4000


@pytest.mark.parametrize("factor", [0.5, 0.25, 2, 4])
def test_another_speed_is_found_out_within_tens_of_requests(pace, factor):
    serve(pace, 8000, 100)
    serve(pace, 8000 * factor, 40, begin=100, seed=2)
    assert pace.prefill == pytest.approx(8000 * factor, rel=0.35)


def test_single_requests_that_waited_for_something_else_hardly_move_it(pace):
    serve(pace, 8000, 100)
    before = pace.prefill
    pace.note_first_token(uncached=1000, ahead=0, seconds=300, now=50)
    assert before * 0.93 < pace.prefill < before


def test_it_is_the_middle_not_the_mean_that_counts(pace):
    serve(pace, 8000, 400, outliers=0.05)
    assert pace.prefill == pytest.approx(8000, rel=0.3)


def test_a_few_tokens_say_nothing_of_the_rate(pace):
    serve(pace, 8000, 60)
    before = pace.prefill
    for number in range(100):
        pace.note_first_token(uncached=5, ahead=0, seconds=0.2, now=30 + number / 10)
    assert pace.prefill == pytest.approx(before, rel=0.05)


def test_what_was_ahead_counts_as_work():
    alone, behind = Pace(PRIOR), Pace(PRIOR)
    for number in range(30):
        alone.note_first_token(uncached=4000, ahead=0, seconds=1.0, now=number)
        behind.note_first_token(uncached=1000, ahead=3000, seconds=1.0, now=number)
    assert alone.prefill == behind.prefill


def test_a_first_token_sooner_than_a_step_shortens_the_step(pace):
    for number in range(40):
        pace.note_first_token(uncached=10, ahead=0, seconds=0.004, now=number / 10)
    assert pace.step < 0.008


# --- scrapes


def test_counters_teach_rate_and_step(pace):
    # Half of the time goes to prefill, and with it half of the time between tokens.
    before = reading(**dict.fromkeys(GROWN, 0))
    after = reading(**GROWN)
    for _ in range(200):
        pace.note_scrape(before, after, 1.0)
    assert pace.prefill == pytest.approx(2000, rel=0.15)
    assert pace.step == pytest.approx(0.025, rel=0.15)


GROWN = {
    "prompt_tokens": 3000,
    "cache_hits": 2000,
    "prefill_sum": 0.53,
    "prefill_count": 1,
    "ttft_count": 1,
    "itl_sum": 2,
    "itl_count": 40,
}


def test_without_a_histogram_of_prefill_the_time_to_the_first_token_is_the_next_best(pace):
    before = reading(prompt_tokens=0, ttft_sum=0, ttft_count=0)
    after = reading(prompt_tokens=2000, ttft_sum=20, ttft_count=1)
    for _ in range(60):
        pace.note_scrape(before, after, 1.0)
    assert pace.prefill == pytest.approx(2000, rel=0.15)


def test_own_requests_outrank_scrapes(pace):
    serve(pace, 8000, 100)
    before = reading(prompt_tokens=0, prefill_sum=0, prefill_count=0, ttft_count=0)
    after = reading(prompt_tokens=1000, prefill_sum=9, prefill_count=10, ttft_count=10)
    for number in range(30):
        for _ in range(4):
            pace.note_scrape(before, after, 0.25)
        serve(pace, 8000, 2, begin=50 + number, seed=number)
    assert pace.prefill == pytest.approx(8000, rel=0.25)


STILL = {signal.value: 5.0 for signal in Signal}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (STILL, STILL),
        ({}, {}),
        ({}, STILL),
        (STILL, {}),
        (dict.fromkeys(STILL, 1000000000.0), STILL),
        (dict.fromkeys(STILL, 0), dict.fromkeys(STILL, math.inf)),
        (dict.fromkeys(STILL, 0), dict.fromkeys(STILL, math.nan)),
        (dict.fromkeys(STILL, math.nan), STILL),
    ],
)
@pytest.mark.parametrize("seconds", [1.0, 0.0, -1.0, math.nan, math.inf])
def test_counters_that_stand_still_go_back_are_missing_or_are_garbage_teach_nothing(pace, before, after, seconds):
    for _ in range(20):
        pace.note_scrape(reading(**before), reading(**after), seconds)
    assert (pace.prefill, pace.step, pace.slots) == (pytest.approx(8000), pytest.approx(0.02), None)


# --- slots


def batches(pace, *found, kv=0.5, entering=3):
    """Scrapes that found so many running and waiting."""
    for running, waiting in found:
        before = reading(ttft_count=0)
        pace.note_scrape(before, reading(ttft_count=entering, running=running, waiting=waiting, kv_use=kv), 1.0)


def test_a_batch_that_stays_full_while_others_wait_shows_the_slots(pace):
    batches(pace, (40, 0), (64, 2), (64, 5))
    assert pace.slots is None
    batches(pace, (64, 1))
    assert pace.slots == 64
    batches(pace, (10, 0))
    assert pace.slots == 64


def test_a_batch_that_has_become_larger_is_not_forgotten_meanwhile(pace):
    """Limits hang on it: without it, all that waits for a place would be let go at once."""
    batches(pace, *[(64, 5)] * 3)
    batches(pace, (65, 0))
    assert pace.slots == 65
    batches(pace, (80, 3), (70, 0))
    assert pace.slots == 80


def test_a_batch_that_was_found_larger_is_tried_until_it_is_seen_full(pace):
    """What waited for an adapter or a grammar looked like a full batch: its true size is not to take an hour."""
    batches(pace, *[(3, 5)] * 3)
    assert (pace.slots, pace.grown) == (3, False)
    batches(pace, (4, 0))
    assert (pace.slots, pace.grown) == (4, True)
    size, scrapes = 4, 0
    while pace.grown:
        size = min(size + max(1, size // 8), 256)  # as ``spare`` lets in
        batches(pace, (size, 0 if size < 256 else 2))
        scrapes += 1
        assert scrapes < 60
    assert pace.slots == 256


@pytest.mark.parametrize(
    ("found", "how"),
    [
        ([(64, 0)] * 9, {}),  # nobody waits
        ([(100, 0), *[(64, 5)] * 9], {}),  # more were seen
        ([(64, 5), (63, 5)] * 9, {}),  # it changes
        ([(64, 5)] * 9, {"kv": 0.97}),  # memory is what lacks
        ([(1, 5)] * 9, {"entering": 0}),  # one long prefill
        ([(0, 5)] * 9, {}),
        ([(math.nan, 5)] * 9, {}),
        ([(math.inf, 5)] * 9, {}),
        ([(1e300, 5)] * 9, {}),
        ([(-4, 5)] * 9, {}),
    ],
)
def test_a_batch_that_waits_for_something_else_shows_none(pace, found, how):
    batches(pace, *found, **how)
    assert pace.slots is None


# --- against a simulated engine

FAST = {"max_num_batched_tokens": 2048, "kv_blocks": 8192, "step_time_per_sequence": 0.0001}


@pytest.mark.parametrize(
    ("rate", "step", "arrivals"), [(2000, 0.03, 1), (2000, 0.03, 2), (8000, 0.012, 5), (40_000, 0.004, 10)]
)
def test_a_simulated_engine_is_found_out(pace, rate, step, arrivals):
    spec = EngineSpec(prefill_tokens_per_second=rate, step_time=step, **FAST)
    Engine(spec, pace).run(60, arrivals, (50, 1500))
    assert pace.prefill == pytest.approx(rate, rel=0.35)
    assert pace.step == pytest.approx(step, rel=0.5)


@pytest.mark.parametrize("rate", [2000, 40_000])
def test_requests_of_others_tell_of_an_engine_too(pace, rate):
    spec = EngineSpec(prefill_tokens_per_second=rate, step_time=0.01, **FAST)
    Engine(spec, pace, own=False).run(60, rate / 4000, (50, 3000))
    assert pace.prefill == pytest.approx(rate, rel=0.6)


def test_the_slots_of_an_engine_are_found_out(pace):
    spec = EngineSpec(prefill_tokens_per_second=8000, step_time=0.01, max_num_seqs=24, **FAST)
    engine = Engine(spec, pace)
    engine.run(20, 5, (50, 500), output=60)
    assert pace.slots is None
    engine.run(20, 60, (50, 200), output=60)
    assert pace.slots == 24


# --- what fades


def test_who_is_not_heard_of_is_thought_usual_again(pace):
    serve(pace, 500, 60)
    assert pace.prefill < 700
    pace.suppose(Prior(prefill=8000))
    assert pace.prefill < 700
    for _ in range(600):
        pace.note_scrape(reading(), reading(), 1.0)
    assert pace.prefill > 7000


def test_who_is_heard_of_is_not(pace):
    pace.suppose(Prior(prefill=8000))
    for minute in range(10):
        serve(pace, 500, 10, begin=60 * minute, seed=minute)
        for _ in range(60):
            pace.note_scrape(reading(), reading(), 1.0)
    assert pace.prefill < 1500


def test_after_a_silence_one_request_tells_more(pace):
    other = Pace(PRIOR)
    for each in (pace, other):
        serve(each, 8000, 60)
    pace.note_first_token(uncached=4000, ahead=0, seconds=4, now=30)
    other.note_first_token(uncached=4000, ahead=0, seconds=4, now=3000)
    assert other.prefill < 0.98 * pace.prefill


@pytest.mark.parametrize("now", [-1e9, 1e9, math.inf, -math.inf, math.nan])
def test_a_clock_that_jumps_costs_at_most_half_of_what_is_known(pace, now):
    serve(pace, 2000, 60)
    known = pace.known
    pace.note_first_token(uncached=2000, ahead=0, seconds=first_token(2000, 2000), now=now)
    assert pace.known >= known / 2
    assert pace.prefill == pytest.approx(2000, rel=0.5)


def test_what_is_usual_is_the_middle_of_those_that_have_shown_themselves():
    paces = [Pace(PRIOR) for _ in range(4)]
    assert usual(paces, PRIOR) == PRIOR
    assert usual([], PRIOR) == PRIOR
    for pace, rate in zip(paces, (1000, 30_000, 40_000), strict=False):
        serve(pace, rate, 60)
    supposed = usual(paces, PRIOR)
    assert supposed.prefill == paces[1].prefill
    assert supposed.slots == PRIOR.slots
    paces[3].suppose(supposed)
    assert paces[3].prefill == pytest.approx(paces[1].prefill)


# --- garbage


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_a_time_that_is_none_teaches_nothing(pace, seconds):
    pace.note_first_token(uncached=100, ahead=100, seconds=seconds, now=1)
    assert (pace.prefill, pace.known) == (pytest.approx(8000), 0)


@pytest.mark.parametrize(
    ("uncached", "ahead"), [(-5, 0), (0, -5), (math.nan, 0), (0, math.nan), (math.inf, 0), (0, math.inf), (0, 0)]
)
def test_tokens_that_are_none_teach_nothing(pace, uncached, ahead):
    pace.note_first_token(uncached=uncached, ahead=ahead, seconds=1.0, now=1)
    assert (pace.prefill, pace.known) == (pytest.approx(8000), 0)


@pytest.mark.parametrize("figure", [0.0, -3.0, math.nan, math.inf, 1e-300, 1e300])
def test_a_prior_is_bounded(figure):
    pace = Pace(Prior(prefill=figure, step=figure))
    pace.suppose(Prior(prefill=figure, step=figure))
    assert 1 <= pace.prefill <= 1e7
    assert 1e-5 <= pace.step <= 10


# --- bytes for each token


@pytest.mark.parametrize("ratio", [1.1, 3.2, 4.7])
def test_bytes_for_each_token_are_learned(ratio):
    learned, dice = BytesPerToken(), random.Random(4)
    assert learned.value == pytest.approx(4)
    for _ in range(100):
        tokens = dice.randint(20, 4000)
        learned.note(int(tokens * ratio * dice.uniform(0.9, 1.1)), tokens)
    assert learned.value == pytest.approx(ratio, rel=0.1)


def test_one_odd_prompt_hardly_moves_them():
    learned = BytesPerToken()
    for _ in range(100):
        learned.note(4000, 1000)
    learned.note(40_000_000, 1000)  # an image
    assert learned.value == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize(
    ("size", "tokens", "value"),
    [(10**9, 1000, 16), (1, 10**6, 0.5), (0, 10, 4), (10, 0, 4), (-1, 5, 4), (math.nan, 5, 4), (5, math.inf, 4)],
)
def test_they_stay_within_bounds(size, tokens, value):
    learned = BytesPerToken()
    for _ in range(200):
        learned.note(size, tokens)
    assert learned.value == pytest.approx(value)
