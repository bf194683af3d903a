"""Runbooks: short, of one form, and every command of the gateway in them is one that there is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from gateway.cli.later import Later
from gateway.cli.main import app

FOLDER = Path(__file__).parents[3] / "deploy" / "runbooks"
RUNBOOKS = sorted(FOLDER.glob("*.md"))
USAGE = typer.BadParameter.__mro__[1]
"""What the command line raises at any wrong use; Typer has no public name for it."""

PLACES = {"ID": "127.0.0.1:8001", "URL": "http://127.0.0.1:8001"}
"""What a reader puts in place of a word, where not any word will do."""


def _commands(text: str) -> Iterator[str]:
    """Commands of the gateway: lines of code blocks, and code in a line of text."""
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        yield from (line.strip() for line in block.splitlines() if line.strip().startswith("gateway "))
    yield from re.findall(r"(?<!`)`(gateway [^`]+)`", text)


def _judge(command: str) -> None:
    """Parse a command as the command line does, without running it. Raises ``USAGE`` or ``AssertionError``."""
    found = typer.main.get_command(app)
    words = [PLACES.get(word, word) for word in shlex.split(command.replace("...", ""))]
    while True:
        name, *words = words
        found = found.load() if isinstance(found, Later) else found
        if not isinstance(found, TyperGroup):
            break
        if not words:
            return
        assert words[0] in found.commands, f"{command}: there is no {words[0]}"
        found = found.commands[words[0]]
    found.make_context(name, words)


@pytest.mark.parametrize("path", RUNBOOKS, ids=lambda path: path.stem)
def test_its_commands_are_there(path):
    for command in _commands(path.read_text()):
        try:
            _judge(command)
        except USAGE as error:
            pytest.fail(f"{command}: {error.format_message()}")


@pytest.mark.parametrize("command", ["gateway fleet lits", "gateway fleet list --modl x", "gateway alias rollback"])
def test_a_command_that_is_not_there_is_found_out(command):
    with pytest.raises((USAGE, AssertionError)):
        _judge(command)


@pytest.mark.parametrize("path", RUNBOOKS, ids=lambda path: path.stem)
def test_it_has_the_form_and_fits_on_a_page(path):
    text = path.read_text()
    assert text.startswith(f"# {path.stem}\n\n**For users:**")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Look", "Do", "Over when"]
    lines = text.splitlines()
    assert len(lines) <= 60
    assert all(len(line) <= 130 for line in lines)


@pytest.mark.parametrize("path", RUNBOOKS, ids=lambda path: path.stem)
def test_its_links_lead_to_runbooks(path):
    for link in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        assert (FOLDER / link).is_file(), link
