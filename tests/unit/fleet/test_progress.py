"""Whether an engine works on what it has."""

from __future__ import annotations

import math

import pytest

from gateway.fleet.progress import Progress
from gateway.policy.fleet import Health

HEALTH = Health(hang=30, blind_hang=120)


class Case:
    """A replica that is looked at once a second."""

    def __init__(self, now=1000.0):
        self.now = now
        self.progress = Progress(now)
        self.counters = (10.0, 100.0)
        self.heard = -math.inf

    def look(self, seconds=1.0, *, pending=True, blind=False):
        self.now += seconds
        counters = None if blind else self.counters
        self.progress.note(now=self.now, pending=pending, counters=counters, heard=self.heard)

    def looks(self, count, **options):
        for _ in range(count):
            self.look(**options)

    def until_hung(self, most=1000, **options):
        """Seconds until it is found hung."""
        begin = self.now
        for _ in range(most):
            if self.progress.hung(self.now, HEALTH):
                return self.now - begin
            self.look(**options)
        return None

    @property
    def stalled(self):
        return self.progress.stalled_for(self.now)


@pytest.fixture
def case():
    case = Case()
    case.look(pending=False)
    return case


def test_work_and_counters_that_stand_still_are_a_hang(case):
    case.look()
    assert case.until_hung() == 30
    assert case.stalled == 30


def test_an_engine_that_was_never_looked_at_is_not_hung():
    case = Case()
    assert not case.progress.hung(case.now + 1000, HEALTH)
    assert case.stalled == case.progress.idle_for(case.now) == 0
    assert not case.progress.moved_within(case.now, 1e9)


def test_an_idle_engine_does_not_hang(case):
    assert case.until_hung(pending=False) is None
    assert case.stalled == 0


def test_counters_that_move_are_progress(case):
    for _ in range(200):
        case.counters = (case.counters[0] + 1, case.counters[1])
        case.looks(29)
        assert not case.progress.hung(case.now, HEALTH)


def test_counters_that_go_backwards_have_moved(case):
    case.looks(25)
    case.counters = (0.0, 0.0)
    case.look()
    assert case.stalled == 0
    assert case.until_hung() == 30


def test_bytes_of_an_answer_are_progress(case):
    case.looks(25)
    case.heard = case.now + 0.5
    case.look()
    assert case.stalled == 0
    assert case.until_hung() == 30


def test_without_counters_only_the_longer_limit_counts(case):
    case.counters = None
    case.look(blind=True)
    assert case.until_hung(blind=True) == 120


def test_a_scrape_without_a_single_counter_is_blind():
    case = Case()
    case.counters = ()
    case.look()
    assert case.until_hung() == 120


def test_counters_that_come_back_unmoved_prove_the_time_between(case):
    case.look()
    case.looks(29, blind=True)
    assert not case.progress.hung(case.now, HEALTH)
    case.look()
    assert case.progress.hung(case.now, HEALTH)


def test_counters_that_cannot_be_read_any_more_prove_nothing_of_later_time(case):
    case.look()
    case.looks(29)
    case.looks(60, blind=True)
    assert not case.progress.hung(case.now, HEALTH)


def test_counters_that_are_read_late_prove_nothing_of_earlier_time():
    case = Case()
    case.looks(29, blind=True)
    case.looks(20)
    assert not case.progress.hung(case.now, HEALTH)
    assert case.until_hung() == 11


@pytest.mark.parametrize("blind", [True, False])
def test_a_byte_ends_a_hang_whether_counters_can_be_read_or_not(case, blind):
    case.looks(40)
    case.heard = case.now + 0.5
    case.look(blind=blind)
    assert not case.progress.hung(case.now, HEALTH)
    assert case.until_hung() == 30


def test_a_token_ends_a_hang(case):
    case.looks(40)
    case.counters = (10.0, 101.0)
    case.look()
    assert not case.progress.hung(case.now, HEALTH)


def test_a_hang_without_work_is_none(case):
    case.looks(40)
    case.look(pending=False)
    assert not case.progress.hung(case.now, HEALTH)


def test_a_movement_makes_a_late_beginning_as_good_as_any():
    case = Case()
    case.looks(29, blind=True)
    case.looks(5)
    case.heard = case.now + 0.5
    case.look()
    assert case.until_hung() == 30


def test_a_hang_that_other_counters_have_proven_is_proven_no_more(case):
    case.looks(40)
    case.counters = (10.0,)
    case.look()
    assert not case.progress.hung(case.now, HEALTH)


