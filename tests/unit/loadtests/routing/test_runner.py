from collections.abc import Sequence

import pytest

from loadtests.bench.procs import StartFailed, layout
from loadtests.routing import runner
from loadtests.routing.client import Answered
from loadtests.routing.engines import Counters, Told
from loadtests.routing.figures import Run
from loadtests.routing.runner import LEAD, Look, Wish, counted, run_all
from loadtests.routing.scenarios import SCENARIOS, Scenario
from loadtests.routing.targets import TARGETS, Target
from loadtests.routing.traffic import Turn

CORES = layout({0, 1})


def test_the_lead_does_not_count() -> None:
    answered = [Answered(LEAD - 0.1, 9.0, 9.0), Answered(LEAD, 0.1, 1.0), Answered(LEAD + 2, 0.2, 1.0)]
    before = Look(50.0, Told([Counters(100, 10, 1)], 3.0), [2.0, 7.0])
    after = Look(60.0, Told([Counters(400, 160, 3)], 0.2), [3.0, 9.0])
    run = counted(answered, before, after)
    assert [each.at for each in run.answered] == [0.0, 2.0]
    assert run.engines == [Counters(300, 150, 2)]
    assert run.starved == pytest.approx(0.2)
    assert run.stall == 0.2, "the lead's own is not the run's"


class Calls:
    """Stands in for ``runner.run``."""

    def __init__(self, failing: str = "") -> None:
        self.made: list[tuple[str, str]] = []
        self.turns: list[Sequence[Turn]] = []
        self._failing = failing

    def __call__(self, scenario: Scenario, target: Target, turns: Sequence[Turn], cores: object) -> Run:
        self.made.append((scenario.name, target.name))
        self.turns.append(turns)
        if target.name == self._failing:
            raise StartFailed("not today")
        return Run([], [])


def test_targets_take_turns_and_get_the_same_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    monkeypatch.setattr(runner, "run", calls)
    measured = run_all(SCENARIOS[2:3], TARGETS[:2], Wish(seconds=2.0, repeat=2, seed=1), CORES, lambda text: None)
    assert [target for _, target in calls.made] == ["estimate", "least-in-flight"] * 2
    assert calls.turns[0] == calls.turns[1]
    assert calls.turns[2] == calls.turns[3]
    assert calls.turns[0] != calls.turns[2]
    assert calls.turns[0][-1].at > LEAD
    assert [len(each.runs) for each in measured] == [2, 2]


def test_a_target_that_fails_is_left_out_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(failing="estimate")
    monkeypatch.setattr(runner, "run", calls)
    measured = run_all(SCENARIOS[3:5], TARGETS[:2], Wish(seconds=1.0, repeat=2), CORES, lambda text: None)
    tried = [scenario for scenario, target in calls.made if target == "estimate"]
    assert tried == ["slow-replica", "bursts"], "once for each scenario"
    assert [(each.target.name, len(each.runs), each.failed) for each in measured] == [
        ("estimate", 0, "not today"),
        ("least-in-flight", 2, ""),
    ] * 2
