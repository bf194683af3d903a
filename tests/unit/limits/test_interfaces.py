"""What every limiter keeps: one suite for the local and the shared one."""

from __future__ import annotations

import pytest

from gateway.limits.interfaces import LimitReached, Standing
from gateway.model import NO_LIMITS, Budget, Limits


def one(holder="principal:app", **figures):
    return Budget(holder, Limits(**figures))


def refused(site, *budgets, tokens=0):
    with pytest.raises(LimitReached) as caught:
        site.admit(*budgets, tokens=tokens)
    return caught.value


CASES = {
    "requests": ({"requests_per_minute": 12}, 0, "rate_limited", "requests per minute"),
    "tokens a minute": ({"tokens_per_minute": 1_200}, 100, "tokens_limited", "tokens per minute"),
    "tokens a day": ({"tokens_per_day": 1_200}, 100, "tokens_limited", "tokens per day"),
    "at once": ({"concurrency": 12}, 0, "concurrency_limited", "requests at once"),
}


@pytest.mark.parametrize("case", CASES)
def test_of_many_at_once_exactly_the_figure_is_admitted(limits_site, case):
    figures, tokens, code, words = CASES[case]
    assert limits_site.admitted(40, one(**figures), tokens=tokens) == 12
    error = refused(limits_site, one(**figures), tokens=tokens)
    assert error.spec.code == code
    assert error.message == f"Limit of {words} reached."
    assert error.retry_after >= 1
    assert not error.never


def told(error):
    """What a refusal says, but for times that pass while a test asks."""
    return (
        type(error),
        error.spec,
        error.message,
        error.retry,
        error.standing._replace(reset_requests=0, reset_tokens=0),
    )


def test_whom_the_number_of_requests_refuses_is_told_without_being_asked_for_more(limits_site):
    own, tenant = one(requests_per_minute=2, tokens_per_day=10**6), one("tenant:t", requests_per_minute=9)
    assert limits_site.limiter.spent((own, tenant)) is None
    assert limits_site.admitted(12, own, tenant) == 2
    for _ in range(3):
        error = limits_site.limiter.spent((own, tenant))
        assert told(error) == told(refused(limits_site, own, tenant))
        assert error.retry_after in {29, 30}
    assert limits_site.limiter.spent((tenant,)) is None


@pytest.mark.parametrize(
    "figures", [{"tokens_per_minute": 10}, {"tokens_per_day": 10}, {"concurrency": 1}], ids=["minute", "day", "at once"]
)
def test_what_else_refuses_is_not_told_unasked(limits_site, figures):
    budget = one(requests_per_minute=9, **figures)
    limits_site.admit(budget, tokens=10)
    for _ in range(3):  # as many as there may be instances
        refused(limits_site, budget, tokens=10)
    assert limits_site.limiter.spent((budget,)) is None


def test_other_figures_count_at_once(limits_site):
    few, more = one(requests_per_minute=1), one(requests_per_minute=60)
    assert limits_site.admitted(9, few) == 1
    assert limits_site.limiter.spent((few,)) is not None
    assert limits_site.limiter.spent((more,)) is None


def test_a_refusal_never_says_whose_limit_it_is(limits_site):
    budget = one("tenant:acme", requests_per_minute=1)
    limits_site.admit(budget)
    error = refused(limits_site, budget)
    assert "acme" not in f"{error.message} {error.args} {error.param} {error.standing}"


def test_a_request_takes_from_every_budget_or_from_none(limits_site):
    own, tenant = one("principal:a", requests_per_minute=10), one("tenant:t", requests_per_minute=2)
    assert limits_site.admitted(10, own, tenant) == 2
    # 8 were refused by the tenant's limit: they cost the principal nothing.
    assert limits_site.admitted(20, own) == 8


def test_one_budgets_place_is_not_taken_when_another_refuses(limits_site):
    own, tenant = one("principal:a", concurrency=3), one("tenant:t", requests_per_minute=1)
    assert limits_site.admitted(5, own, tenant) == 1
    assert limits_site.admitted(5, own) == 2


def test_what_is_refused_passes_after_the_time_that_was_said(limits_site):
    budget = one(requests_per_minute=6)
    assert limits_site.admitted(7, budget) == 6
    wait = refused(limits_site, budget).retry_after
    assert wait == 10
    limits_site.advance(wait - 1)
    assert limits_site.admitted(1, budget) == 0
    limits_site.advance(1)
    assert limits_site.admitted(2, budget) == 1


def test_the_slowest_of_several_limits_is_named(limits_site):
    own = one("principal:a", requests_per_minute=1, tokens_per_day=100, concurrency=1)
    tenant = one("tenant:t", tokens_per_minute=100)
    limits_site.admit(own, tenant, tokens=100)
    error = refused(limits_site, own, tenant, tokens=100)
    assert error.message == "Limit of tokens per day reached."
    assert 86_390 <= error.retry_after <= 86_400


def test_more_tokens_than_the_figure_never_pass_and_the_message_says_what_to_lower(limits_site):
    error = refused(limits_site, one(tokens_per_minute=100), tokens=101)
    assert error.never
    assert error.retry_after is None
    assert error.spec.code == "tokens_limited"
    assert "tokens per minute" in error.message
    assert "max_tokens" in error.message
    limits_site.admit(one(tokens_per_minute=100), tokens=100)


