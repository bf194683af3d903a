"""Limits under any interleaving of requests, settlements, ends and time."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.limits import gcra
from gateway.limits.interfaces import Lease, LimitReached
from gateway.limits.local import LocalLimiter
from gateway.limits.outbox import Outbox
from gateway.limits.question import Figure, figures_of
from gateway.limits.scripts import ADMIT, DELIVER, key_of
from gateway.limits.sources import FailureGate
from gateway.model import Budget, Limits
from gateway.redislink import RedisLink
from gateway.stateurl import redis_place
from tests.redisserver import RedisServer

STEADY = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])

FIGURES = st.none() | st.integers(1, 50)
LIMITS = st.builds(Limits, FIGURES, FIGURES, FIGURES, st.none() | st.integers(1, 4))
# Time that stands still, creeps, passes and jumps: a suspended host, a clock that was set.
STEPS = st.one_of(
    st.just(0.0), st.floats(0.001, 3.0), st.floats(3.0, 100.0), st.sampled_from([86_400.0, 1e6]), st.just(0.0)
)
SCHEDULES = st.lists(
    st.tuples(
        st.sampled_from(["admit", "admit", "admit", "settle", "close", "adopt"]),
        st.integers(0, 60),
        st.integers(0, 2),
        STEPS,
    ),
    max_size=60,
)
HOLDERS = (("principal:a",), ("principal:b",), ("principal:a", "tenant:t"))


class Clock:
    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def counts(limiter: LocalLimiter, now: float) -> dict[str, tuple[float, ...]]:
    """What each holder has used, the idle ones left out."""
    rows = {
        holder: (max(a.requests, now), max(a.tokens, now), max(a.day, now), a.in_flight)
        for holder, a in limiter._accounts.items()
    }
    return {holder: row for holder, row in rows.items() if row != (now, now, now, 0)}


@STEADY
@given(figure=st.integers(1, 40), schedule=st.lists(st.tuples(st.integers(1, 10), STEPS), max_size=80))
def test_no_window_holds_more_than_the_figure_and_what_came_back_in_it(figure, schedule):
    clock = Clock()
    limiter = LocalLimiter(clock)
    budget = [Budget("principal:a", Limits(requests_per_minute=figure, tokens_per_day=figure))]
    admitted: list[tuple[float, int]] = []
    for units, step in schedule:
        clock.now += step
        try:
            limiter.admit(budget, units)
        except LimitReached:
            continue
        admitted.append((clock.now, units))
    for begin in range(len(admitted)):
        for end in range(begin, len(admitted)):
            width = admitted[end][0] - admitted[begin][0]
            inside = admitted[begin : end + 1]
            assert len(inside) <= figure + width * figure / gcra.MINUTE + gcra.GRACE + 1e-6
            assert sum(units for _, units in inside) <= figure + width * figure / gcra.DAY + gcra.GRACE + 1e-6


class Story:
    """A limiter, a schedule, and the leases that it made."""

    def __init__(self, limits: list[Limits]) -> None:
        self.clock = Clock()
        self.limiter = LocalLimiter(self.clock)
        self.limits = dict(zip(("principal:a", "principal:b", "tenant:t"), limits, strict=True))
        self.leases: list[Lease] = []

    def budgets(self, which: int) -> list[Budget]:
        return [Budget(holder, self.limits[holder]) for holder in HOLDERS[which]]

    def is_new(self, budget: Budget) -> bool:
        """Whether the limiter has not met these figures of the holder yet."""
        account = self.limiter._accounts.get(budget.holder)
        return account is None or account.limits is not budget.limits

    def play(self, verb: str, number: int, which: int, step: float) -> LimitReached | None:
        self.clock.now += step
        if verb == "admit":
            try:
                self.leases.append(self.limiter.admit(self.budgets(which), number))
            except LimitReached as error:
                return error
        elif verb == "adopt":
            holder = ("principal:a", "principal:b", "tenant:t")[which]
            self.limits[holder] = Limits(number or None, number or None, None, number or None)
        elif self.leases:
            lease = self.leases[number % len(self.leases)]
            lease.close() if verb == "close" else lease.settle(number)
        return None


THREE = st.lists(LIMITS, min_size=3, max_size=3)


@STEADY
@given(limits=THREE, schedule=SCHEDULES)
def test_a_refused_request_changes_nothing_and_an_admitted_one_all_its_budgets(limits, schedule):
    story = Story(limits)
    for verb, number, which, step in schedule:
        if verb == "adopt":
            continue  # a limit that is gone is forgotten by the next request, whether it is admitted or not
        story.clock.now += step
        before = counts(story.limiter, story.clock.now)
        refused = story.play(verb, number, which, 0.0)
        after = counts(story.limiter, story.clock.now)
        if refused is not None:
            assert after == before
        elif verb == "admit":
            for holder in HOLDERS[which]:
                assert after[holder][3] == before.get(holder, (0, 0, 0, 0))[3] + 1


@STEADY
@given(limits=THREE, schedule=SCHEDULES)
def test_what_is_admitted_is_what_gcra_admits(limits, schedule):
    story = Story(limits)
    tats: dict[tuple[str, str], float] = {}
    flying: dict[str, int] = {}
    for verb, number, which, step in schedule:
        if verb != "admit":
            continue  # a model without leases: nothing is settled and nothing ends
        story.clock.now += step
        budgets = story.budgets(which)
        marks = {
            (budget.holder, figure.kind): gcra.take(
                tats.get((budget.holder, figure.kind), 0.0),
                story.clock.now,
                figure.units,
                figure.spacing,
                figure.period,
            )
            for budget in budgets
            for figure in rates_of(budget, number)
        }
        full = any(
            b.limits.concurrency is not None and flying.get(b.holder, 0) >= b.limits.concurrency for b in budgets
        )
        expected = not full and None not in marks.values()
        assert (story.play("admit", number, which, 0.0) is None) == expected
        if expected:
            tats.update({place: mark for place, mark in marks.items() if mark is not None})
            for budget in budgets:
                flying[budget.holder] = flying.get(budget.holder, 0) + 1


def rates_of(budget: Budget, tokens: int) -> list[Figure]:
    return [figure for figure in figures_of([budget], tokens) if figure.period]


@STEADY
@given(limits=THREE, schedule=SCHEDULES)
def test_whom_the_number_of_requests_refuses_is_told_so_beforehand_and_nobody_else(limits, schedule):
    story = Story(limits)
    for verb, number, which, step in schedule:
        story.clock.now += step
        budgets = story.budgets(which)
        before = counts(story.limiter, story.clock.now)
        spent = story.limiter.spent(budgets)
        assert counts(story.limiter, story.clock.now) == before
        if verb == "admit":
            numbers_alone = copy.deepcopy(story)
            numbers_alone.limits = {holder: Limits(each.requests_per_minute) for holder, each in story.limits.items()}
            by_number = numbers_alone.play("admit", number, which, 0.0)
            asks_nothing = copy.deepcopy(story).play("admit", 0, which, 0.0)
            assert spent is None or by_number is not None
            assert spent is not None or by_number is None or any(map(story.is_new, budgets))
            if spent is not None:
                assert vars(spent) == vars(asks_nothing)
        story.play(verb, number, which, 0.0)


@STEADY
@given(limits=THREE, schedule=SCHEDULES)
def test_a_refused_request_passes_after_the_wait_that_was_said(limits, schedule):
    story = Story(limits)
    for verb, number, which, step in schedule:
        refused = story.play(verb, number, which, step)
        if refused is None:
            continue
        figures = [f for _, each in story.budgets(which) for f in (each.tokens_per_minute, each.tokens_per_day)]
        assert refused.never == any(figure is not None and number > figure for figure in figures)
        if refused.never or refused.spec.code == "concurrency_limited":
            continue
        later = copy.deepcopy(story)
        for lease in later.leases:
            lease.close()
        assert later.play("admit", number, which, refused.retry_after) is None
        if refused.retry_after > 1:
            early = copy.deepcopy(story)
            assert early.play("admit", number, which, refused.retry_after - 1) is not None


@STEADY
@given(
    reserved=st.integers(0, 50),
    used=st.lists(st.integers(-5, 10**9), min_size=1, max_size=3),
    order=st.permutations(["settle", "close", "settle", "close"]),
    step=STEPS,
)
def test_settling_and_closing_again_in_any_order_change_nothing(reserved, used, order, step):
    limits = Limits(tokens_per_minute=50, tokens_per_day=50, concurrency=3)
    once, often = Story([limits] * 3), Story([limits] * 3)
    for story in (once, often):
        story.play("admit", 3, 2, 0.0)
        story.play("admit", reserved, 0, 0.0) if reserved <= 47 else None
        story.clock.now += step
    once.leases[-1].settle(used[0])
    once.leases[-1].close()
    settlements = iter([*used, used[0]])
    for verb in order:
        often.leases[-1].settle(next(settlements, 0)) if verb == "settle" else often.leases[-1].close()
    assert counts(often.limiter, often.clock.now) == counts(once.limiter, once.clock.now)


@STEADY
@given(limits=THREE, schedule=SCHEDULES)
def test_a_debt_is_never_more_than_what_was_used_beyond_the_reserves(limits, schedule):
    story = Story(limits)
    excess = 0
    reserved: dict[int, int] = {}
    for verb, number, which, step in schedule:
        if verb == "adopt":
            continue
        before = len(story.leases)
        if verb == "settle" and story.leases:
            lease = number % before
            excess += max(number - reserved.pop(lease, number), 0)
        story.play(verb, number, which, step)
        if len(story.leases) > before:
            reserved[before] = number
        for holder, account in story.limiter._accounts.items():
            figure = story.limits[holder].tokens_per_minute
            if figure is not None:
                spaced = gcra.spacing(figure, gcra.MINUTE)
                debt = account.tokens - story.clock.now - gcra.reach(spaced, gcra.MINUTE)
                assert debt <= excess * spaced + 1e-6


@STEADY
@given(limits=THREE, schedule=SCHEDULES, most=st.integers(1, 3))
def test_memory_keeps_its_bound_and_every_lease_is_given_back_once(limits, schedule, most):
    story = Story(limits)
    story.limiter._max_holders = most
    for verb, number, which, step in schedule:
        story.play(verb, number, which, step)
        if verb == "admit":
            holding = sum(account.in_flight > 0 for account in story.limiter._accounts.values())
            assert len(story.limiter) <= max(most, holding)
    for lease in story.leases:
        lease.close()
    assert [account.in_flight for account in story.limiter._accounts.values()] == [0] * len(story.limiter)


@STEADY
@given(seconds=st.floats(-1e3, 1e9, allow_nan=False))
def test_what_is_left_is_within_the_figure(seconds):
    for figure in (0, 1, 7, 10**9):
        assert 0 <= gcra.remaining(gcra.ahead(seconds, 0.0), figure, gcra.MINUTE) <= figure


@STEADY
@given(
    moves=st.lists(st.tuples(st.sampled_from("abc"), st.integers(-50, 50), st.booleans()), max_size=60),
    batch=st.integers(1, 20),
)
def test_everything_told_to_an_outbox_is_delivered_once(moves, batch):
    box = Outbox(batch=batch)
    told: dict[str, int] = {}
    told_free, delivered_free = [], []
    delivered: dict[str, float] = {}

    def deliver() -> None:
        found = box.next()
        assert box.next() is found
        if found is None:
            return
        values = iter(found.values)
        for key in found.keys:
            if next(values) == "rate":
                delivered[key] = delivered.get(key, 0) - next(values) + next(values)
            else:
                delivered_free.extend(next(values) for _ in range(next(values)))
        box.delivered(found)

    for number, (key, seconds, sends) in enumerate(moves):
        box.correct(key, seconds)
        box.free(f"places-{key}", f"lease-{number}")
        told[key] = told.get(key, 0) + seconds
        told_free.append(f"lease-{number}")
        if sends:
            deliver()
    while box:
        deliver()
    assert delivered == told
    assert sorted(delivered_free) == sorted(told_free)


@STEADY
@given(
    sources=st.lists(st.ip_addresses().map(str) | st.text(max_size=20), max_size=40),
    per_minute=st.integers(1, 5),
    step=st.floats(0, 30),
)
def test_a_gate_never_blocks_who_failed_less_and_never_for_ever(sources, per_minute, step):
    clock = Clock()
    gate = FailureGate(per_minute, clock, max_sources=20)
    for source in sources:
        gate.failed(source)
        clock.now += step
        assert len(gate) <= 20
        wait = gate.blocked(source)
        assert wait is None or 1 <= wait <= 121
    clock.now += 121
    assert [gate.blocked(source) for source in sources] == [None] * len(sources)


# --- the shared script against the same algorithm


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Runs scripts on a real server, which each call of ``fresh`` empties."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server, asyncio.Runner() as runner:
        link = RedisLink(redis_place(server.url()), timeout=5.0)

        class Store:
            def evaluate(self, *question: Any) -> Any:
                return runner.run(link.evaluate(*question))

            def fresh(self) -> None:
                runner.run(link.run("FLUSHALL"))

        yield Store()
        runner.run(link.close())


MOVES = st.lists(
    st.tuples(st.sampled_from(["admit", "admit", "settle", "close"]), st.integers(0, 40), st.integers(0, 2)),
    max_size=25,
)
# A unit comes back in a second at the soonest: what passes while a test runs is far less than a unit.
SLOW = st.builds(
    Limits, st.none() | st.integers(1, 20), st.none() | st.integers(1, 60), FIGURES, st.none() | st.integers(1, 4)
)


@settings(STEADY, max_examples=25)
@given(limits=st.lists(SLOW, min_size=3, max_size=3), moves=MOVES)
def test_local_and_shared_limits_agree_within_a_unit(store, limits, moves):
    story = Story(limits)
    store.fresh()
    shared: list[tuple[str, list[Figure], int]] = []
    settled: set[int] = set()
    for number, (verb, units, which) in enumerate(moves, 1):
        if verb == "admit":
            figures = figures_of(story.budgets(which), units)
            refused = story.play("admit", units, which, 0.0)
            values = [value for f in figures for value in (f.units, f.spacing, f.period)]
            answer = store.evaluate(ADMIT, [f.key for f in figures], f"lease-{number}", 60, *values)
            assert bool(int(answer[0])) == (refused is None)
            for figure, ahead in zip(figures, answer[1:], strict=True):
                if figure.period:
                    account = story.limiter._accounts[figure.key.removeprefix(key_of(figure.kind, ""))]
                    here = gcra.ahead(getattr(account, figure.kind), story.clock.now)
                    assert math.isclose(here, float(ahead), abs_tol=figure.spacing)
            if refused is None:
                shared.append((f"lease-{number}", figures, units))
        elif story.leases:
            which_lease = units % len(story.leases)
            name, figures, reserved = shared[which_lease]
            story.play(verb, units, which, 0.0)
            deliver(store, number, verb, name, figures, 0 if which_lease in settled else units - reserved)
            if verb == "settle":
                settled.add(which_lease)


def deliver(store: Any, number: int, verb: str, name: str, figures: list[Figure], more: int) -> None:
    box = Outbox()
    for figure in figures:
        if verb == "close" and not figure.period:
            box.free(figure.key, name)
        if verb == "settle" and figure.kind in {"tokens", "day"} and more:
            box.correct(figure.key, more * figure.spacing)
    batch = box.next()
    if batch is not None:
        store.evaluate(DELIVER, [key_of("delivered", "me"), *batch.keys], number, *batch.values)
