"""What an engine's own words say of it, and that nobody else can put them in its mouth."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.trouble import Trouble, trouble_in, trouble_of

WORDS = [
    ("The engine is currently busy. Please try again later.", Trouble.BUSY),
    ("The request queue is full.", Trouble.BUSY),
    ("cannot schedule new futures after shutdown", Trouble.CLOSING),
    ("EngineCore encountered an issue. See stack trace (above) for the root cause.", Trouble.DEAD),
]


@pytest.mark.parametrize(("message", "trouble"), WORDS)
def test_what_engines_say(message, trouble):
    nested = {"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}}
    flat = {"object": "error", "message": message, "type": "InternalServerError", "code": 503}
    for answer in (nested, flat):
        assert trouble_of(answer) is trouble
        assert trouble_in(orjson.dumps(answer)) is trouble


@pytest.mark.parametrize(("message", "_"), WORDS)
@pytest.mark.parametrize("before", ["x", " ", "\n", "Invalid prompt: ", '"'])
def test_words_that_are_quoted_behind_others_are_somebody_elses(message, _, before):
    assert trouble_of({"error": {"message": before + message}}) is None
    assert trouble_of({"message": before + message}) is None


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"error": None},
        {"error": "EngineCore encountered an issue"},
        {"error": ["EngineCore encountered an issue"]},
        {"error": {}},
        {"error": {"message": None}},
        {"error": {"message": 7}},
        {"error": {"message": ["EngineCore encountered an issue"]}},
        {"error": {"message": ""}},
        {"error": {"message": "enginecore encountered an issue"}},
        {"error": {"detail": "EngineCore encountered an issue"}},
        {"error": {"message": "no"}, "message": "EngineCore encountered an issue"},
        {"detail": {"message": "EngineCore encountered an issue"}},
    ],
)
def test_what_says_nothing_of_the_engine(answer):
    assert trouble_of(answer) is None
    assert trouble_in(orjson.dumps(answer)) is None


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"EngineCore encountered an issue"', b"null", b"\xff", b"[" * 9999]
)
def test_what_is_no_object_says_nothing(body):
    assert trouble_in(body) is None


@given(st.binary())
def test_no_bytes_do_harm(body):
    assert trouble_in(body) is None or body.startswith(b"{") or body.lstrip().startswith(b"{")


CAPTURES = Path(__file__).parents[2] / "captures"
_MESSAGE = re.compile(rb'"message": ?"([^"]*)"')


@pytest.mark.parametrize(
    ("capture", "trouble"),
    [
        ("vllm-0.32.0/limits/queue-limit-503-and-sse-keepalive.txt", Trouble.BUSY),
        ("sglang-0.5.23/queue-limit.txt", Trouble.BUSY),
        ("vllm-0.32.0/drain/sigterm-shutdown-timeout-20.txt", Trouble.CLOSING),
        ("vllm-0.32.0/options/engine-killed.txt", Trouble.DEAD),
    ],
)
def test_real_engines_have_said_so(capture, trouble):
    said = {message.decode() for message in _MESSAGE.findall((CAPTURES / capture).read_bytes())}
    assert trouble in {trouble_of({"error": {"message": message}}) for message in said}
