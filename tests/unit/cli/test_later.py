"""Commands that are imported when they are called: their list is true without them."""

from __future__ import annotations

import pytest
from typer.main import get_group

from gateway.cli.later import Later
from gateway.cli.main import app

COMMANDS = get_group(app).commands


@pytest.mark.parametrize("name", COMMANDS)
def test_a_list_shows_a_commands_own_help(name):
    listed = COMMANDS[name]
    assert isinstance(listed, Later)
    own = listed.load()
    assert own.name == name
    assert listed.help == " ".join((own.help or "").partition("\n\n")[0].split())
    assert listed.epilog == own.epilog


def test_the_list_is_in_a_newcomers_order():
    assert list(COMMANDS)[:4] == ["serve", "demo", "status", "keys"]


def test_what_is_no_command_is_not_taken_for_one():
    with pytest.raises(AttributeError):
        Later("x", "gateway.cli.keys:nothing", "Nothing.").load()


def test_a_command_that_was_loaded_takes_its_options(cli):
    assert "No such option" in cli.refused("keys", "list", "--nothing", code=2)
    assert "Missing argument" in cli.refused("keys", "show", code=2)
    assert "No such command" in cli.refused("key", code=2)
    assert "'keys'" in cli.refused("key", code=2)
