"""The alias table as a file: on a store and through a gateway."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

FILE = """
aliases:
  chat: {model: model-b}
  split:
    targets:
    - {model: model-a, weight: 90}
    - {model: model-b, weight: 10}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "aliases.yaml"
    path.write_text(FILE)
    return path


def current(cli) -> dict[str, int]:
    return {one["name"]: one["revision"] for one in json.loads(cli.ok("alias", "list", "--json"))}


def test_a_file_is_applied_once_and_comes_out_as_it_went_in(anywhere, file, tmp_path):
    cli = anywhere
    cli.ok("alias", "set", "chat", "--model", "model-a")
    cli.ok("alias", "set", "old", "--model", "model-a")
    lines = cli.ok("alias", "apply", str(file), "--dry-run").splitlines()
    assert lines == [
        "create split: model-a 90 %, model-b 10 %",
        "change chat (revision 1): model-a -> model-b",
    ]
    assert current(cli) == {"chat": 1, "old": 1}
    done = cli("alias", "apply", str(file), "--yes", "--wait")
    assert (done.exit_code, done.stdout.splitlines()) == (0, lines)
    assert "2 of 2 changes are made." in done.stderr
    assert current(cli) == {"chat": 2, "old": 1, "split": 1}
    assert json.loads(cli.ok("alias", "show", "split", "--json"))["source"] == "file"
    again = cli("alias", "apply", str(file))
    assert (again.exit_code, again.stdout, "Nothing to do" in again.stderr) == (0, "", True)
    assert cli.ok("alias", "apply", str(file), "--prune", "--yes").startswith("delete old (revision 1)")
    assert current(cli) == {"chat": 2, "split": 1}
    kept = tmp_path / "kept.yaml"
    assert cli.ok("alias", "export", str(kept)) == ""
    assert kept.read_text() == cli.ok("alias", "export")
    assert "Nothing to do" in cli("alias", "apply", str(kept), "--prune").stderr


def test_nobody_to_ask_is_a_refusal_and_so_is_a_no(cli, file, monkeypatch):
    cli.ok("alias", "set", "chat", "--model", "model-a")
    result = cli("alias", "apply", str(file))
    assert (result.exit_code, "--yes does the above" in result.stderr) == (1, True)
    answers = iter([False, True])
    monkeypatch.setattr("gateway.cli.aliasfile.typer.confirm", lambda *_, **__: next(answers))
    monkeypatch.setattr("gateway.cli.aliasfile.sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    declined = cli("alias", "apply", str(file))
    assert (declined.exit_code, "nothing was changed" in declined.stderr) == (1, True)
    assert current(cli) == {"chat": 1}
    assert cli("alias", "apply", str(file)).exit_code == 0
    assert current(cli) == {"chat": 2, "split": 1}
    cli.refused("alias", "apply", str(file), "--yes", "--dry-run", code=2)


def test_every_fault_of_a_file_is_told_and_nothing_is_changed(cli, file):
    cli.ok("alias", "set", "chat", "--model", "model-a")
    file.write_text("aliases:\n  chat: {modle: b}\n  split: {targets: []}\n")
    said = cli.refused("alias", "apply", str(file), "--yes")
    assert f"{file}:2:" in said
    assert f"{file}:3:" in said
    file.write_bytes(b"\xff\xfe")
    assert "not UTF-8" in cli.refused("alias", "apply", str(file), "--yes")
    assert "No such file" in cli.refused("alias", "apply", str(file) + ".none", "--yes")
    assert "No such file" in cli.refused("alias", "export", str(file.parent / "none" / "x"))
    assert current(cli) == {"chat": 1}


def test_standard_input_is_a_file_too(cli, monkeypatch):
    cli.ok("alias", "set", "chat", "--model", "model-a")
    monkeypatch.setattr("gateway.cli.aliasfile.sys", SimpleNamespace(stdin=SimpleNamespace(read=lambda _: FILE)))
    assert "--yes" in cli("alias", "apply", "-").stderr
    cli.ok("alias", "apply", "-", "--yes")
    assert current(cli) == {"chat": 2, "split": 1}
    monkeypatch.setattr("gateway.cli.aliasfile.sys", sys)


def test_a_running_canary_is_not_ended_by_a_file_unless_forced(anywhere, file):
    cli = anywhere
    cli.ok("alias", "set", "chat", "--model", "model-a")
    cli.ok("alias", "canary", "chat", "--model", "model-b")
    assert "chat (revision 2); promote or abort it" in cli.refused("alias", "apply", str(file), "--yes")
    cli.ok("alias", "apply", str(file), "--yes", "--force")
    assert current(cli) == {"chat": 3, "split": 1}


def test_what_was_done_before_a_refusal_is_told(cli, running, file):
    cli.env["GATEWAY_ADMIN_URL"] = running.url
    file.write_text("aliases: {a: {model: model-a}, b: {model: gone}, c: {model: model-a}}")
    result = cli("alias", "apply", str(file), "--yes")
    assert result.exit_code == 1
    assert "1 of 3 changes are made; it stopped at 'create b: gone'. Those made stand; the same" in result.stderr
    assert "No replica serves gone now" in result.stderr
    assert current(cli) == {"a": 1}
