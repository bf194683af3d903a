from collections.abc import Sequence

import pytest

from loadtests.routing import goals
from loadtests.routing.client import Answered
from loadtests.routing.figures import Run
from loadtests.routing.goals import Beside, beside
from loadtests.routing.runner import Measured
from loadtests.routing.scenarios import SCENARIOS, by_name
from loadtests.routing.targets import TARGETS, select


def measured(target: str, ttft: float, *, scenario: str = "chat", stall: float = 0.0, failed: str = "") -> Measured:
    runs: Sequence[Run] = [] if failed else [Run([Answered(0.0, ttft, 1.0)], [], stall=stall)]
    return Measured(by_name(scenario), select([target])[0], runs, failed)


def test_ours_is_held_against_the_best_peer_and_the_oracle_of_the_same_scenario() -> None:
    found = beside(
        [
            measured("estimate", 0.2),
            measured("round-robin", 0.01),
            measured("oracle", 0.16),
            measured("smg-cache-aware", 0.4),
            measured("vllm-router-cache-aware", 0.25),
            measured("estimate", 0.9, scenario="bursts"),
            measured("smg-cache-aware", 0.3, scenario="bursts"),
            measured("oracle", 0.3, scenario="bursts"),
        ]
    )
    assert [(each.scenario, each.other, each.holds) for each in found] == [
        ("chat", "vllm-router-cache-aware", True),
        ("chat", "oracle", False),
        ("bursts", "smg-cache-aware", False),
        ("bursts", "oracle", None),
    ]
    assert [each.ratio for each in found] == pytest.approx([0.8, 1.25, 3.0, 3.0])


def test_what_failed_or_was_disturbed_is_not_compared() -> None:
    rows = [
        measured("estimate", 0.2),
        measured("smg-cache-aware", 0.01, failed="not today"),
        measured("smg-least-load", 0.01, stall=0.5),
        measured("smg-power-of-two", 0.3),
        measured("oracle", 0.1, stall=0.5),
    ]
    assert [(each.other, each.most) for each in beside(rows)] == [("smg-power-of-two", 1.0)]
    assert beside([measured("estimate", 0.2, stall=0.5), measured("oracle", 0.1)]) == []
    assert beside([]) == []


def test_the_goals_are_those_of_the_first_three_scenarios() -> None:
    assert list(goals.NEAR_ORACLE) == [each.name for each in SCENARIOS[:3]]
    assert [each.name for each in TARGETS if each.name == goals.OURS] == ["estimate"]


def test_each_comparison_is_a_line() -> None:
    assert goals.lines(
        [
            Beside("chat", "smg-least-load", 0.9, 1.0),
            Beside("chat", "oracle", 1.3, 1.25),
            Beside("x", "oracle", 2, None),
        ]
    ) == [
        "chat: estimate has 0.90 times the p90 TTFT of smg-least-load (to be below 1, as it should be)",
        "chat: estimate has 1.30 times the p90 TTFT of oracle (to be below 1.25, MISSED)",
        "x: estimate has 2.00 times the p90 TTFT of oracle",
    ]
