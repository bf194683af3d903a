"""The small benchmark: every step runs, does what it says, and is told with its bound."""

from __future__ import annotations

import asyncio
import json

import pytest
from typer.testing import CliRunner

from loadtests.micro import balancing
from loadtests.micro.__main__ import app, is_over, line, record, rows
from loadtests.micro.steps import STEPS, Step, UnknownStep, select
from loadtests.micro.timing import Cost, measure


def test_the_cost_is_that_of_one_step():
    clock = iter(range(0, 100_000_000, 2_000_000)).__next__
    ran = []
    assert measure(lambda: ran.append(1), 4, 3, clock) == Cost(500.0, 500.0)
    assert len(ran) == 4  # the first one only warms up


def test_the_fastest_run_counts_and_the_middle_one_is_told():
    times = iter([0, 3_000, 0, 1_000, 0, 8_000])
    assert measure(lambda: None, 1, 3, times.__next__) == Cost(1.0, 3.0)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_every_step_runs(step):
    ((told, cost),) = asyncio.run(rows([step], 1))
    assert told is step
    assert 0.0 <= cost.least <= cost.usual


def test_the_bounds_are_those_that_are_promised():
    bounds = {step.name: step.bound for step in STEPS if step.bound is not None}
    assert {bounds[name] for name in bounds if name.startswith("decide-8")} == {15}
    assert {bounds[name] for name in bounds if name.startswith("decide-256")} == {60}
    assert (bounds["hash-32k"], bounds["key"], bounds["jwt"], bounds["limits"]) == (2, 5, 8, 10)


def test_a_decision_is_made_among_all_and_its_prompt_is_held():
    run, steps = balancing.decisions(8, void=8, held=8)
    choice = run.__closure__ and next(
        each.cell_contents for each in run.__closure__ if type(each.cell_contents) is list
    )
    run()
    assert steps == len(choice)
    assert all(len(each._held) == 8 for each in choice)


@pytest.mark.parametrize("size", [700, 1024, 32 * 1024])
def test_a_prompt_is_about_as_long_as_it_is_said_to_be(size):
    world = balancing.World(1)
    assert world.choice(balancing.chat(size, 1))._prompt.size == pytest.approx(size, rel=0.1)


STEP = Step("a", "what", 5, lambda: None)


def test_over_is_what_the_fastest_run_says():
    assert not is_over(STEP, Cost(5.0, 90.0))
    assert is_over(STEP, Cost(5.1, 5.1))
    assert not is_over(STEP._replace(bound=None), Cost(90.0, 90.0))
    assert "OVER" in line(STEP, Cost(6.0, 7.0))
    assert record(STEP, Cost(6.0, 7.0)) == {
        "name": "a", "what": "what", "least_us": 6.0, "median_us": 7.0, "bound_us": 5, "over": True
    }  # fmt: skip


def test_steps_are_chosen_by_name():
    assert [step.name for step in select(["key", "hash-1k"])] == ["hash-1k", "key"]
    assert select([]) == list(STEPS)
    with pytest.raises(UnknownStep, match="no step nothing"):
        select(["nothing", "key"])


def test_the_command_prints_a_table_or_json_and_checks_when_asked(monkeypatch):
    run = CliRunner().invoke
    table = run(app, ["--only", "limits", "--repeat", "1"])
    assert (table.exit_code, table.stdout.splitlines()[1].split()[0]) == (0, "limits")
    (told,) = json.loads(run(app, ["--only", "limits", "--repeat", "1", "--json"]).stdout)
    assert (told["name"], told["bound_us"]) == ("limits", 10)
    assert run(app, ["--only", "nothing"]).exit_code == 2
    monkeypatch.setattr("loadtests.micro.steps.STEPS", [step._replace(bound=0) for step in STEPS])
    assert run(app, ["--only", "limits", "--repeat", "1"]).exit_code == 0
    assert run(app, ["--only", "limits", "--repeat", "1", "--check"]).exit_code == 1
