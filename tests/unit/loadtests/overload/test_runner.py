from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadtests.bench.procs import StartFailed, layout
from loadtests.overload import runner
from loadtests.overload.client import Stand
from loadtests.overload.figures import Capacity
from loadtests.overload.result import Run, rows, spans
from loadtests.overload.runner import Wish, run_all
from loadtests.overload.scenarios import SCENARIOS, Phase, Scenario, by_name
from loadtests.overload.targets import Place, Target, select

CORES = layout({0, 1})


def empty(scenario: Scenario) -> Run:
    when = spans(scenario.phases)
    return Run(scenario, Capacity(10.0, 1.0), [], when, rows([], when))


def test_every_target_plays_what_it_can_each_repeat_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, str, int]] = []

    def run(scenario: Scenario, target: Target, wish: Wish, cores: object) -> Run:
        made.append((scenario.name, target.name, wish.seed))
        if target.name == "unlimited":
            raise StartFailed("not today")
        return empty(scenario)

    monkeypatch.setattr(runner, "run", run)
    measured = run_all(SCENARIOS[:2], select([], others=True), Wish(repeat=2, seed=4), CORES, lambda text: None)
    assert made == [
        ("overload", "gateway", 4),
        ("overload", "gateway", 5),
        ("overload", "unlimited", 4),
        ("overload", "vllm-router", 4),
        ("overload", "vllm-router", 5),
        ("tenants", "gateway", 4),
        ("tenants", "gateway", 5),
        ("tenants", "unlimited", 4),
    ]
    assert [each.failed for each in measured] == ["", "not today", "", "", "not today"]


class _Fleet:
    pid, urls = 1, ("http://a", "http://b", "http://c", "http://d")

    def ask(self) -> object:
        class Told:
            stall = 0.25

        return Told()


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Place]:
    """A runner without processes: what its target is given; all else of a run is made up."""
    opened: list[Place] = []

    @contextmanager
    def engines(cores: object) -> Iterator[tuple[_Fleet, Path]]:
        yield _Fleet(), tmp_path

    async def played(stand: Stand, phases: tuple[Phase, ...], known: Capacity, before: object) -> object:
        assert known == Capacity(10.0, 1.0)
        return [], spans(phases)

    async def measured(stand: Stand, scenario: Scenario, random: object) -> Capacity:
        return Capacity(10.0, 1.0)

    monkeypatch.setattr(runner, "_engines", engines)
    monkeypatch.setattr(runner, "_played", played)
    monkeypatch.setattr(runner, "_capacity", measured)
    return opened


def target(places: list[Place]) -> Target:
    @contextmanager
    def opened(place: Place) -> Iterator[Stand]:
        places.append(place)
        yield Stand(9, {})

    return Target("gateway", "", opened)


def test_a_reference_runs_on_half_of_the_replicas_with_the_same_capacity(places: list[Place]) -> None:
    made = runner.run(by_name("tenants"), target(places), Wish(), CORES)
    assert [len(place.engines) for place in places] == [4, 2]
    assert made.reference is not None
    assert made.reference.caller == "b"
    assert [row.phase for row in made.rows] == ["both", "both"]
    assert made.host.stall == 0.25


def test_a_target_that_serves_nothing_has_no_capacity(places: list[Place], monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> Capacity:
        return Capacity(0.0, 0.0)

    monkeypatch.setattr(runner, "_capacity", nothing)
    with pytest.raises(StartFailed, match="nothing was served"):
        runner.run(by_name("overload"), target(places), Wish(), CORES)
