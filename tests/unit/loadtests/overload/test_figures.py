import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.overload.answers import GAVE_UP, SERVED, WRONG, Heard
from loadtests.overload.arrivals import Request
from loadtests.overload.client import Attempt
from loadtests.overload.figures import (
    WINDOW,
    Capacity,
    capacity,
    cost_within,
    fair_shares,
    in_time,
    over_time,
    p90,
    rate,
    recovery,
    row,
    tokens_within,
    wished,
)


def attempt(
    at: float,
    ttft: float | None = 0.1,
    total: float = 1.1,
    tokens: int = 10,
    outcome: str = SERVED,
    *,
    caller: str = "a",
    phase: str = "both",
    number: int = 0,
    retry_after: float | None = None,
    queued: float | None = None,
) -> Attempt:
    request = Request(at, caller, phase, 100, 10, 1)
    return Attempt(request, number, at, total, Heard(outcome, ttft, tokens, queued, retry_after))


def test_tokens_come_evenly_from_the_first_one_to_the_end() -> None:
    one = attempt(1.0, ttft=1.0, total=3.0, tokens=20)
    assert tokens_within(one, 0.0, 10.0) == pytest.approx(20)
    assert tokens_within(one, 0.0, 2.0) == 0.0
    assert tokens_within(one, 2.5, 3.0) == pytest.approx(5)
    assert tokens_within(one, 3.5, 9.0) == pytest.approx(5)


def test_an_answer_that_came_at_once_counts_at_its_moment() -> None:
    one = attempt(1.0, ttft=1.0, total=1.0, tokens=20)
    assert (tokens_within(one, 2.0, 3.0), tokens_within(one, 1.0, 2.0)) == (20.0, 0.0)


def test_what_was_not_served_gave_nothing() -> None:
    for outcome in (GAVE_UP, WRONG, "queue_full"):
        assert tokens_within(attempt(1.0, outcome=outcome), 0.0, 10.0) == 0.0
        assert cost_within(attempt(1.0, outcome=outcome), 0.0, 10.0) == 0.0


def test_a_prompt_counts_when_its_first_token_came() -> None:
    one = attempt(1.0, ttft=1.0, total=3.0, tokens=20)
    assert cost_within(one, 0.0, 3.0) == pytest.approx(100 + 10)
    assert cost_within(one, 3.0, 9.0) == pytest.approx(10)


@given(st.floats(0, 20), st.floats(0, 5), st.floats(0, 5), st.integers(1, 500), st.lists(st.floats(0.01, 29.9)))
def test_cutting_time_in_pieces_loses_no_token(
    at: float, ttft: float, rest: float, tokens: int, cuts: list[float]
) -> None:
    one = attempt(at, ttft=ttft, total=ttft + rest, tokens=tokens)
    edges = [0.0, *sorted(cuts), 31.0]
    pieces = sum(tokens_within(one, begin, end) for begin, end in itertools.pairwise(edges))
    assert pieces == pytest.approx(tokens)


def test_who_asks_again_wishes_for_no_more() -> None:
    assert wished(attempt(1.0, outcome="queue_full")) == 110
    assert wished(attempt(1.0, number=1)) == 0


def test_a_rate_is_tokens_a_second() -> None:
    assert rate([attempt(0.0), attempt(0.0)], 0.1, 1.1) == pytest.approx(20)


def test_capacity_is_of_the_time_in_full_course() -> None:
    attempts = [attempt(float(second), ttft=0.0, total=1.0, tokens=40) for second in range(10) for _ in range(3)]
    assert capacity(attempts, 3.0, 10.0) == Capacity(pytest.approx(120), pytest.approx(3))
    assert capacity([], 3.0, 10.0) == Capacity(0.0, 0.0)


def test_in_time_is_up_to_the_target() -> None:
    assert in_time(attempt(0.0, ttft=2.0))
    assert not in_time(attempt(0.0, ttft=2.001))
    assert not in_time(attempt(0.0, outcome="queue_full"))


