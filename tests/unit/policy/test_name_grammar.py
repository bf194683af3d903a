"""One grammar: what a file may say is what the admin API takes."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from gateway.admin.aliasorders import AliasOrder
from gateway.admin.schemas import alias_name
from gateway.policy.names import is_alias, is_model, is_note

TEXTS = ["a", "a/b:c.d-e_f", "a@1", "/a", "a/", "a//b", "a/../b", ".", "a b", "é", "a\n", "", "a" * 64, "a" * 65]
MODELS = [*TEXTS, "Qwen/Qwen3-32B", "~!", "a\tb", "m" * 256, "m" * 257]
NOTES = [*MODELS, "eine Notiz", "two\nlines", "\x7f", "\x85", "\u2028", "\u2029", "😀", "n" * 200, "n" * 201]


def api_takes(**fields: str) -> bool:
    try:
        TypeAdapter(AliasOrder).validate_python({"model": "m", **fields})
    except ValidationError:
        return False
    return True


def api_takes_name(text: str) -> bool:
    try:
        return alias_name(text) == text
    except ValueError:
        return False


@pytest.mark.parametrize("text", TEXTS)
def test_the_name_of_an_alias_is_judged_as_the_api_does(text):
    assert is_alias(text) is api_takes_name(text)


@pytest.mark.parametrize("text", MODELS)
def test_the_name_of_a_model_is_judged_as_the_api_does(text):
    assert is_model(text) is api_takes(model=text)


@pytest.mark.parametrize("text", NOTES)
def test_a_note_is_judged_as_the_api_does(text):
    assert is_note(text) is api_takes(note=text)


@pytest.mark.parametrize("value", [None, 1, True, ["a"], b"a"])
def test_nothing_but_text_is_any_of_them(value):
    assert (is_alias(value), is_model(value), is_note(value)) == (False, False, False)


def test_a_lone_surrogate_is_no_note_because_no_file_could_hold_it():
    assert is_note("\ud800") is False
