"""One replica: what each failure means, probation, ejection, hangs, and what a state brings along."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import (
    EngineBusy,
    EngineClosing,
    EngineDead,
    EngineFailure,
    EngineHung,
    EngineProtocolError,
    EngineRefused,
    EngineReset,
    EngineTimeout,
    EngineUnreachable,
)
from gateway.fleet.engines.vllm import VLLM
from gateway.fleet.life import Sign, State
from gateway.fleet.replica import Replica, Transition
from gateway.fleet.signals import Reading, Signal
from gateway.model import EngineSpec
from gateway.policy.fleet import Breaker, FleetPolicy

POLICY = FleetPolicy(breaker=Breaker(consecutive=3, eject=10.0, eject_most=60.0, probation=3))
PATHS: dict[State, tuple[Sign, ...]] = {
    State.FOUND: (),
    State.STARTING: (Sign.LISTENS,),
    State.WARMING: (Sign.HEALTHY,),
    State.READY: (Sign.HEALTHY, Sign.WARM),
    State.EJECTED: (Sign.HEALTHY, Sign.WARM, Sign.FAILING),
    State.PROBATION: (Sign.HEALTHY, Sign.WARM, Sign.FAILING, Sign.RESTED),
    State.DRAINING: (Sign.DRAIN,),
    State.GONE: (Sign.DRAIN, Sign.EMPTY),
}


class FakeLink:
    """Keeps what it is told."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self.on_lost = on_lost
        self.given_up: list[EngineFailure] = []
        self.sent: list[tuple[Any, ...]] = []
        self.open_connections = 4
        self.last_heard = 0.0
        self.closed = 0

    def give_up(self, failure: Callable[[], EngineFailure]) -> None:
        self.given_up.append(failure())

    def heard(self) -> float:
        return self.last_heard

    def send(self, *order: Any, total: float | None) -> str:
        self.sent.append((*order, total))
        return "an answer"

    def close(self) -> None:
        self.closed += 1


class Bench:
    """A replica with a clock, a policy that can be changed, and all that it told."""

    def __init__(self, state: State = State.READY, *, spare: bool = True) -> None:
        self.now = 100.0
        self.policy = POLICY
        self.spare = spare
        self.asked = 0
        self.told: list[Transition] = []
        self.nudged = 0
        self.random = 0.5
        self.replica = Replica(
            EngineSpec("http://127.0.0.1:8001"),
            FakeLink,  # type: ignore[arg-type]
            lambda: self.policy,
            self.told.append,
            self._may_go,
            origin="configuration",
            now=lambda: self.now,
            random=lambda: self.random,
            wall=lambda: 5_000.0 + self.now,
        )
        self.replica.nudge = self._nudge
        for sign in PATHS[state]:
            assert self.replica.take(sign, "as told")
        assert self.replica.life.state is state
        self.told.clear()
        self.link: Any = self.replica.link

    def _nudge(self) -> None:
        self.nudged += 1

    def _may_go(self, replica: Replica) -> bool:
        self.asked += 1
        return self.spare

    @property
    def state(self) -> State:
        return self.replica.life.state


# --- what a failure means

REFUSED_BY_ENGINE = EngineRefused(elsewhere=True, fault=True)
NO_FAULT = EngineRefused("invalid_request")

# failure, state after one of it, state after three of it in a row, whether it is looked at now
MEANINGS = [
    (EngineUnreachable(), State.EJECTED, State.EJECTED, True),
    (EngineUnreachable(slow=True), State.READY, State.EJECTED, False),
    (EngineClosing(), State.EJECTED, State.EJECTED, True),
    (EngineDead(), State.EJECTED, State.EJECTED, True),
    (EngineReset(), State.READY, State.EJECTED, False),
    (EngineTimeout(), State.READY, State.EJECTED, False),
    (EngineProtocolError(), State.READY, State.EJECTED, False),
    (REFUSED_BY_ENGINE, State.READY, State.EJECTED, False),
    (NO_FAULT, State.READY, State.READY, False),
    (EngineRefused("unsupported_endpoint"), State.READY, State.READY, False),
    (EngineBusy(), State.READY, State.READY, False),
    (EngineHung(), State.READY, State.READY, False),
]


