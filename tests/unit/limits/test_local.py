"""What is the local limiter's own: its memory, and that its written-out sums are those of ``gcra``."""

from __future__ import annotations

import pytest

from gateway.limits.interfaces import LimitReached
from gateway.limits.local import LocalLimiter
from gateway.model import Budget, Limits


class Clock:
    now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def one(number, **figures):
    return [Budget(f"principal:{number}", Limits(**figures))]


def refuses(limiter, budgets, tokens=0):
    try:
        limiter.admit(budgets, tokens)
    except LimitReached:
        return True
    return False


def test_idle_holders_are_forgotten_first(clock):
    limiter = LocalLimiter(clock, max_holders=10)
    for number in range(10):
        limiter.admit(one(number, requests_per_minute=1), 0).close()
        clock.now += 10
    # By now 0 to 3 are whole again. Four new holders take their places and nobody else's.
    for number in range(100, 104):
        limiter.admit(one(number, requests_per_minute=1), 0).close()
    assert len(limiter) == 10
    assert [refuses(limiter, one(number, requests_per_minute=1)) for number in range(5, 10)] == [True] * 5


def test_a_holder_with_a_request_in_flight_is_never_forgotten(clock):
    limiter = LocalLimiter(clock, max_holders=10)
    held = [limiter.admit(one(number, concurrency=1), 0) for number in range(25)]
    assert len(limiter) == 25
    assert [refuses(limiter, one(number, concurrency=1)) for number in range(25)] == [True] * 25
    for lease in held:
        lease.close()
    limiter.admit(one("new", concurrency=1), 0)
    assert len(limiter) == 10


def test_one_in_debt_is_forgotten_last(clock):
    limiter = LocalLimiter(clock, max_holders=10)
    debtor = one("debtor", tokens_per_minute=60)
    lease = limiter.admit(debtor, 60)
    lease.settle(61)
    lease.close()
    for number in range(200):
        limiter.admit(one(number, tokens_per_day=10), 10).close()
    assert len(limiter) == 10
    assert refuses(limiter, debtor, 1)


def test_the_bound_holds_for_refusals_too(clock):
    limiter = LocalLimiter(clock, max_holders=10)
    for number in range(50):
        assert refuses(limiter, one(number, requests_per_minute=0))
    assert len(limiter) <= 10


def test_both_holders_of_a_call_survive_it_when_memory_is_full(clock):
    limiter = LocalLimiter(clock, max_holders=1)
    own, tenant = one("a", concurrency=1), one("b", concurrency=1)
    lease = limiter.admit(own + tenant, 0)
    assert refuses(limiter, own)
    assert refuses(limiter, tenant)
    lease.close()
    assert not refuses(limiter, tenant)


def test_a_limit_that_is_gone_is_forgotten(clock):
    limiter = LocalLimiter(clock)
    limiter.admit(one("a", tokens_per_minute=60), 60).settle(600)
    limiter.admit(one("a", requests_per_minute=60), 60)
    limiter.admit(one("a", tokens_per_minute=60), 60)


def test_the_standing_is_read_when_it_is_asked_for(clock):
    limiter = LocalLimiter(clock)
    lease = limiter.admit(one("a", requests_per_minute=6), 0)
    limiter.admit(one("a", requests_per_minute=6), 0)
    assert lease.standing.remaining_requests == 4
    clock.now += 20
    assert lease.standing.remaining_requests == 6
