import pytest

from loadtests.overload import scenarios
from loadtests.overload.figures import Capacity
from loadtests.overload.goals import goals
from loadtests.overload.result import Run, rows, spans
from loadtests.overload.scenarios import ENGINE, SCENARIOS, Scenario


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_every_stream_has_its_caller_and_every_scenario_its_goals(scenario: Scenario) -> None:
    phases = [*scenario.phases, *([scenario.reference] if scenario.reference else [])]
    assert {stream.caller for phase in phases for stream in phase.streams} == set(scenario.callers)
    when = spans(scenario.phases)
    assert goals(Run(scenario, Capacity(0.0, 0.0), [], when, rows([], when))), "and nothing measured is no crash"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_a_run_ends_within_three_minutes(scenario: Scenario) -> None:
    phases = [*scenario.phases, *([scenario.reference] if scenario.reference else [])]
    assert sum(phase.seconds for phase in phases) <= 100, "beside it there are a capacity, starts, and last answers"


def test_a_full_engine_never_runs_out_of_cache() -> None:
    longest = max(stream.prompt + stream.output.most for each in SCENARIOS for p in each.phases for stream in p.streams)
    assert ENGINE.max_num_seqs * (longest + 100) <= (ENGINE.kv_blocks - 1) * ENGINE.block_size


def test_selecting_keeps_the_order_of_the_table() -> None:
    assert [each.name for each in scenarios.select(["classes", "overload"])] == ["overload", "classes"]
    assert scenarios.select([]) == SCENARIOS
    with pytest.raises(scenarios.UnknownScenario, match="long-prompts"):
        scenarios.select(["long"])