def _id(value: object) -> str | None:
    return type(value).__name__ if isinstance(value, EngineFailure) else None


@pytest.mark.parametrize(("failure", "once", "thrice", "nudged"), MEANINGS, ids=_id)
def test_what_each_failure_means(failure, once, thrice, nudged):
    bench = Bench()
    bench.replica.note_failure(failure)
    assert (bench.state, bool(bench.nudged)) == (once, nudged)
    bench.replica.note_failure(failure)
    bench.replica.note_failure(failure)
    assert bench.state is thrice


def test_a_death_is_put_down_to_a_request_only_if_it_was_alone_there():
    """Some requests kill an engine (captured): one that died with nothing else to do is not asked again elsewhere."""
    alone = EngineDead()
    Bench().replica.note_failure(alone)
    bench = Bench()
    bench.replica.enter()  # of two, the first one that is told of it; then the other
    first, second = EngineDead(), EngineDead()
    bench.replica.note_failure(first)
    bench.replica.leave()
    bench.replica.note_failure(second)
    assert [(each.elsewhere, each.retry) for each in (alone, first, second)] == [(False, False)] + [(True, True)] * 2


def test_every_kind_of_failure_has_its_row():
    def below(kind: type[EngineFailure]) -> set[type[EngineFailure]]:
        return {kind}.union(*map(below, kind.__subclasses__()))

    ours = {kind for kind in below(EngineFailure) if kind.__module__ == "gateway.errors"}
    assert ours - {EngineFailure} == {type(failure) for failure, *_ in MEANINGS}


def test_one_that_is_gone_goes_though_nobody_else_is_left_and_one_that_errs_does_not():
    for failure, after in ((EngineUnreachable(), State.EJECTED), (EngineDead(), State.EJECTED)):
        bench = Bench(spare=False)
        bench.replica.note_failure(failure)
        assert (bench.state, bench.asked, bench.replica.life.for_errors) == (after, 0, False)
    bench = Bench(spare=False)
    for _ in range(3):
        bench.replica.note_failure(EngineReset())
    assert bench.state is State.READY
    assert bench.replica.remark == "3 failures in a row; kept, since too few others would be left"
    assert bench.told == []
    bench.replica.note_success()
    assert bench.replica.remark == ""


def test_a_success_between_failures_ends_the_row():
    bench = Bench()
    for _ in range(5):
        bench.replica.note_failure(EngineReset())
        bench.replica.note_failure(EngineReset())
        bench.replica.note_success()
    assert bench.state is State.READY


def test_a_full_queue_is_remembered_for_a_moment():
    bench = Bench()
    assert not bench.replica.busy
    bench.replica.note_failure(EngineBusy())
    assert bench.replica.busy
    bench.now += 1.0
    assert not bench.replica.busy


def test_the_policy_in_force_counts_not_the_one_of_its_first_day():
    bench = Bench()
    bench.policy = replace(POLICY, breaker=replace(POLICY.breaker, consecutive=1, eject=33.0))
    bench.replica.note_failure(EngineReset())
    assert bench.state is State.EJECTED
    assert bench.replica.life.until == pytest.approx(100.0 + 33.0)


# --- probation


def test_on_probation_one_at_a_time_and_some_proofs_make_it_ready():
    bench = Bench(State.EJECTED)
    assert bench.replica.room > 1_000
    bench.replica.take(Sign.RESTED)
    assert bench.replica.room == 1
    bench.replica.note_success()
    bench.replica.note_success()
    assert (bench.state, bench.replica.room) == (State.PROBATION, 1)
    bench.replica.note_success()
    assert bench.state is State.READY
    assert bench.replica.room > 1_000
    assert bench.replica.life.reason == "3 good answers in a row"
    assert [step.after.state for step in bench.told] == [State.PROBATION, State.READY]


