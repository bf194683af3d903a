"""What a model has of each class, what it usually has, and how much of that is a reason to hold places back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.mix import Mix, held
from gateway.model import Priority

URGENT, USUAL, BULK = Priority


@pytest.mark.parametrize(("above", "places"), [(0.0, 0.0), (0.05, 0.0), (1.0, 3.5), (4.0, 6.0), (100.0, 26.0)])
def test_places_are_held_for_the_chance_that_more_come(above, places):
    assert held(above) == pytest.approx(places)


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_the_more_they_have_the_more_is_held(one, other):
    assert (held(one) <= held(other)) or one > other


def usual(mix: Mix, priority: Priority, model: str = "m") -> float:
    return mix.above(model, priority)


def test_what_stays_in_flight_becomes_usual():
    mix = Mix()
    for _ in range(4):
        mix.began("m", URGENT)
    mix.began("m", USUAL)
    for second in range(300):
        mix.sample(float(second))
    assert (usual(mix, URGENT), usual(mix, USUAL)) == (0.0, pytest.approx(4, 0.01))
    assert usual(mix, BULK) == pytest.approx(5, 0.01)
    assert usual(mix, BULK, "other") == 0.0


def test_what_comes_no_more_is_forgotten_in_time_and_then_wholly():
    mix = Mix()
    mix.began("m", URGENT)
    mix.sample(0.0)
    mix.sample(1_000.0)
    mix.ended("m", URGENT)
    mix.sample(1_030.0)
    assert usual(mix, BULK) == pytest.approx(1 / math.e, 0.01)
    mix.sample(2_000.0)
    assert usual(mix, BULK) == 0.0
    mix.began("m", BULK)
    mix.ended("m", BULK)


def test_a_clock_that_is_set_back_changes_nothing():
    mix = Mix()
    mix.began("m", URGENT)
    mix.sample(100.0)
    mix.sample(130.0)
    before = usual(mix, BULK)
    mix.sample(0.0)
    assert usual(mix, BULK) == before


def test_what_is_in_flight_is_not_forgotten():
    mix = Mix()
    mix.began("m", URGENT)
    for second in range(10):
        mix.sample(second * 1e-9)
    mix.ended("m", URGENT)
    mix.sample(1.0)
    mix.sample(2.0)
