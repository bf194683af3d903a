from collections.abc import Sequence

import pytest

from loadtests.bench.procs import StartFailed, layout
from loadtests.routing import runner
from loadtests.routing.client import Answered
from loadtests.routing.engines import Counters, Told
from loadtests.routing.figures import Run
from loadtests.routing.place import Target
from loadtests.routing.runner import LEAD, Load, Look, Wish, counted, load_of, run_all, shares
from loadtests.routing.scenarios import SCENARIOS, Scenario
from loadtests.routing.targets import TARGETS
from loadtests.routing.traffic import Turn

CORES = layout({0, 1})


def test_the_lead_does_not_count() -> None:
    answered = [Answered(LEAD - 0.1, 9.0, 9.0), Answered(LEAD, 0.1, 1.0), Answered(LEAD + 2, 0.2, 1.0)]
    before = Look(50.0, Told([Counters(100, 10, 1)], 3.0), [2.0, 7.0])
    after = Look(60.0, Told([Counters(400, 160, 3)], 0.2), [3.0, 9.0])
    run = counted(answered, before, after, 20.0)
    assert [each.at for each in run.answered] == [0.0, 2.0]
    assert run.engines == [Counters(300, 150, 2)]
    assert run.starved == pytest.approx(0.2)
    assert run.stall == 0.2, "the lead's own is not the run's"
    assert run.seconds == 20.0


class Calls:
    """Stands in for ``runner.run``."""

    def __init__(self, failing: str = "", stalls: Sequence[float] = ()) -> None:
        self.made: list[tuple[str, str]] = []
        self.turns: list[Sequence[Turn]] = []
        self._failing = failing
        self._stalls = iter(stalls)

    def __call__(self, scenario: Scenario, target: Target, load: Load, cores: object) -> Run:
        self.made.append((scenario.name, target.name))
        self.turns.append(load.turns)
        if target.name == self._failing:
            raise StartFailed("not today")
        return Run([], [], stall=next(self._stalls, 0.0))


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


@pytest.mark.parametrize(
    ("again", "stalls", "kept"),
    [(0, [0.5], 0.5), (2, [0.0, 9.9], 0.0), (2, [0.5, 0.02, 9.9], 0.02), (2, [0.5, 0.4, 0.3, 9.9], 0.3)],
)
def test_a_run_that_the_host_disturbed_is_made_anew_a_few_times(
    again: int, stalls: list[float], kept: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(stalls=stalls)
    monkeypatch.setattr(runner, "run", calls)
    (measured,) = run_all(SCENARIOS[3:4], TARGETS[:1], Wish(1.0, again=again), CORES, lambda text: None)
    assert [run.stall for run in measured.runs] == [kept]
    assert all(turns == calls.turns[0] for turns in calls.turns), "the same arrivals"


def test_a_seed_decides_which_instance_gets_a_request() -> None:
    both = next(each for each in SCENARIOS if each.instances == 2)
    load = load_of(both, 10.0, 3)
    assert load == load_of(both, 10.0, 3)
    assert load.seconds == 10.0
    first, second = shares(load, 2)
    assert len(first) == pytest.approx(len(second), rel=0.3)
    assert sorted([*first, *second], key=lambda turn: turn.at) == load.turns
    assert {turn.session for turn in first} & {turn.session for turn in second}


def test_one_that_stands_for_all_instances_gets_everything() -> None:
    load = load_of(next(each for each in SCENARIOS if each.instances == 2), 5.0, 3)
    assert shares(load, 1) == [load.turns]
    alone = load_of(SCENARIOS[0], 5.0, 3)
    assert set(alone.doors) == {0}