def test_its_limit_holds_in_every_state_but_on_probation():
    bench = Bench(State.EJECTED)
    bench.replica.bound(8)
    assert (bench.replica.room, bench.replica.proven) == (8, False)
    bench.replica.take(Sign.RESTED)
    assert (bench.replica.room, bench.replica.proven) == (1, False)
    bench.replica.bound(9)
    assert bench.replica.room == 1
    for _ in range(3):
        bench.replica.note_success()
    assert (bench.replica.room, bench.replica.proven) == (9, True)


def test_old_proofs_count_for_nothing_the_next_time():
    bench = Bench(State.PROBATION)
    bench.replica.note_success()
    bench.replica.note_success()
    bench.replica.note_failure(EngineReset())
    assert bench.state is State.EJECTED
    bench.replica.take(Sign.RESTED)
    bench.replica.note_success()
    assert bench.state is State.PROBATION


@pytest.mark.parametrize(
    ("failure", "after"),
    [
        (EngineReset(), State.EJECTED),
        (EngineTimeout(), State.EJECTED),
        (REFUSED_BY_ENGINE, State.EJECTED),
        (EngineUnreachable(), State.EJECTED),
        (EngineBusy(), State.PROBATION),
        (NO_FAULT, State.PROBATION),
        (EngineHung(), State.PROBATION),
    ],
    ids=_id,
)
def test_one_failure_ends_probation_if_it_speaks_against_the_engine(failure, after):
    bench = Bench(State.PROBATION, spare=False)
    bench.replica.note_failure(failure)
    assert bench.state is after


def test_what_was_in_flight_before_probation_is_told_from_what_came_in_it():
    bench = Bench(State.EJECTED)
    bench.replica.enter()
    bench.replica.enter()
    bench.replica.take(Sign.RESTED)
    assert (bench.replica.in_flight, bench.replica.carried) == (2, 2)


def test_a_restart_forgets_the_failures_before():
    bench = Bench()
    bench.replica.note_failure(EngineReset())
    bench.replica.note_failure(EngineReset())
    for sign in (Sign.RESTARTED, Sign.HEALTHY, Sign.WARM):
        assert bench.replica.take(sign)
    bench.replica.note_failure(EngineReset())
    assert bench.state is State.READY


# --- ejection


def test_ejections_grow_up_to_their_bound_and_are_forgiven():
    bench = Bench()
    for number, rest in enumerate((10.0, 20.0, 40.0, 60.0, 60.0), 1):
        bench.replica.fail("it errs")
        assert bench.replica.life.ejections == number
        assert bench.replica.life.until - bench.now == pytest.approx(rest)
        bench.replica.take(Sign.RESTED)
        for _ in range(3):
            bench.replica.note_success()
        assert bench.state is State.READY
    bench.replica.forgive()
    bench.replica.fail("it errs")
    assert (bench.replica.life.ejections, bench.replica.life.until - bench.now) == (1, pytest.approx(10.0))


def test_the_time_out_is_spread():
    times = set()
    for random in (0.0, 0.25, 0.75, 0.999):
        bench = Bench()
        bench.random = random
        bench.replica.fail("it errs")
        times.add(bench.replica.life.until)
    assert len(times) == 4
    assert all(108.0 <= until <= 112.0 for until in times)


def test_one_that_was_tried_in_vain_stays_out_longer_and_no_line_is_told():
    bench = Bench(State.EJECTED)
    bench.now += 10.0
    bench.replica.postpone("a canary failed (reset)")
    assert bench.state is State.EJECTED
    assert (bench.replica.life.ejections, bench.replica.remark) == (2, "a canary failed (reset)")
    assert bench.replica.life.until == pytest.approx(bench.now + 20.0)
    assert bench.told == []


@pytest.mark.parametrize("state", [state for state in State if state is not State.EJECTED])
def test_only_what_is_out_can_be_put_off(state):
    bench = Bench(state)
    life = bench.replica.life
    bench.replica.postpone("a canary failed (reset)")
    assert bench.replica.life is life