@pytest.mark.parametrize("figure", ["requests_per_minute", "tokens_per_minute", "tokens_per_day", "concurrency"])
def test_a_figure_of_nought_lets_nothing_pass(limits_site, figure):
    assert refused(limits_site, one(**{figure: 0}), tokens=1).never


def test_what_was_not_used_is_given_back(limits_site):
    budget = one(tokens_per_minute=1_000)
    lease = limits_site.admit(budget, tokens=900)
    assert limits_site.admitted(1, budget, tokens=200) == 0
    lease.settle(50)
    limits_site.deliver()
    assert limits_site.admitted(1, budget, tokens=900) == 1
    assert limits_site.admitted(1, budget, tokens=100) == 0


def test_no_more_is_given_back_than_was_taken(limits_site):
    budget = one(tokens_per_minute=1_000)
    other = limits_site.admit(budget, tokens=600)
    limits_site.admit(budget, tokens=100).settle(-5_000)
    limits_site.deliver()
    assert limits_site.admitted(1, budget, tokens=450) == 0
    other.settle(600)
    assert limits_site.admitted(1, budget, tokens=400) == 1


def test_what_was_used_beyond_the_reserve_delays_what_follows(limits_site):
    budget = one(tokens_per_minute=600)
    limits_site.admit(budget, tokens=100).settle(1_200)
    limits_site.deliver()
    error = refused(limits_site, budget, tokens=10)
    assert error.standing.remaining_tokens == 0
    assert 60 <= error.retry_after <= 61
    limits_site.advance(62)
    limits_site.admit(budget, tokens=10)


def test_an_engine_that_counts_wrongly_does_not_lock_its_caller_out_for_years(limits_site):
    budget = one(tokens_per_minute=600_000_000)
    limits_site.admit(budget, tokens=0).settle(2**63)
    limits_site.deliver()
    limits_site.admit(budget, tokens=100_000_000)


def test_only_the_first_settlement_counts_before_and_after_the_end(limits_site):
    budget = one(tokens_per_minute=1_000, concurrency=1)
    lease = limits_site.admit(budget, tokens=1_000)
    lease.close()
    lease.settle(400)
    lease.settle(0)
    lease.close()
    limits_site.deliver()
    assert limits_site.admitted(1, budget, tokens=601) == 0
    assert limits_site.admitted(2, budget, tokens=600) == 1


def test_what_is_not_settled_stays_used(limits_site):
    budget = one(tokens_per_minute=1_000)
    limits_site.admit(budget, tokens=1_000).close()
    limits_site.deliver()
    assert limits_site.admitted(1, budget, tokens=100) == 0


def test_a_place_comes_back_at_once_and_only_once(limits_site):
    budget = one(concurrency=2)
    first, _ = limits_site.admit(budget), limits_site.admit(budget)
    assert limits_site.admitted(1, budget) == 0
    first.close()
    first.close()
    # Without a delivery: the next request of the same instance knows.
    if not limits_site.exact:
        limits_site.turn -= 1
        limits_site.limiters = [first._limiter]
    assert limits_site.admitted(3, budget) == 1


def test_no_budget_and_no_figure_admit_everything(limits_site):
    assert limits_site.admitted(5, tokens=10**9) == 5
    assert limits_site.admitted(5, Budget("principal:a", NO_LIMITS), tokens=10**9) == 5
    lease = limits_site.admit(Budget("principal:a", NO_LIMITS), tokens=5)
    assert lease.standing is None
    lease.settle(3)
    lease.close()


def test_the_standing_is_that_of_the_tightest_limits_a_minute(limits_site):
    own = one("principal:a", requests_per_minute=10, tokens_per_minute=600, tokens_per_day=1_000)
    tenant = one("tenant:t", requests_per_minute=6, tokens_per_minute=6_000)
    left = limits_site.admit(own, tenant, tokens=120).standing
    assert left[:2] == (6, 5)
    assert left.reset_requests == pytest.approx(10, abs=0.1)
    assert left[3] == 600
    assert left.remaining_tokens == pytest.approx(480, abs=1)
    assert left.reset_tokens == pytest.approx(12, abs=0.1)


def test_a_refusal_carries_the_standing(limits_site):
    budget = one(requests_per_minute=2, tokens_per_minute=100)
    assert limits_site.admitted(3, budget, tokens=10) == 2
    left = refused(limits_site, budget, tokens=10).standing
    assert left[:2] == (2, 0)
    assert left.remaining_tokens == pytest.approx(80, abs=1)
    assert refused(limits_site, one("b", concurrency=0)).standing == Standing()


def test_other_figures_take_effect_and_what_was_used_stays_used(limits_site):
    assert limits_site.admitted(9, one(requests_per_minute=8)) == 8
    assert limits_site.admitted(1, one(requests_per_minute=16)) == 0
    limits_site.advance(30)
    assert limits_site.admitted(20, one(requests_per_minute=16)) == 8