def test_a_row_is_of_one_caller_in_one_phase() -> None:
    attempts = [
        attempt(0.0, ttft=0.1, total=1.1),
        attempt(1.0, ttft=3.0, total=4.0, queued=2.5),
        attempt(1.0, None, 0.1, 0, "queue_full", retry_after=4.0),
        attempt(5.0, None, 0.1, 0, "queue_timeout", number=1),
        attempt(2.0, None, 8.0, 0, GAVE_UP),
        attempt(2.0, None, 8.0, 0, WRONG),
        attempt(0.0, caller="b"),
        attempt(11.0, phase="after"),
    ]
    found = row(attempts, "both", "a", 0.0, 10.0)
    assert (found.sent, found.again, found.served, found.in_time) == (5, 1, 2, 1)
    assert (found.gave_up, found.wrong) == (1, 1)
    assert (found.refused, found.unspoken) == ({"queue_full": 1, "queue_timeout": 1}, 1)
    assert found.retry_after.p99 == 4.0
    assert (found.ttft.p50, found.ttft.p99) == (0.1, 3.0)
    assert found.queued.p50 == 2.5
    assert found.rate == pytest.approx(2.0)
    assert found.goodput == pytest.approx(1.0)
    assert found.cost == pytest.approx(220)


def test_what_comes_after_a_phase_is_not_its_own() -> None:
    found = row([attempt(8.0, ttft=1.5, total=3.5, tokens=20)], "both", "a", 0.0, 10.0)
    assert found.served == 1
    assert found.rate == pytest.approx(0.5)


def test_a_p90_holds_what_never_got_a_first_token() -> None:
    answers = [attempt(1.0 + number / 100, ttft=0.1) for number in range(8)]
    assert p90(answers, 1.0, 2.0) == 0.1
    assert p90([*answers, *[attempt(1.5, None, outcome="queue_full")] * 2], 1.0, 2.0) == math.inf
    assert p90([*answers, attempt(1.5, 9.0, number=1)], 1.0, 2.0) == 0.1, "of first attempts"
    assert p90(answers, 5.0, 6.0) is None


def _after_overload(normal_from: float) -> list[Attempt]:
    moments = [10.0 + number / 10 for number in range(200)]
    return [attempt(at, ttft=0.1 if at >= normal_from else 3.0) for at in moments]


def test_recovery_is_the_first_window_that_is_normal() -> None:
    assert recovery(_after_overload(10.0), 10.0, 0.15, 30.0) == 0.0
    late = recovery(_after_overload(14.0), 10.0, 0.15, 30.0)
    assert late is not None
    assert 4.0 - WINDOW * 0.1 - 0.5 <= late <= 4.0
    assert recovery(_after_overload(99.0), 10.0, 0.15, 30.0) is None
    assert recovery([], 10.0, 0.15, 30.0) is None


def test_fair_shares_leave_to_others_what_one_does_not_want() -> None:
    assert fair_shares({"a": 1.8, "b": 0.2}, {"a": 1, "b": 1}, 1.0) == pytest.approx({"a": 0.8, "b": 0.2})
    assert fair_shares({"a": 1.0, "b": 1.0}, {"a": 1, "b": 3}, 1.0) == pytest.approx({"a": 0.25, "b": 0.75})
    assert fair_shares({"a": 0.1, "b": 0.2}, {"a": 1, "b": 1}, 1.0) == pytest.approx({"a": 0.1, "b": 0.2})
    assert fair_shares({}, {}, 1.0) == {}


_FLOWS = st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.floats(0, 100), st.floats(0.1, 10)), min_size=1)


@given(_FLOWS, st.floats(0, 500))
def test_fair_shares_are_max_min_fair(flows: dict[str, tuple[float, float]], total: float) -> None:
    demands = {name: demand for name, (demand, _) in flows.items()}
    weights = {name: weight for name, (_, weight) in flows.items()}
    shares = fair_shares(demands, weights, total)
    assert all(share <= demands[name] + 1e-6 for name, share in shares.items())
    assert sum(shares.values()) == pytest.approx(min(total, sum(demands.values())), abs=1e-6)
    wanting = [shares[name] / weights[name] for name in shares if shares[name] < demands[name] - 1e-6]
    for level in wanting:
        assert all(share / weights[name] <= level + 1e-6 for name, share in shares.items())


def test_a_course_over_time_has_all_and_those_in_time() -> None:
    late = attempt(0.0, ttft=2.5, total=3.5)
    moments, rates, good = over_time([attempt(0.0, ttft=0.0, total=1.0), late], 4.0)
    assert moments == [0.5, 1.5, 2.5, 3.5]
    assert rates == pytest.approx([10, 0, 5, 5])
    assert good == pytest.approx([10, 0, 0, 0])