@pytest.mark.parametrize(
    ("sign", "for_errors"),
    [(Sign.FAILING, True), (Sign.HUNG, False), (Sign.LOST, False), (Sign.CLOSING, False), (Sign.UNFIT, False)],
)
def test_only_errors_count_against_the_share_of_a_pool_and_until_it_has_proven_itself(sign, for_errors):
    bench = Bench()
    bench.replica.take(sign)
    assert bench.replica.life.for_errors is for_errors
    bench.replica.take(Sign.RESTED)
    assert bench.replica.life.for_errors is for_errors
    bench.replica.take(Sign.HUNG)
    assert not bench.replica.life.for_errors
    bench.replica.take(Sign.RESTED)
    bench.replica.take(Sign.PROVEN)
    assert not bench.replica.life.for_errors


# --- hangs, losses and what a state brings along


def test_a_hang_takes_it_out_and_gives_up_what_waits_each_with_its_own_failure():
    bench = Bench()
    bench.replica.hang("it does not move")
    assert (bench.state, bench.replica.life.reason) == (State.EJECTED, "it does not move")
    assert [type(error) for error in bench.link.given_up] == [EngineHung]
    bench.replica.hang("it does not move")
    assert len(bench.told) == 1
    assert bench.link.given_up[0] is not bench.link.given_up[1]


@pytest.mark.parametrize("state", list(State))
def test_that_it_was_lost_is_kept_in_any_state(state):
    bench = Bench(state)
    assert not bench.replica.lost
    bench.replica.note_failure(EngineReset())
    bench.replica.note_failure(EngineClosing())
    assert not bench.replica.lost
    bench.replica.note_failure(EngineUnreachable())
    assert bench.replica.lost


def test_a_sign_without_a_row_changes_and_tells_nothing():
    bench = Bench(State.DRAINING)
    bench.replica.remark = "seen"
    life = bench.replica.life
    assert not bench.replica.take(Sign.WARM, "why")
    assert (bench.replica.life, bench.replica.remark, bench.told) == (life, "seen", [])


def test_a_transition_says_from_where_to_where_by_what_and_when():
    bench = Bench()
    bench.replica.remark = "old"
    bench.replica.take(Sign.DRAIN, "drained by ops")
    (told,) = bench.told
    assert (told.replica, told.before.state, told.after.state, told.sign) == (
        bench.replica,
        State.READY,
        State.DRAINING,
        Sign.DRAIN,
    )
    assert told.after is bench.replica.life
    assert (bench.replica.life.since, bench.replica.life.reason, bench.replica.remark) == (
        5_100.0,
        "drained by ops",
        "",
    )


@pytest.mark.parametrize(
    ("state", "sign", "kept"),
    [
        (State.READY, Sign.RESTARTED, False),
        (State.WARMING, Sign.LOST, False),
        (State.DRAINING, Sign.EMPTY, False),
        (State.READY, Sign.LOST, True),
        (State.READY, Sign.DRAIN, True),
        (State.WARMING, Sign.WARM, True),
    ],
)
def test_what_was_read_of_a_process_that_is_gone_is_forgotten(state, sign, kept):
    bench = Bench(state)
    bench.replica.reading, bench.replica.read_at = Reading(MappingProxyType({}), frozenset()), 99.0
    bench.replica.take(sign)
    assert (bench.replica.reading is not None) is kept
    assert (bench.replica.read_at == 99.0) is kept
    if not kept:
        assert bench.replica.read_at == -math.inf


def test_a_stall_before_an_ejection_does_not_count_on_probation():
    bench = Bench()
    for _ in range(9):
        bench.now += 5.0
        bench.replica.progress.note(now=bench.now, pending=True, counters=(1.0,), heard=0.0)
    assert bench.replica.progress.hung(bench.now, POLICY.health)
    bench.replica.hang("it does not move")
    bench.replica.take(Sign.RESTED)
    for _ in range(2):
        bench.now += 1.0
        bench.replica.progress.note(now=bench.now, pending=True, counters=(1.0,), heard=0.0)
    assert not bench.replica.progress.hung(bench.now, POLICY.health)


