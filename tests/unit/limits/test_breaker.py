"""When the store is asked."""

from __future__ import annotations

import pytest

from gateway.limits.breaker import Breaker


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Case:
    def __init__(self):
        self.clock, self.reports = Clock(), []
        self.breaker = Breaker(self.clock, jitter=lambda: 0.5, report=self.reports.append)

    def fail(self):
        self.breaker.failed(self.breaker.enter(), "sleeps")

    def pause(self):
        """Seconds until the next call may be made."""
        begin = self.clock.now
        while self.breaker.enter() is None:
            self.clock.now = round(self.clock.now + 0.1, 6)
            assert self.clock.now - begin < 100
        return round(self.clock.now - begin, 1)


@pytest.fixture
def case():
    return Case()


def test_nothing_is_asked_for_a_pause_and_then_one_at_a_time(case):
    case.fail()
    assert case.breaker.open
    assert case.breaker.enter() is None
    case.clock.now += 1
    assert case.breaker.enter() is not None
    assert [case.breaker.enter() for _ in range(5)] == [None] * 5


def test_a_probe_whose_outcome_is_never_told_does_not_end_all_probing(case):
    case.fail()
    assert case.pause() == 1
    assert case.pause() == 1


def test_a_probe_that_succeeds_opens_the_way_for_all(case):
    case.fail()
    case.clock.now += 1
    case.breaker.succeeded(case.breaker.enter())
    assert not case.breaker.open
    assert None not in [case.breaker.enter() for _ in range(5)]


def test_the_pause_doubles_up_to_its_bound(case):
    case.fail()
    pauses = []
    for _ in range(6):
        begin = case.clock.now
        while (ticket := case.breaker.enter()) is None:
            case.clock.now = round(case.clock.now + 0.1, 6)
        pauses.append(round(case.clock.now - begin, 1))
        case.breaker.failed(ticket, "sleeps")
    assert pauses == [1, 2, 4, 8, 10, 10]


@pytest.mark.parametrize(("jitter", "pause"), [(0.0, 0.9), (1.0, 1.1)])
def test_the_pause_is_spread(case, jitter, pause):
    case.breaker._jitter = lambda: jitter
    case.fail()
    assert case.pause() == pytest.approx(pause, abs=0.11)


def test_many_calls_that_fail_together_are_one_failure(case):
    tickets = [case.breaker.enter() for _ in range(100)]
    for ticket in tickets:
        case.breaker.failed(ticket, "sleeps")
    assert case.pause() == 1
    assert len(case.reports) == 1


def test_a_late_answer_to_an_old_call_is_not_a_recovery(case):
    early = case.breaker.enter()
    case.fail()
    case.breaker.succeeded(early)
    assert case.breaker.open


def test_loss_and_return_are_reported_once_each(case):
    case.fail()
    for _ in range(5):
        case.clock.now += 20
        case.fail()
    case.clock.now += 20
    ticket = case.breaker.enter()
    case.breaker.succeeded(ticket)
    case.breaker.succeeded(ticket)
    assert len(case.reports) == 2
    assert "sleeps" in case.reports[0]
    assert "back" in case.reports[1]


def test_a_store_that_flaps_is_asked_and_reported_ever_less_often(case):
    end = case.clock.now + 100
    while case.clock.now < end:
        ticket = case.breaker.enter()
        if ticket is not None:
            was_open = case.breaker.open
            case.breaker.succeeded(ticket) if was_open else case.breaker.failed(ticket, "flaps")
        case.clock.now += 0.01
    assert len(case.reports) < 35


def test_after_a_good_time_the_pause_is_short_again(case):
    for _ in range(5):
        case.clock.now += 20
        case.fail()
    case.clock.now += 20
    case.breaker.succeeded(case.breaker.enter())
    case.clock.now += 11
    case.fail()
    assert case.pause() == 1
