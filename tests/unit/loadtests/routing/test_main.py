import signal
from collections.abc import Iterator

import orjson
import pytest
from typer.testing import CliRunner

from loadtests.routing import __main__ as command
from loadtests.routing import runner
from loadtests.routing.client import Answered
from loadtests.routing.figures import Run


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_name_that_is_not_known_is_a_usage_error() -> None:
    for arguments in (["--scenario", "retrievel"], ["--target", "haproxy"]):
        result = CliRunner().invoke(command.app, arguments)
        assert result.exit_code == 2
        assert "retrieval" in result.output or "round-robin" in result.output


@pytest.mark.parametrize(("error", "code"), [("", 0), ("refused", 1)])
def test_a_wrong_answer_is_an_exit_code_and_the_figures_come_all_the_same(
    error: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "run", lambda *_: Run([Answered(0.0, 0.1, 1.0, error)], []))
    arguments = ["--scenario", "chat", "--target", "session", "--seconds", "1", "--json", "-"]
    result = CliRunner().invoke(command.app, arguments)
    assert result.exit_code == code
    assert orjson.loads(result.stdout)["results"][0]["errors"] == code
    assert "chat: conversations" in result.stderr, "the table makes room for the JSON"


def test_other_routers_are_measured_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "run", lambda *_: Run([Answered(0.0, 0.1, 1.0)], []))
    arguments = ["--scenario", "chat", "--seconds", "1", "--json", "-", "--target", "estimate"]
    with_peers = CliRunner().invoke(command.app, [*arguments, "--peers"])
    names = [row["target"] for row in orjson.loads(with_peers.stdout)["results"]]
    assert {"estimate", "vllm-router-cache-aware", "smg-cache-aware"} <= set(names)
    assert "round-robin" not in names
    alone = CliRunner().invoke(command.app, arguments)
    assert [row["target"] for row in orjson.loads(alone.stdout)["results"]] == ["estimate"]