def test_requests_are_counted_and_sent_by_its_link():
    bench = Bench()
    bench.replica.enter()
    bench.replica.enter()
    bench.replica.leave()
    assert bench.replica.in_flight == 1
    sent: Any = bench.replica.send("/v1/x", b"application/json", b"{}", "req_1-1", total=9.0)
    assert sent == "an answer"
    assert bench.link.sent == [("/v1/x", b"application/json", b"{}", "req_1-1", 9.0)]
    assert bench.replica.open_connections == 4
    bench.replica.close()
    assert bench.link.closed == 1


def test_a_connection_that_the_engine_closed_has_it_looked_at():
    bench = Bench()
    bench.link.on_lost()
    assert (bench.nudged, bench.state) == (1, State.READY)


def test_what_is_said_of_it_may_change_but_not_whom_it_is_reached_as():
    bench = Bench()
    bench.replica.relist(EngineSpec("http://127.0.0.1:8001", {"gpu": "b"}, server_name="other"), "file")
    assert (bench.replica.spec, bench.replica.origin) == (EngineSpec("http://127.0.0.1:8001", {"gpu": "b"}), "file")


EVENTS = st.lists(
    st.one_of(
        st.sampled_from(list(Sign)),
        st.sampled_from([failure for failure, *_ in MEANINGS]),
        st.just("success"),
        st.floats(0.0, 100.0),
    ),
    max_size=60,
)


@given(EVENTS)
def test_whatever_comes_its_room_and_its_times_fit_its_state(events):
    bench = Bench(State.FOUND)
    for event in events:
        if isinstance(event, float):
            bench.now += event
        elif isinstance(event, EngineFailure):
            bench.replica.note_failure(event)
        elif event == "success":
            bench.replica.note_success()
        else:
            bench.replica.take(event)
        life = bench.replica.life
        assert (bench.replica.room == 1) is (life.state is State.PROBATION)
        assert not life.for_errors or life.state in (State.EJECTED, State.PROBATION)
        assert life.until - bench.now <= 1.2 * POLICY.breaker.eject_most


@pytest.mark.parametrize(
    ("in_flight", "values", "busy"),
    [
        (0, None, False),
        (1, None, True),
        (0, {}, False),
        (0, {Signal.RUNNING: 0.0, Signal.WAITING: 0.0}, False),
        (0, {Signal.RUNNING: 1.0}, True),
        (0, {Signal.WAITING: 1.0}, True),
        (1, {Signal.RUNNING: 0.0}, True),
    ],
)
def test_work_is_what_this_instance_has_there_or_the_engine_speaks_of(in_flight, values, busy):
    """While nothing moves, work makes it hung, and its want makes it idle."""
    bench = Bench()
    bench.replica.adapter = VLLM
    bench.replica.in_flight = in_flight
    reading = None if values is None else Reading(MappingProxyType(values), frozenset())
    for _ in range(60):
        bench.replica.note_look(reading)
        bench.now += 5.0
    bench.replica.note_look(reading)
    assert bench.replica.progress.hung(bench.now, POLICY.health) is busy
    assert (bench.replica.progress.idle_for(bench.now) == 0.0) is busy


@pytest.mark.parametrize("moves", ["counter", "byte"])
def test_a_counter_or_a_byte_that_moves_is_progress(moves):
    bench = Bench()
    bench.replica.adapter = VLLM
    bench.replica.enter()
    for number in range(60):
        steps = float(number) if moves == "counter" else 7.0
        bench.link.last_heard = float(number) if moves == "byte" else 7.0
        bench.replica.note_look(Reading(MappingProxyType({Signal.STEPS: steps}), frozenset()))
        bench.now += 5.0
        assert not bench.replica.progress.hung(bench.now, POLICY.health)
