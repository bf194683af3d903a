"""The decisions of fleet health under any order of events."""

from __future__ import annotations

from bisect import bisect_right
from itertools import cycle, islice, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.fleet.breaker import Breaker, ejection_time, jittered, may_eject
from gateway.fleet.progress import Progress
from gateway.policy.fleet import Breaker as BreakerPolicy
from gateway.policy.fleet import Health, Retries
from gateway.steps.retry import RetryBudget

STEADY = settings(deadline=None, derandomize=True)

# Eighths of a second: sums of them are exact.
TICK = 0.125
GAPS = st.integers(1, 80).map(lambda ticks: ticks * TICK)  # up to the longest gap that looks leave
LOOKS = st.lists(st.tuples(GAPS, st.booleans(), st.booleans()), min_size=1, max_size=80)
HANGS = st.integers(4, 400).map(lambda ticks: ticks * TICK)
RANDOM = st.floats(0, 1, exclude_max=True)


class Engine:
    """Moves at given moments; each movement is a token counted or a byte sent."""

    def __init__(self, moves: list[float], *, speaks: bool) -> None:
        self.moves = moves
        self.speaks = speaks

    def counters(self, now: float) -> tuple[float, ...]:
        return (7.0, 0.0 if self.speaks else float(bisect_right(self.moves, now)))

    def heard(self, now: float) -> float:
        past = bisect_right(self.moves, now)
        return self.moves[past - 1] if self.speaks and past else 0.0


@STEADY
@given(
    looks=st.lists(st.tuples(st.floats(0.02, 3), st.booleans(), st.booleans()), min_size=1, max_size=60),
    pauses=st.lists(st.floats(0.2, 1), min_size=1, max_size=30),
    hang=HANGS,
    speaks=st.booleans(),
)
def test_what_moves_at_least_each_t_is_never_hung(looks, pauses, hang, speaks):
    begin = now = 1.0
    moves = [begin]
    for pause in islice(cycle(pauses), 3 * 60 * 5):
        moves.append(moves[-1] + max(_ticks(pause * hang), TICK))
    engine, progress = Engine(moves, speaks=speaks), Progress(begin)
    # How long a movement may stay unseen is another rule's matter: blind_hang is out of reach here.
    health = Health(hang=hang, blind_hang=1e9)
    for gap, pending, blind in looks:
        now += _ticks(gap * hang)
        counters = None if blind else engine.counters(now)
        progress.note(now=now, pending=pending, counters=counters, heard=engine.heard(now))
        assert not progress.hung(now, health)
        assert progress.stalled_for(now) <= now - begin
    assert now < moves[-1]


def _ticks(seconds: float) -> float:
    return int(seconds / TICK) * TICK


@STEADY
@given(looks=LOOKS, hang=HANGS, moves=st.lists(st.integers(0, 2000), max_size=40), speaks=st.booleans())
def test_what_has_stopped_is_hung_at_the_first_look_after_t(looks, hang, moves, speaks):
    engine, progress, now = Engine(sorted(1.0 + n * TICK for n in moves), speaks=speaks), Progress(1.0), 1.0
    health = Health(hang=hang, blind_hang=1e9)
    for gap, pending, blind in looks:
        now += gap
        counters = None if blind else engine.counters(now)
        progress.note(now=now, pending=pending, counters=counters, heard=engine.heard(now))
    # From here on it stands still with work to do, and can be read.
    engine.moves = [at for at in engine.moves if at <= now]
    frozen_at = now = now + looks[0][0]
    progress.note(now=now, pending=True, counters=engine.counters(now), heard=engine.heard(now))
    for gap, _, _ in cycle(looks):
        now += gap
        progress.note(now=now, pending=True, counters=engine.counters(now), heard=engine.heard(now))
        if now - frozen_at >= hang:
            break
    assert progress.hung(now, health)


@STEADY
@given(looks=LOOKS, blind_hang=HANGS)
def test_without_counters_and_bytes_it_is_hung_at_the_first_look_after_the_longer_limit(looks, blind_hang):
    progress, now = Progress(1.0), 1.0
    progress.note(now=now, pending=True, counters=None, heard=0.0)
    begin = now
    for gap, _, _ in looks * 50:
        now += gap
        progress.note(now=now, pending=True, counters=None, heard=0.0)
        assert progress.hung(now, Health(hang=0.5, blind_hang=blind_hang)) == (now - begin >= blind_hang)


@STEADY
@given(
    notes=st.lists(
        st.tuples(
            st.floats(-1e9, 1e9),
            st.booleans(),
            st.none() | st.lists(st.integers(0, 2).map(float), max_size=2).map(tuple),
            st.floats(-1e9, 1e9),
            st.floats(-1e9, 1e9),
        ),
        max_size=40,
    )
)
def test_whatever_the_clock_does_no_age_is_negative_and_no_stall_is_longer_than_what_was_looked_at(notes):
    progress, now = Progress(0.0), 0.0
    for count, (now, pending, counters, heard, later) in enumerate(notes, 1):
        progress.note(now=now, pending=pending, counters=counters, heard=heard)
        for when in (now, later):
            assert 0 <= progress.stalled_for(when) <= 10.0 * (count + 1)
            assert 0 <= progress.idle_for(when) <= max(when - min(0.0, *(n[0] for n in notes)), 0.0)
            progress.moved_within(when, 1.0)
        assert progress.idle_for(now) <= 2e9


