"""From a name to the revision that is current, and by weight to one of its targets."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Refusal
from gateway.model import AliasTable, Revision, Target
from gateway.steps.resolve import Wanted, choose_target, resolve, wanted

ALMOST_ONE = 1 - 2**-53
TARGETS = st.lists(st.integers(1, 1_000), min_size=2, max_size=6)
POINTS = st.one_of(st.floats(0, ALMOST_ONE), st.just(0.0), st.just(ALMOST_ONE))


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


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("general", Wanted("general")),
        ("general@3", Wanted("general", 3)),
        ("a/b:c@120", Wanted("a/b:c", 120)),
        ("general@0", Wanted("general@0")),
        ("general@03", Wanted("general@03")),
        ("general@", Wanted("general@")),
        ("general@x", Wanted("general@x")),
        ("general@-1", Wanted("general@-1")),
        ("general@ 3", Wanted("general@ 3")),
        ("general@3@4", Wanted("general@3", 4)),
        ("general@\u0663", Wanted("general@\u0663")),
        ("general@1234567890", Wanted("general@1234567890")),
        ("@3", Wanted("", 3)),
        ("", Wanted("")),
    ],
)
def test_a_name_may_be_pinned_to_a_number_and_anything_else_is_a_name_of_nobody(name, meant):
    assert wanted(name) == meant


@pytest.mark.parametrize("point", [0.0, 0.5, ALMOST_ONE])
def test_a_single_target_is_the_one_at_every_point(point):
    assert choose_target(_revision(Target("m", 7)), point) == "m"


@given(st.integers(1, 98), st.integers(1, 98), POINTS)
def test_who_is_on_a_canary_stays_there_while_its_share_grows(one, other, point):
    low, high = sorted((one, other))
    small, large = (_revision(Target("old", 100 - share), Target("new", share)) for share in (low, high))
    if choose_target(small, point) == "new":
        assert choose_target(large, point) == "new"


@given(TARGETS, POINTS)
def test_the_point_falls_into_its_target_of_the_line_of_weights(weights, point):
    chosen = choose_target(_revision(*(Target(str(i), w) for i, w in enumerate(weights))), point)
    start = sum(weights[: int(chosen)])
    end = start + weights[int(chosen)]
    assert start - 1e-6 <= point * sum(weights) <= end + 1e-6


@pytest.mark.parametrize("weights", [(1, 1), (95, 5), (1, 2, 3, 4), (999, 1)])
def test_each_target_gets_its_share(weights):
    """Within five standard deviations, with dice that are always the same."""
    dice, rounds = random.Random(20), 10_000
    revision = _revision(*(Target(str(i), w) for i, w in enumerate(weights)))
    seen = [choose_target(revision, dice.random()) for _ in range(rounds)]
    for number, weight in enumerate(weights):
        share = weight / sum(weights)
        deviation = (rounds * share * (1 - share)) ** 0.5
        assert abs(seen.count(str(number)) - rounds * share) <= 5 * deviation


def test_the_order_of_the_targets_does_not_matter_to_the_shares():
    dice, rounds = random.Random(21), 20_000
    there = _revision(Target("a", 9), Target("b", 1))
    back = _revision(Target("b", 1), Target("a", 9))
    shares = [sum(choose_target(r, dice.random()) == "b" for _ in range(rounds)) / rounds for r in (there, back)]
    assert shares == pytest.approx([0.1, 0.1], abs=0.011)
