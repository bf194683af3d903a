import signal
from collections.abc import Iterator

import orjson
import pytest
from typer.testing import CliRunner

from loadtests.overload import __main__ as command
from loadtests.overload import runner
from loadtests.overload.answers import SERVED, WRONG, Heard
from loadtests.overload.arrivals import Request
from loadtests.overload.client import Attempt
from loadtests.overload.figures import Capacity
from loadtests.overload.result import Run, rows, spans
from loadtests.overload.runner import Wish
from loadtests.overload.scenarios import Scenario


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_name_that_is_not_known_is_a_usage_error() -> None:
    for arguments in (["--scenario", "overlord"], ["--target", "haproxy"], ["--no-admission", "--target", "unlimited"]):
        result = CliRunner().invoke(command.app, arguments)
        assert result.exit_code == 2
        assert "classes" in result.output or "gateway" in result.output


@pytest.mark.parametrize(("outcome", "code"), [(SERVED, 0), ("queue_full", 0), (WRONG, 1)])
def test_a_wrong_answer_is_an_exit_code_and_a_refusal_or_a_missed_goal_is_none(
    outcome: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wishes: list[Wish] = []

    def run(scenario: Scenario, target: object, wish: Wish, cores: object) -> Run:
        wishes.append(wish)
        when = spans(scenario.phases)
        attempts = [Attempt(Request(1.0, "all", "before", 5, 3, 1), 0, 1.0, 1.0, Heard(outcome, 0.1))]
        return Run(scenario, Capacity(10.0, 1.0), attempts, when, rows(attempts, when))

    monkeypatch.setattr(runner, "run", run)
    arguments = ["--scenario", "overload", "--target", "gateway", "--obey", "--json", "-"]
    result = CliRunner().invoke(command.app, arguments)
    assert result.exit_code == code
    assert wishes == [Wish(1, 6, obey=True)]
    assert orjson.loads(result.stdout)["results"][0]["scenario"] == "overload"
    assert "MISSED  goodput" in result.stderr, "the table makes room for the JSON"
