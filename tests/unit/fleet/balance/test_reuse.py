"""What earlier prompts say of how likely something that is kept will be asked for again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.balance.reuse import Reuse

prompts = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(-10, 2 * 10**6), st.floats(-10.0, 1e6)), min_size=1, max_size=40
)


def reuse(*noted: tuple[int, int, float]) -> Reuse:
    made = Reuse()
    for size, held, age in noted:
        made.note(size, held, age)
    return made


def test_where_nothing_is_ever_asked_for_again_nothing_is_missed():
    assert reuse().wanted(0.0) == 0.0
    assert reuse(*[(4_000, 0, 0.0)] * 20).wanted(0.0) == 0.0


def test_at_once_it_is_as_likely_as_it_has_been():
    assert reuse(*[(4_000, 3_000, 2.0)] * 200).wanted(0.0) == pytest.approx(0.75)


def test_what_has_not_been_asked_for_in_several_times_the_usual_while_hardly_will_be():
    usual = reuse(*[(4_000, 3_000, 2.0)] * 200)
    assert usual.wanted(2.0) == pytest.approx(0.75 * 0.3679 / (0.25 + 0.75 * 0.3679), rel=1e-3)
    assert usual.wanted(20.0) < 0.001
    assert usual.wanted(1e300) == 0.0


def test_another_kind_of_traffic_is_found_out_within_some_hundred_prompts():
    changed = reuse(*[(4_000, 4_000, 2.0)] * 300, *[(4_000, 0, 0.0)] * 300)
    assert changed.wanted(0.0) < 0.01


@given(prompts, st.floats(-10.0, 1e6), st.floats(0.0, 1e6))
def test_a_chance_that_only_falls_with_age(noted, age, more):
    made = reuse(*noted)
    assert 0.0 <= made.wanted(age + more) <= made.wanted(age) <= 1.0