def test_other_counters_than_before_cannot_be_compared(case):
    case.looks(25)
    case.counters = (10.0,)
    case.look()
    assert case.stalled == 25
    assert case.until_hung() == 30


def test_a_time_without_work_is_no_stall_and_no_progress_either(case):
    case.looks(21)
    assert case.stalled == 20
    case.looks(100, pending=False)
    assert case.stalled == 0
    assert not case.progress.hung(case.now, HEALTH)
    case.look()
    assert case.until_hung() == 10


def test_clients_that_give_up_do_not_hide_a_hang(case):
    for _ in range(2):
        case.looks(11)
        case.looks(20, pending=False)
    case.looks(10)
    assert not case.progress.hung(case.now, HEALTH)
    case.look()
    assert case.progress.hung(case.now, HEALTH)


def test_a_hang_is_found_by_looks_not_by_the_clock(case):
    case.look()
    case.looks(29)
    assert case.progress.stalled_for(case.now + 2) == 31
    assert not case.progress.hung(case.now + 2, HEALTH)


def test_a_time_without_a_look_counts_for_little(case):
    case.look()
    case.looks(15)
    case.look(3600.0)
    assert case.stalled == 25
    assert case.progress.stalled_for(case.now + 3600) == 35
    assert case.until_hung() == 5


def test_a_suspended_host_ejects_nothing(case):
    case.looks(11)
    case.look(3600.0)
    assert not case.progress.hung(case.now, HEALTH)
    case.counters = (11.0, 100.0)
    case.look()
    assert case.stalled == 0


def test_an_old_verdict_is_none(case):
    case.looks(40)
    assert case.progress.hung(case.now, HEALTH)
    assert not case.progress.hung(case.now + 60, HEALTH)


def test_movement_excuses_a_slow_probe_for_a_while(case):
    case.look()
    assert not case.progress.moved_within(case.now, 1e9)
    case.counters = (11.0, 100.0)
    case.look()
    assert case.progress.moved_within(case.now, 0)
    assert case.progress.moved_within(case.now + 5, 5)
    assert not case.progress.moved_within(case.now + 5.1, 5)


def test_bytes_count_as_of_when_they_came(case):
    case.heard = case.now - 3
    case.look()
    assert case.progress.moved_within(case.now, 4)
    assert not case.progress.moved_within(case.now, 3.9)


def test_bytes_of_the_same_moment_are_counted_once(case):
    case.heard = case.now + 1e9
    case.look()
    assert not case.progress.moved_within(case.now + 20, 10)
    assert case.until_hung() == 30


def test_idleness_begins_where_work_and_movement_end(case):
    case.looks(5)
    assert case.progress.idle_for(case.now + 3) == 0
    case.look(pending=False)
    assert case.progress.idle_for(case.now + 3) == 3
    case.looks(7, pending=False)
    assert case.progress.idle_for(case.now) == 7
    case.counters = (11.0, 100.0)
    case.look(pending=False)
    assert case.progress.idle_for(case.now) == 0


def test_another_process_begins_anew(case):
    case.counters = (11.0, 100.0)
    case.looks(40)
    case.progress.reset(case.now)
    assert case.stalled == 0
    assert not case.progress.hung(case.now, HEALTH)
    assert not case.progress.moved_within(case.now, 1e9)
    assert case.progress.idle_for(case.now + 2) == 2
    case.counters = (0.0, 0.0)
    case.look()
    assert not case.progress.moved_within(case.now, 1e9)
    assert case.until_hung() == 30


def test_a_clock_that_is_set_back_makes_no_negative_age_and_no_long_blindness(case):
    case.counters = (11.0, 100.0)
    case.looks(11)
    case.look(-1e6)
    assert case.stalled == 10
    assert case.progress.idle_for(case.now) == 0
    assert case.progress.moved_within(case.now, 0)
    assert not case.progress.moved_within(case.now + 20, 10)
    assert case.until_hung() == 20


def test_a_clock_that_is_set_back_between_looks_makes_no_negative_age(case):
    case.looks(11, pending=False)
    assert case.progress.idle_for(case.now - 1e6) == 0
    case.looks(6)
    assert case.progress.stalled_for(case.now - 1e6) == 5
    case.counters = (11.0, 100.0)
    case.look()
    assert case.progress.moved_within(case.now - 1e6, 0)
