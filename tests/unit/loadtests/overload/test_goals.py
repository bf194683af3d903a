from dataclasses import replace

import pytest

from loadtests.overload.answers import SERVED, Heard
from loadtests.overload.arrivals import Request
from loadtests.overload.client import Attempt
from loadtests.overload.figures import Capacity
from loadtests.overload.goals import TURNS, Goal, goals
from loadtests.overload.result import Run, rows, spans
from loadtests.overload.scenarios import by_name


def attempt(
    at: float, caller: str, phase: str, ttft: float = 0.1, tokens: int = 10, prompt: int = 90, outcome: str = SERVED
) -> Attempt:
    heard = Heard(outcome, ttft, tokens) if outcome == SERVED else Heard(outcome)
    return Attempt(Request(at, caller, phase, prompt, tokens, 1), 0, at, ttft + 0.1, heard)


def run(name: str, attempts: list[Attempt], capacity: float = 100.0, reference: list[Attempt] | None = None) -> Run:
    scenario = by_name(name)
    when = spans(scenario.phases)
    made = Run(scenario, Capacity(capacity, capacity / 10), attempts, when, rows(attempts, when))
    if reference is None or scenario.reference is None:
        return made
    return replace(made, reference=rows(reference, spans([scenario.reference]))[0])


def verdicts(made: Run) -> list[bool]:
    return [goal.met for goal in goals(made)]


def every(begin: float, end: float, rate: float) -> list[float]:
    return [begin + number / rate for number in range(round((end - begin) * rate))]


def test_a_figure_that_is_missing_meets_nothing() -> None:
    assert not Goal("a", None, "<=", 1.0).met
    assert not Goal("a", 1.0, ">=", None).met
    assert Goal("a", 1.0, ">=", 1.0).met
    assert not Goal("a", 0.99, ">=", 1.0).met
    assert not Goal("a", 1.01, "<=", 1.0).met


def overload(*, during: float, slow_until: float = 40.0) -> list[Attempt]:
    """10 answers a second of 10 tokens each; those during overload take ``during`` seconds to their first token."""
    before = [attempt(at, "all", "before") for at in every(0, 10, 7)]
    flood = [attempt(at, "all", "overload", during) for at in every(10, 40, 10)]
    after = [attempt(at, "all", "after", 1.9 if at < slow_until else 0.1) for at in every(40, 60, 7)]
    return [*before, *flood, *after]


def test_goodput_recovery_and_spoken_refusals() -> None:
    assert verdicts(run("overload", overload(during=1.0))) == [True, True, True]
    assert verdicts(run("overload", overload(during=2.5))) == [False, True, True], "too late is no goodput"
    assert verdicts(run("overload", overload(during=1.0), capacity=120.0)) == [False, True, True]
    assert verdicts(run("overload", overload(during=1.0, slow_until=49.0))) == [True, True, True]
    assert verdicts(run("overload", overload(during=1.0, slow_until=53.0))) == [True, False, True]
    refused = attempt(20.0, "all", "overload", outcome="queue_full")
    assert verdicts(run("overload", [*overload(during=1.0), refused])) == [True, True, False]


def tenants(wait: float, *, lost: bool = False) -> list[Attempt]:
    large = [attempt(at, "a", "both", 3.0) for at in every(0, 26, 8)]
    refused = [attempt(at, "a", "both", outcome="queue_timeout") for at in every(0, 30, 10)]
    small = [attempt(at, "b", "both", wait) for at in every(0, 30, 2)]
    return [*large, *refused, *small, *([attempt(5.0, "b", "both", outcome="queue_full")] if lost else [])]


def test_a_small_tenant_waits_a_few_turns_at_most() -> None:
    alone = [attempt(at, "b", "b alone, half the replicas", 0.1) for at in every(0, 30, 2)]
    turns = TURNS / 10
    assert verdicts(run("tenants", tenants(0.05 + turns), reference=alone)) == [True] * 5
    assert verdicts(run("tenants", tenants(0.15 + turns), reference=alone)) == [True, False, False, True, True]
    assert verdicts(run("tenants", tenants(0.1, lost=True), reference=alone))[0] is False
    assert verdicts(run("tenants", tenants(0.1)))[1:3] == [False, False], "without a reference nothing is known"


def weighted(of_a: float, of_b: float) -> list[Attempt]:
    lost = [attempt(at, name, "both", outcome="queue_full") for name in "ab" for at in every(0, 40, 20)]
    a = [attempt(at, "a", "both") for at in every(0, 39, of_a)]
    return [*lost, *a, *(attempt(at, "b", "both") for at in every(0, 39, of_b))]


def test_served_tokens_go_by_weight() -> None:
    assert verdicts(run("weights", weighted(2.5, 7.5))) == [True, True]
    assert verdicts(run("weights", weighted(5.0, 5.0))) == [True, False]
    assert verdicts(run("weights", weighted(1.0, 9.0))) == [False, True]


def test_what_finds_free_places_in_the_beginning_does_not_count() -> None:
    first = [attempt(0.1, "a", "both", prompt=9990) for _ in range(30)]
    assert verdicts(run("weights", [*weighted(2.5, 7.5), *first])) == [True, True]


def test_shares_count_prompts_too() -> None:
    long = [attempt(at, "a", "both", prompt=3990) for at in every(0, 39, 0.25)]
    short = [attempt(at, "b", "both", prompt=90) for at in every(0, 39, 10)]
    lost = [attempt(at, name, "both", outcome="queue_full") for name in "ab" for at in every(0, 40, 20)]
    lost += [attempt(at, "a", "both", prompt=3990, outcome="queue_full") for at in every(0, 40, 20)]
    assert verdicts(run("long-prompts", [*long, *short, *lost])) == [True, True]
    assert verdicts(run("long-prompts", [*long * 3, *short, *lost])) == [True, False]


@pytest.mark.parametrize(("beside", "met"), [(0.2, True), (0.21, False)])
def test_bulk_may_double_what_interactive_requests_wait(beside: float, met: bool) -> None:
    attempts = [attempt(at, "interactive", "alone") for at in every(0, 30, 3)]
    attempts += [attempt(at, "interactive", "with bulk", beside) for at in every(30, 70, 3)]
    assert verdicts(run("classes", attempts)) == [met]
