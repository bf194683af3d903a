"""What a store said of callers is believed for as long as it must hold, and said on as time passes."""

from __future__ import annotations

import pytest

from gateway.limits.question import Heads
from gateway.limits.told import Told
from gateway.limits.verdict import refusal
from gateway.model import Budget, Limits


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def one(number="a", **figures):
    return (Budget(f"principal:{number}", Limits(**figures)),)


def said(error):
    left = error.standing
    rounded = left._replace(reset_requests=round(left.reset_requests, 6), reset_tokens=round(left.reset_tokens, 6))
    return error.spec.code, error.message, error.retry_after, rounded, error.retry


def test_it_says_what_the_store_would_say_by_now(clock):
    told = Told(clock, at_most=90.0)
    budgets = one(requests_per_minute=2, tokens_per_minute=600, tokens_per_day=10**6, concurrency=1)
    heads = [Heads(requests=60.0, tokens=30.0, day=5.0)]
    told.hear(budgets, [heads[0]._replace(in_flight=1)])
    for passed in (0.0, 0.25, 10.0, 29.5):
        clock.now = 100.0 + passed
        assert said(told.refusal(budgets)) == said(refusal(budgets, heads, passed, 0))
    assert told.refusal(budgets).retry_after == 1
    clock.now = 129.7  # 30 seconds a request, less the grace that a limit has
    assert told.refusal(budgets) is None


def test_it_is_believed_for_a_moment_only_as_the_store_may_have_been_emptied(clock):
    told = Told(clock)
    told.hear(one(requests_per_minute=1), [Heads(requests=60.0)])
    clock.now += 0.99
    assert told.refusal(one(requests_per_minute=1)).retry_after == 59
    clock.now += 0.01
    assert told.refusal(one(requests_per_minute=1)) is None


@pytest.mark.parametrize(
    ("figures", "heads"),
    [
        ({"requests_per_minute": 2, "tokens_per_minute": 60}, Heads(requests=30.0, tokens=60.0)),
        ({"tokens_per_minute": 60}, Heads(tokens=70.0)),
        ({"tokens_per_day": 60}, Heads(day=90_000.0)),
        ({"requests_per_minute": 2, "concurrency": 1}, Heads(requests=30.0, in_flight=1)),
    ],
)
def test_what_the_number_of_requests_does_not_refuse_is_for_the_store_to_say(clock, figures, heads):
    told = Told(clock)
    told.hear(one(**figures), [heads])
    assert told.refusal(one(**figures)) is None
    assert len(told) == 0


def test_any_budget_may_be_the_one_that_refuses(clock):
    told = Told(clock)
    both = (*one(tokens_per_minute=60), Budget("tenant:t", Limits(requests_per_minute=1)))
    told.hear(both, [Heads(), Heads(requests=60.0)])
    assert told.refusal(both).spec.code == "rate_limited"


@pytest.mark.parametrize("other", [one(requests_per_minute=5), one("b", requests_per_minute=1), one(concurrency=1)])
def test_other_figures_and_other_callers_are_another_question(clock, other):
    told = Told(clock)
    told.hear(one(requests_per_minute=1), [Heads(requests=60.0)])
    assert told.refusal(other) is None


def test_a_caller_of_the_same_tenant_is_another_question(clock):
    told = Told(clock)
    tenant = Budget("tenant:t", Limits(requests_per_minute=1))
    told.hear((*one(concurrency=5), tenant), [Heads(), Heads(requests=60.0)])
    assert told.refusal((tenant,)) is None


def test_only_those_refused_last_are_remembered(clock):
    told = Told(clock, capacity=3)
    for number in range(9):
        told.hear(one(number, requests_per_minute=1), [Heads(requests=60.0)])
    assert len(told) == 3
    assert [told.refusal(one(number, requests_per_minute=1)) is None for number in (5, 6, 8)] == [True, False, False]