OUTCOMES = st.lists(
    st.tuples(
        st.sampled_from(["succeed", "fail", "look", "reset"]), st.integers(0, 90) | st.just(400), st.integers(1, 8)
    ),
    max_size=80,
)
POLICIES = st.builds(
    BreakerPolicy,
    consecutive=st.integers(1, 12),
    error_rate=st.sampled_from([0.01, 0.25, 0.5, 1.0]),
    requests=st.integers(1, 20),
    window=st.just(10.0),
)


@STEADY
@given(policy=POLICIES, outcomes=OUTCOMES)
def test_a_breaker_is_a_list_of_outcomes_of_which_the_last_half_to_whole_window_count(policy, outcomes):
    breaker, now = Breaker(policy), 0.0
    listed: list[tuple[float, bool]] = []
    streak = 0
    for verb, ticks, times in outcomes:
        now += ticks * TICK
        if verb == "reset":
            breaker.reset()
            listed, streak = [], 0
        for _ in range(times if verb in {"succeed", "fail"} else 0):
            getattr(breaker, verb)(now)
            listed.append((now, verb == "fail"))
            streak = streak + 1 if verb == "fail" else 0
        said = breaker.open(now, policy)
        if streak >= policy.consecutive:
            assert said == f"{streak} failures in a row"
            continue
        # It must say what some window between half and whole says: they differ by where they begin.
        starts = [now - 5.0, *(at for at, _ in listed if now - 10.0 < at <= now - 5.0)]
        assert said in {_said([failed for at, failed in listed if at >= start], policy) for start in starts} | {
            _said([failed for at, failed in listed if at > now - 5.0], policy)
        }


def _said(outcomes: list[bool], policy: BreakerPolicy) -> str | None:
    failed, requests = sum(outcomes), len(outcomes)
    if not failed or requests < policy.requests or failed / requests < policy.error_rate:
        return None
    return f"{100 * failed / requests:.0f} % of {requests} requests failed"


@STEADY
@given(eject=st.floats(0.1, 1000), most=st.floats(1, 100), randoms=st.lists(RANDOM, min_size=20, max_size=20))
def test_ejections_grow_until_the_bound_whatever_the_jitter_and_stay_within_it(eject, most, randoms):
    policy = BreakerPolicy(eject=eject, eject_most=eject * most)
    times = [ejection_time(number, policy, lambda r=r: r) for number, r in enumerate(randoms, 1)]
    assert all(0.8 * eject * 0.999 <= seconds <= 1.2 * policy.eject_most * 1.001 for seconds in times)
    for number, (before, after) in enumerate(pairwise(times), 1):
        if eject * 2**number <= policy.eject_most:
            assert after > before


@STEADY
@given(pool=st.integers(0, 300), share=st.floats(0.01, 1), more=st.integers(0, 5))
def test_a_pool_never_loses_its_last_nor_more_than_its_share_but_one_of_two(pool, share, more):
    out = next(out for out in range(pool + 1) if not may_eject(out, pool, share))
    assert out <= max(pool * share + 1e-6, 1)
    assert pool == 0 or out <= pool - 1
    assert pool < 2 or out >= 1
    assert not may_eject(out + more, pool, share)


@STEADY
@given(interval=st.floats(0.01, 1e4), random=RANDOM)
def test_a_loop_is_never_much_faster_or_slower_than_it_should_be(interval, random):
    assert 0.899 * interval <= jittered(interval, lambda: random) <= 1.101 * interval


@STEADY
@given(
    share=st.floats(0, 1),
    at_least=st.integers(0, 5),
    acts=st.lists(
        st.tuples(st.sampled_from(["enter", "enter", "retry", "end", "leave"]), st.integers(0, 50)), max_size=200
    ),
)
def test_a_budget_is_never_exceeded_and_never_leaks(share, at_least, acts):
    policy, budget = Retries(share=share, at_least=at_least), RetryBudget()
    requests: list[bool] = []  # for each active request, whether it is on a retry
    for act, which in acts:
        if act == "enter":
            budget.enter()
            requests.append(False)
            continue
        if not requests:
            continue
        index = which % len(requests)
        if act == "retry" and not requests[index]:
            allowed = sum(requests) + 1 <= max(at_least, share * len(requests))
            requests[index] = budget.take(policy)
            assert requests[index] == allowed
        elif act == "end" and requests[index]:
            budget.give_back()
            requests[index] = False
        elif act == "leave":
            if requests.pop(index):
                budget.give_back()
            budget.leave()
        assert (budget.active, budget.retrying) == (len(requests), sum(requests))
    for retrying in requests:
        if retrying:
            budget.give_back()
        budget.leave()
    assert (budget.active, budget.retrying) == (0, 0)
