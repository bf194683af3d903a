"""How aliases are given to commands, and told."""

from __future__ import annotations

import pytest
import typer

from gateway.admin.aliasviews import alias_view
from gateway.cli.aliasoptions import alias_argument, models, patience, reference_argument
from gateway.model import Revision, Target


def test_names_and_references_are_told_apart():
    assert alias_argument("team/chat") == "team/chat"
    assert reference_argument("team/chat@3") == "team/chat@3"
    for read, text in ((alias_argument, "chat@3"), (reference_argument, "chat@x"), (reference_argument, "../x")):
        with pytest.raises(typer.BadParameter):
            read(text)


def test_patience_is_for_those_who_wait():
    assert (patience(True, "2m"), patience(False, "2m")) == (120, None)


def test_what_an_alias_is_in_words():
    one = Revision("chat", 4, (Target("a", 3),), "ops", 9.0)
    split = Revision("chat", 4, (Target("a", 95), Target("b", 5)), "ops", 9.0, canary_of=3)
    assert models(alias_view(one)) == "a"
    assert models(alias_view(split)) == "a 95 %, b 5 % (a canary of revision 3)"
