"""The algorithm alone."""

from __future__ import annotations

import math

import pytest

from gateway.limits import gcra

MINUTE = gcra.MINUTE


def admit_all(figure, period, now, units=1, most=10**6):
    tat, spaced, admitted = 0.0, gcra.spacing(figure, period), 0
    while admitted < most:
        later = gcra.take(tat, now, units, spaced, period)
        if later is None:
            return admitted
        tat, admitted = later, admitted + 1
    return admitted


@pytest.mark.parametrize("period", [gcra.MINUTE, gcra.DAY])
@pytest.mark.parametrize("now", [0.0, 1 / 3, 1_000_000.1, 30_000_000.123])
@pytest.mark.parametrize("figure", [1, 3, 7, 60, 997, 10_000])
def test_the_burst_is_the_figure_whatever_the_clock_shows(figure, period, now):
    assert admit_all(figure, period, now) == figure


def test_one_unit_comes_back_each_spacing():
    spaced = gcra.spacing(6, MINUTE)
    tat = gcra.take(0.0, 100.0, 6, spaced, MINUTE)
    assert tat == 160.0
    assert gcra.take(tat, 109.0, 1, spaced, MINUTE) is None
    assert gcra.take(tat, 110.0, 1, spaced, MINUTE) == 170.0


def test_what_is_left_and_when():
    assert gcra.ahead(160.0, 130.0) == 30.0
    assert gcra.ahead(160.0, 200.0) == 0.0
    assert gcra.remaining(30.0, 6, MINUTE) == 3
    assert gcra.remaining(0.0, 6, MINUTE) == 6
    assert gcra.remaining(90.0, 6, MINUTE) == 0
    assert gcra.remaining(0.0, 0, MINUTE) == 0


@pytest.mark.parametrize(
    ("ahead", "units", "figure", "expected"),
    [(60.0, 1, 6, 10.0), (50.0, 1, 6, 0.0), (60.0, 6, 6, 60.0), (0.0, 7, 6, math.inf), (0.0, 1, 0, math.inf)],
)
def test_seconds_until_it_would_pass(ahead, units, figure, expected):
    assert gcra.wait(ahead, units, figure, MINUTE) == pytest.approx(expected, abs=0.11)


@pytest.mark.parametrize("figure", [1, 7, 60, 5_000])
@pytest.mark.parametrize("units", [1, 3])
@pytest.mark.parametrize("ahead", [0.0, 13.7, 59.99, 60.0, 200.0])
def test_it_passes_after_that_wait_and_not_before(figure, units, ahead):
    spaced = gcra.spacing(figure, MINUTE)
    wait = gcra.wait(ahead, units, figure, MINUTE)
    if wait == math.inf:
        assert units > figure
        return
    assert gcra.take(1_000.0 + ahead, 1_000.0 + wait + 1e-6, units, spaced, MINUTE) is not None
    if wait > 0:
        assert gcra.take(1_000.0 + ahead, 1_000.0 + wait - 1e-6, units, spaced, MINUTE) is None


def test_a_figure_of_nought_lets_no_unit_pass_but_none_passes():
    spaced = gcra.spacing(0, MINUTE)
    assert gcra.take(0.0, 5.0, 1, spaced, MINUTE) is None
    assert gcra.take(0.0, 5.0, 0, spaced, MINUTE) == 5.0


def test_a_correction_gives_back_charges_and_never_makes_more_than_whole():
    assert gcra.correct(130.0, 100.0, -2, 10.0) == 110.0
    assert gcra.correct(130.0, 100.0, 5, 10.0) == 180.0
    # Whole for 50 s: a charge counts from now on.
    assert gcra.correct(50.0, 100.0, 1, 10.0) == 110.0
    given_back = gcra.correct(105.0, 100.0, -6, 10.0)
    assert gcra.take(given_back, 100.0, 7, 10.0, MINUTE) is None
    assert gcra.take(given_back, 100.0, 6, 10.0, MINUTE) == 160.0


def test_what_a_settlement_moves_is_the_difference_within_what_an_engine_may_be_believed():
    assert [gcra.excess(used, 10) for used in (4, 10, 25)] == [-6, 0, 15]
    assert gcra.excess(-5, 10) == -10
    assert gcra.excess(10**12, 10) == gcra.MOST_TOKENS
