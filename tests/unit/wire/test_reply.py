"""Whole answers of engines: real ones, and ones that no engine should send."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from gateway.errors import EngineClosing, EngineProtocolError, EngineRefused
from gateway.model import Usage
from gateway.wire.reply import refusal, rename
from loadtests.engine.capture import read_capture

CAPTURES = Path(__file__).parents[2] / "captures" / "vllm-0.32.0"
SERVED = "internal-general-v3"
ANSWERS = {
    "chat": (Usage(20, 8), "length"),
    "chat-n2-logprobs": (Usage(20, 6), "length"),
    "chat-stop-finish": (None, "stop"),
    "completions": (Usage(4, 6), "length"),
    "responses": (None, None),
    "messages": (Usage(20, 6), "max_tokens"),
    "options/tool-named": (None, None),
    "options/prefix-cache-2": (None, None),
}


def captured(name: str) -> bytes:
    return read_capture(CAPTURES / f"{name}.http").body


@pytest.mark.parametrize("name", ANSWERS)
def test_a_captured_answer_changes_in_nothing_but_the_name(name):
    body = captured(name)
    reply = rename(body, "alias")
    assert reply.body == body.replace(b'"model":"internal-general-v3"', b'"model":"alias"')
    assert SERVED.encode() not in reply.body
    usage, finish = ANSWERS[name]
    assert usage is None or reply.usage == usage
    assert finish is None or reply.finish == finish
    assert reply.usage is not None
    assert reply.usage.completion > 0


def test_the_prefix_cache_shows_in_the_usage():
    assert rename(captured("options/prefix-cache-2"), "alias").usage.cached > 0


TRICKY = f'say "model":"{SERVED}" and {{"model":"{SERVED}"}}'


@pytest.mark.parametrize(
    "answer",
    [
        {"model": SERVED, "choices": [{"message": {"content": TRICKY}, "finish_reason": "stop"}]},
        {"choices": [{"message": {"content": TRICKY, "x": {"model": SERVED}}}], "model": SERVED},
        {"x": {"model": "other"}, "model": SERVED},
        {"model": None},
        {"model": {"model": SERVED}},
        {"data": [1.5, -0.0, 1e-7], "model": SERVED},
    ],
)
@pytest.mark.parametrize("indent", [0, orjson.OPT_INDENT_2])
def test_only_the_member_at_the_top_is_renamed(answer, indent):
    reply = rename(orjson.dumps(answer, option=indent), 'al"ias')
    assert orjson.loads(reply.body) == {**answer, "model": 'al"ias'}


def test_a_name_given_twice_is_shown_once():
    assert rename(b'{"model":"secret","model":"internal-general-v3"}', "alias").body == b'{"model":"alias"}'


@pytest.mark.parametrize("body", [b'{"a":1}', b'[{"index":0,"score":1.5}]', b"[]", b"{}"])
def test_an_answer_without_a_model_passes(body):
    reply = rename(body, "alias")
    assert (reply.body, reply.usage, reply.finish) == (body, None, None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b'{"model":"a"',
        b'{"model":"\xff"}',
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b'{"a":{"model":1},"model":2,"x":' + b"[" * 300 + b"]" * 300 + b"}",
    ],
)
def test_what_is_not_json_is_the_engines_fault(body):
    with pytest.raises(EngineProtocolError):
        rename(body, "alias")


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": 7, "usage": 7, "stop_reason": 7, "status": []},
        {"choices": [], "usage": []},
        {"choices": [None]},
        {"choices": [{"finish_reason": 5}]},
        {"error": None, "model": "alias"},
    ],
)
def test_members_of_odd_types_say_nothing(answer):
    reply = rename(orjson.dumps(answer), "alias")
    assert (orjson.loads(reply.body), reply.usage, reply.finish) == (answer, None, None)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"error": {"message": "secret", "code": 503}}, "no_ready_replica"),
        ({"error": {"message": "secret", "code": 400}}, "invalid_request"),
        ({"error": "secret"}, "engine_error"),
        ({"object": "error", "message": "secret", "code": 503}, "no_ready_replica"),
        ({"object": "response", "status": "failed", "error": {"code": "server_error"}}, "engine_error"),
    ],
)
def test_an_error_under_a_good_status_is_an_error(answer, code):
    with pytest.raises(EngineRefused) as caught:
        rename(orjson.dumps(answer), "alias")
    assert caught.value.spec.code == code
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("finish", "tokens", "refused"), [("abort", 0, True), ("abort", 3, False), ("length", 0, False), (None, 0, False)]
)
def test_an_answer_aborted_before_its_first_token_is_of_an_engine_that_shuts_down(finish, tokens, refused):
    choice = {"index": 0, "text": "", "finish_reason": finish}
    body = orjson.dumps({"model": "m", "choices": [choice], "usage": {"prompt_tokens": 4, "completion_tokens": tokens}})
    if refused:
        with pytest.raises(EngineClosing):
            rename(body, "alias")
    else:
        assert rename(body, "alias").finish == finish


CONTEXT = b'{"error":{"message":"This model\'s maximum context length is 2048 tokens.","code":400}}'


@pytest.mark.parametrize(
    ("status", "body", "code", "elsewhere"),
    [
        (503, b"", "no_ready_replica", True),
        (500, b"", "engine_error", True),
        (502, b"", "engine_error", True),
        (599, b"", "engine_error", True),
        (404, b'{"error":{"type":"NotFoundError"}}', "no_ready_replica", True),
        (404, b'{"detail":"Not Found"}', "unsupported_endpoint", False),
        (404, b'{"error":{"message":"\\"NotFoundError\\""}}', "unsupported_endpoint", False),
        (400, CONTEXT, "context_length_exceeded", False),
        (400, b"", "invalid_request", False),
        (413, b"", "invalid_request", False),
        (422, b"", "invalid_request", False),
        (500, CONTEXT, "engine_error", True),
        (401, b"", "engine_error", False),
        (403, b"", "engine_error", False),
        (405, b"", "engine_error", False),
        (307, b"", "engine_error", False),
        (204, b"", "engine_error", False),
        (999, b"", "engine_error", False),
    ],
)
def test_an_engines_refusal_is_told_in_the_gateways_words(status, body, code, elsewhere):
    error = refusal(status, body)
    assert (error.spec.code, error.elsewhere, error.reason) == (code, elsewhere, "refused")


CLOSING = b'{"error":{"message":"cannot schedule new futures after shutdown","type":"InternalServerError","code":500}}'
DEAD = b'{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause."}}'
BUSY = b'{"error":{"message":"The engine is currently busy and cannot accept new requests. Please try again later"}}'
FULL = b'{"object":"error","message":"The request queue is full.","type":"503","param":null,"code":503}'
QUOTED = b'{"error":{"message":"Bad: EngineCore encountered an issue, cannot schedule new futures after shutdown"}}'


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (429, b"", "busy"),
        (429, QUOTED, "busy"),
        (503, BUSY, "busy"),
        (503, FULL, "busy"),
        (500, CLOSING, "closing"),
        (500, DEAD, "dead"),
        (500, QUOTED, "refused"),
        (503, QUOTED, "refused"),
        (400, CLOSING, "refused"),
        (400, DEAD, "refused"),
        (404, BUSY, "refused"),
        (500, b"[" + CLOSING + b"]", "refused"),
    ],
)
def test_what_an_engine_says_of_itself_is_heard_but_not_from_a_prompt(status, body, reason):
    assert refusal(status, body).reason == reason


@pytest.mark.parametrize(("status", "fault"), [(500, True), (503, True), (404, False), (400, False), (401, False)])
def test_only_a_failing_engine_speaks_against_itself(status, fault):
    error = refusal(status)
    assert isinstance(error, EngineRefused)
    assert error.fault is fault


REFUSALS = {path.stem: read_capture(path) for path in sorted(CAPTURES.glob("err-*.http"))}


@pytest.mark.parametrize("name", [name for name, each in REFUSALS.items() if not each.head.startswith(b"HTTP/1.1 200")])
def test_a_captured_refusal_leaves_no_word_of_the_engine(name):
    capture = REFUSALS[name]
    error = refusal(int(capture.head.split()[1]), capture.body)
    said = orjson.loads(capture.body) if capture.body.startswith(b"{") else {}
    words = said["error"]["message"] if isinstance(said.get("error"), dict) else capture.body.decode()
    assert not words or words not in error.message
    assert SERVED not in error.message
