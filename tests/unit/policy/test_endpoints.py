"""One endpoint's guard by itself: the order of judging, what goes together, and forms. Files: ``test_guards.py``."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import Refusal
from gateway.model import FormPart
from gateway.policy import rules
from gateway.policy.endpoints import EndpointGuard

GUARD = EndpointGuard(
    rules={
        "model": rules.text(1),
        "n": rules.integer(1, 8),
        "file": lambda value: None if value.data else " must be a file and not empty",
        "words[]": rules.listing(rules.choice(["a", "b"]), 0, 2),
        "stream": rules.boolean(),
        "options": rules.any_object(),
        "echo": rules.boolean(),
        "logprobs": rules.integer(0, 5),
    },
    required=("model",),
    dropped=frozenset(),
    always={},
    needs=(("options", "stream"),),
    apart=(("echo", "logprobs"),),
    parsers={"model": str, "n": int, "words[]": str},
    files=frozenset({"file"}),
)


def message(payload: dict[str, Any]) -> str | None:
    try:
        GUARD.judge(payload)
    except Refusal as refusal:
        return refusal.message
    return None


@pytest.mark.parametrize(
    ("payload", "wanted"),
    [
        ({"model": "m"}, None),
        ({"model": "m", "n": None, "options": None}, None),
        ({"other": None, "n": 0}, "other is not allowed."),
        ({"n": 0, "other": 1}, "n must be a whole number between 1 and 8."),
        ({"a b": 1}, "The request has a member that is not allowed."),
        ({"model": None}, "model is required."),
        ({}, "model is required."),
        ({"model": "m", "options": {}, "stream": True}, None),
        ({"model": "m", "options": {}, "stream": False}, "options is only allowed when stream is true."),
        ({"model": "m", "options": {}}, "options is only allowed when stream is true."),
        ({"model": "m", "echo": True, "logprobs": 0}, "echo may not be combined with logprobs."),
        ({"model": "m", "echo": False, "logprobs": 0}, None),
        ({"model": "m", "echo": True, "logprobs": None}, None),
    ],
)
def test_a_body_is_judged_member_by_member(payload: dict[str, Any], wanted: str | None) -> None:
    assert message(payload) == wanted


def test_a_form_becomes_values() -> None:
    file = FormPart("file", b"abc", filename="a.wav")
    parts = [FormPart("model", b"m"), FormPart("words[]", b"a"), FormPart("words[]", b"b"), file]
    assert GUARD.judge_form(parts) == {"model": "m", "words[]": ["a", "b"], "file": file}


@pytest.mark.parametrize(
    ("part", "wanted"),
    [
        (FormPart("other", b"x"), "other is not allowed."),
        (FormPart("file", b"x"), "file must be a file."),
        (FormPart("file", b"", filename="a"), "file must be a file and not empty."),
        (FormPart("model", b"x", filename="a"), "model must not be a file."),
        (FormPart("n", b"9"), "n must be a whole number between 1 and 8."),
        (FormPart("words[]", b"c"), "words[][0] must be one of a, b."),
    ],
)
def test_a_form_is_judged_part_by_part(part: FormPart, wanted: str) -> None:
    with pytest.raises(Refusal) as caught:
        GUARD.judge_form([FormPart("model", b"m"), part])
    assert caught.value.message == wanted
