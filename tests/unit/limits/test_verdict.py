"""What a caller is told."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gateway.limits.interfaces import Standing
from gateway.limits.verdict import refusal, shared, standing
from gateway.model import NO_LIMITS, Budget, Limits


def used(requests=0.0, tokens=0.0, day=0.0, in_flight=0):
    return SimpleNamespace(requests=requests, tokens=tokens, day=day, in_flight=in_flight)


def test_the_limit_that_takes_longest_is_named():
    limits = Limits(60, 6_000, 86_400, 1)
    cases = [
        (used(requests=1_062.0, tokens=1_030.0, in_flight=1), "requests per minute", 3),
        (used(requests=1_062.0, tokens=1_075.0, in_flight=1), "tokens per minute", 16),
        (used(requests=1_062.0, tokens=1_075.0, day=87_420.5), "tokens per day", 22),
        (used(requests=1_000.0, in_flight=1), "requests at once", 1),
    ]
    for its, words, seconds in cases:
        error = refusal([Budget("a", limits)], [its], 1_000.0, 1)
        assert (error.message, error.retry_after) == (f"Limit of {words} reached.", seconds)


def test_a_limit_that_never_lets_it_pass_outweighs_every_wait():
    budgets = [Budget("a", Limits(tokens_per_day=10_000)), Budget("b", Limits(tokens_per_minute=100))]
    error = refusal(budgets, [used(day=90_000.0), used()], 0.0, 101)
    assert error.never
    assert "tokens per minute" in error.message


def test_a_wait_is_rounded_up_and_never_nought():
    error = refusal([Budget("a", Limits(6_000))], [used(requests=60.0)], 0.0, 0)
    assert error.retry_after == 1
    error = refusal([Budget("a", Limits(6))], [used(requests=61.2)], 0.0, 0)
    assert error.retry_after == 12


def test_a_place_has_no_known_wait():
    error = refusal([Budget("a", Limits(concurrency=2))], [used(in_flight=2)], 0.0, 0)
    assert (error.spec.code, error.retry_after, error.never) == ("concurrency_limited", 1, False)


def test_the_tightest_of_each_kind_stands():
    budgets = [Budget("a", Limits(100, 1_000)), Budget("b", Limits(10, 5_000)), Budget("c", NO_LIMITS)]
    left = standing(budgets, [used(requests=30.0, tokens=60.0), used(requests=6.0, tokens=48.0), used()], 0.0)
    assert left == Standing(10, 9, 6.0, 1_000, 0, 60.0)


def test_no_limit_a_minute_no_standing():
    assert standing([Budget("a", Limits(tokens_per_day=5, concurrency=1))], [used()], 0.0) is None
    assert standing([], [], 0.0) is None


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.5, Limits(5, 50, 500, 1)),
        (0.01, Limits(1, 1, 10, 1)),
        (0.0, Limits(1, 1, 1, 1)),
        (1.0, Limits(10, 100, 1_000, 2)),
        (7.0, Limits(10, 100, 1_000, 2)),
    ],
)
def test_a_share_of_each_figure_is_at_least_one_and_at_most_the_figure(share, expected):
    assert shared(Limits(10, 100, 1_000, 2), share) == expected


def test_no_figure_and_a_figure_of_nought_stay_what_they_are():
    assert shared(Limits(requests_per_minute=0), 0.5) == Limits(requests_per_minute=0)
    assert shared(NO_LIMITS, 0.5) == NO_LIMITS
