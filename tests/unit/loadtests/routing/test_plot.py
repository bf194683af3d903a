from pathlib import Path

import pytest

from loadtests.routing.client import Answered
from loadtests.routing.figures import Run
from loadtests.routing.plot import curve, plot
from loadtests.routing.runner import Measured
from loadtests.routing.scenarios import SCENARIOS
from loadtests.routing.targets import TARGETS

RUN = Run(
    [Answered(0.0, 0.3, 1.0), Answered(1.0, 0.1, 1.0), Answered(2.0, 0.2, 1.0, "cut"), Answered(3.0, None, 1.0)], []
)


def test_a_curve_rises_to_all_that_had_a_first_token() -> None:
    times, shares = curve([RUN, RUN])
    assert times == [100.0, 100.0, 300.0, 300.0]
    assert shares == [0.25, 0.5, 0.75, 1.0]
    assert curve([]) == ([], [])


def test_a_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "routing.png"
    plot([Measured(SCENARIOS[0], TARGETS[0], [RUN]), Measured(SCENARIOS[1], TARGETS[0], [])], picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
