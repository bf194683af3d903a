from pathlib import Path

import pytest

from loadtests.overload.answers import Heard
from loadtests.overload.arrivals import Request
from loadtests.overload.client import Attempt
from loadtests.overload.figures import Capacity
from loadtests.overload.plot import plot
from loadtests.overload.result import Run, spans
from loadtests.overload.runner import Measured
from loadtests.overload.scenarios import SCENARIOS, Scenario
from loadtests.overload.targets import TARGETS


def measured(scenario: Scenario) -> Measured:
    request = Request(1.0, next(iter(scenario.callers)), "both", 5, 3, 1)
    heard = (Heard(ttft=0.1, tokens=3), Heard("queue_full"))
    attempts = [Attempt(request, 0, 1.0, 1.0, each) for each in heard]
    return Measured(scenario, TARGETS[0], [Run(scenario, Capacity(10.0, 1.0), attempts, spans(scenario.phases), [])])


def test_a_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "overload.png"
    failed = Measured(SCENARIOS[0], TARGETS[1], [], "it did not start")
    plot([measured(SCENARIOS[0]), failed, measured(SCENARIOS[1])], picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
