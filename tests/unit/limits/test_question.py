"""What the store is asked, and what its answer means."""

from __future__ import annotations

import pytest

from gateway.limits.question import Heads, figures_of, read_answer, reservable
from gateway.model import NO_LIMITS, Budget, Limits

ALL = Budget("principal:a", Limits(60, 600, 86_400, 5))
SOME = Budget("tenant:t", Limits(tokens_per_minute=6_000))


def test_only_figures_that_are_there_are_asked_of():
    asked = [(f.budget, f.key, f.units, f.spacing, f.period) for f in figures_of([ALL, SOME], 50)]
    assert asked == [
        (0, "{gw}:limit:requests:principal:a", 1, 1.0, 60.0),
        (0, "{gw}:limit:tokens:principal:a", 50, 0.1, 60.0),
        (0, "{gw}:limit:day:principal:a", 50, 1.0, 86_400.0),
        (0, "{gw}:limit:places:principal:a", 5, 0.0, 0.0),
        (1, "{gw}:limit:tokens:tenant:t", 50, 0.01, 60.0),
    ]
    assert figures_of([Budget("principal:a", NO_LIMITS)], 50) == []


def test_an_answer_is_read_by_budget():
    admitted, heads = read_answer([b"0", b"1.5", b"5", b"50", b"3", b"0.5"], 2, figures_of([ALL, SOME], 50))
    assert not admitted
    assert heads == [Heads(1.5, 5.0, 50.0, 3), Heads(tokens=0.5)]


@pytest.mark.parametrize(
    "answer", [[], [b"1"] * 5, [b"1"] * 7, [b"1"] + [b"x"] * 5, [b"7"] + [b"1"] * 5, b"111111", None, [None] * 6]
)
def test_an_answer_that_does_not_fit_is_an_error(answer):
    with pytest.raises((ValueError, TypeError)):
        read_answer(answer, 2, figures_of([ALL, SOME], 50))


@pytest.mark.parametrize(
    ("tokens", "figure", "part", "expected"),
    [(50, 100, 25, 25), (10, 100, 25, 10), (100, 100, 25, 25), (101, 100, 25, 101), (50, None, None, 50)],
)
def test_what_the_whole_lets_pass_is_cut_to_the_part(tokens, figure, part, expected):
    whole = [Budget("a", Limits(tokens_per_minute=figure))]
    parts = [Budget("a", Limits(tokens_per_minute=part))]
    assert reservable(whole, parts, tokens) == expected
