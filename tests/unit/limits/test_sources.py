"""The brake on guessing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.sources import FailureGate


class Clock:
    now = 500.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def fail(gate, source, times):
    for _ in range(times):
        gate.failed(source)


def test_a_source_is_blocked_after_its_failures_and_free_again_as_they_age(clock):
    gate = FailureGate(6, clock)
    fail(gate, "192.0.2.1", 5)
    assert gate.blocked("192.0.2.1") is None
    gate.failed("192.0.2.1")
    assert gate.blocked("192.0.2.1") == 10
    clock.now += 9
    assert gate.blocked("192.0.2.1") == 1
    clock.now += 1
    assert gate.blocked("192.0.2.1") is None


@given(
    per_minute=st.integers(1, 100),
    events=st.lists(st.tuples(st.floats(0.0, 100.0), st.sampled_from(["192.0.2.1", "2001:db8::1"])), max_size=60),
)
def test_a_strike_is_what_asking_and_then_failing_is(per_minute, events):
    clock = Clock()
    one, other = FailureGate(per_minute, clock, max_sources=1), FailureGate(per_minute, clock, max_sources=1)
    for seconds, source in events:
        clock.now += seconds / per_minute
        wait = other.blocked(source)
        if wait is None:
            other.failed(source)
        assert one.strike(source) == wait


def test_sources_do_not_pay_for_each_other(clock):
    gate = FailureGate(1, clock)
    gate.failed("192.0.2.1")
    assert gate.blocked("192.0.2.1") == 60
    assert gate.blocked("192.0.2.2") is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff", True),
        ("2001:db8:1:2::1", "2001:DB8:1:2:0::2", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("no:address", "no:address", True),
        ("no:address", "no:other", False),
        (":\0", ":\0", True),
    ],
)
def test_an_ipv6_source_is_its_network(clock, one, other, same):
    gate = FailureGate(1, clock)
    gate.failed(one)
    assert (gate.blocked(other) is not None) == same


def test_failures_while_blocked_lengthen_it_by_a_minute_at_most(clock):
    gate = FailureGate(60, clock)
    fail(gate, "a", 100_000)
    assert gate.blocked("a") == 61


def test_memory_is_bounded_and_the_last_to_fail_are_kept(clock):
    gate = FailureGate(1, clock, max_sources=100)
    for number in range(500):
        gate.failed("first")
        gate.failed(f"source-{number}")
    assert len(gate) == 100
    assert gate.blocked("first") is not None
    assert gate.blocked("source-499") is not None
    assert gate.blocked("source-0") is None


def test_another_number_takes_effect_for_what_comes(clock):
    gate = FailureGate(1, clock)
    gate.failed("a")
    gate.adopt(60)
    fail(gate, "b", 59)
    assert gate.blocked("b") is None
    gate.failed("b")
    assert gate.blocked("b") == 1
    with pytest.raises(ValueError, match="at least one"):
        gate.adopt(0)


def test_a_gate_that_lets_nothing_pass_is_a_mistake(clock):
    with pytest.raises(ValueError, match="at least one"):
        FailureGate(0, clock)
