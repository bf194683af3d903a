"""From a name to the revision that is current, and by weight to one of its targets."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Refusal
from gateway.model import AliasTable, Revision, Target
from gateway.steps.resolve import choose_target, resolve

ALMOST_ONE = 1 - 2**-53


def _revision(*targets: Target) -> Revision:
    return Revision("internal-general", 4, targets, "ops", 1.0)


def test_a_name_leads_to_its_current_revision():
    revision = _revision(Target("m"))
    assert resolve("internal-general", AliasTable(1, {"internal-general": revision})) is revision


@pytest.mark.parametrize("name", ["", "internal", "Internal-General", "internal-general ", "internal-general@4", "m"])
def test_any_other_name_is_unknown(name):
    with pytest.raises(Refusal) as refused:
        resolve(name, AliasTable(1, {"internal-general": _revision(Target("m"))}))
    assert (refused.value.spec.code, refused.value.param) == ("model_not_found", "model")
    assert refused.value.message == refused.value.spec.message


def test_a_single_target_takes_no_chance():
    def dice() -> float:
        raise AssertionError("one target needs no dice")

    assert choose_target(_revision(Target("m", 7)), dice) == "m"


TARGETS = st.lists(st.integers(1, 1_000), min_size=2, max_size=6)
POINTS = st.one_of(st.floats(0, ALMOST_ONE), st.just(0.0), st.just(ALMOST_ONE))


@given(TARGETS, POINTS)
def test_the_point_falls_into_its_target_of_the_line_of_weights(weights, point):
    chosen = choose_target(_revision(*(Target(str(i), w) for i, w in enumerate(weights))), lambda: point)
    start = sum(weights[: int(chosen)])
    end = start + weights[int(chosen)]
    assert start - 1e-6 <= point * sum(weights) <= end + 1e-6


@pytest.mark.parametrize("weights", [(1, 1), (95, 5), (1, 2, 3, 4), (999, 1)])
def test_each_target_gets_its_share(weights):
    """Within five standard deviations, with dice that are always the same."""
    dice, rounds = random.Random(20), 10_000
    revision = _revision(*(Target(str(i), w) for i, w in enumerate(weights)))
    seen = [choose_target(revision, dice.random) for _ in range(rounds)]
    for number, weight in enumerate(weights):
        share = weight / sum(weights)
        deviation = (rounds * share * (1 - share)) ** 0.5
        assert abs(seen.count(str(number)) - rounds * share) <= 5 * deviation


def test_the_order_of_the_targets_does_not_matter_to_the_shares():
    dice, rounds = random.Random(21), 20_000
    there = _revision(Target("a", 9), Target("b", 1))
    back = _revision(Target("b", 1), Target("a", 9))
    shares = [sum(choose_target(r, dice.random) == "b" for _ in range(rounds)) / rounds for r in (there, back)]
    assert shares == pytest.approx([0.1, 0.1], abs=0.011)
