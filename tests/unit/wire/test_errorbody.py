"""Every error in every dialect, in the form that its client libraries read."""

from __future__ import annotations

import orjson
import pytest

from gateway.errors import CODES, GatewayError
from gateway.model import Dialect
from gateway.wire.errorbody import error_answer, error_event, error_lines, error_object
from gateway.wire.headers import header_lines

HOSTILE = 'a "quoted"\r\n\r\ndata: [DONE]\n\n\u2028 line'


def fields(code: str, dialect: Dialect) -> dict[str, object]:
    spec = CODES[code]
    if dialect is Dialect.ANTHROPIC:
        return {"type": "error", "error": {"type": spec.anthropic_type, "message": spec.message}}
    return {"error": {"message": spec.message, "type": spec.type, "param": None, "code": code}}


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("code", CODES)
def test_an_answer_has_the_dialects_object_and_its_headers(code, dialect):
    headers, body = error_answer(GatewayError(code), dialect)
    named = dict(headers)
    assert len(named) == len(headers)
    assert orjson.loads(body) == fields(code, dialect)
    assert named[b"content-type"] == b"application/json"
    assert named[b"cache-control"] == b"no-store"
    assert named[b"x-should-retry"] == (b"true" if CODES[code].retry else b"false")
    assert (b"retry-after" in named) == (CODES[code].status in {429, 503})
    assert (b"www-authenticate" in named) == (CODES[code].status == 401)


@pytest.mark.parametrize("dialect", Dialect)
def test_what_is_remembered_is_what_would_be_made(dialect):
    """Errors of one code that differ in anything shown are told apart."""
    shown = set()
    for message in (None, "Other words."):
        for param in (None, "model"):
            for seconds in (None, 7, 9):
                for retry in (True, False):
                    error = GatewayError("rate_limited", message, param=param, retry_after=seconds)
                    error.retry = retry
                    headers, body = error_answer(error, dialect)
                    assert error_lines(error, dialect) == error_lines(error, dialect) == (header_lines(headers), body)
                    shown.add((header_lines(headers), body))
    assert len(shown) >= 8


@pytest.mark.parametrize("code", CODES)
def test_an_event_is_one_event_in_the_dialects_form(code):
    error = GatewayError(code)
    assert error_event(error, Dialect.OPENAI) == b"data: " + orjson.dumps(fields(code, Dialect.OPENAI)) + b"\n\n"
    anthropic = b"event: error\ndata: " + orjson.dumps(fields(code, Dialect.ANTHROPIC)) + b"\n\n"
    assert error_event(error, Dialect.ANTHROPIC) == anthropic
    said = {"type": "error", "code": code, "message": CODES[code].message, "param": None}
    assert error_event(error, Dialect.RESPONSES) == b"event: error\ndata: " + orjson.dumps(said) + b"\n\n"


@pytest.mark.parametrize("dialect", Dialect)
def test_a_message_cannot_break_out_of_its_event(dialect):
    event = error_event(GatewayError("invalid_request", HOSTILE, param="a\nb"), dialect)
    assert event.count(b"\n\n") == 1
    assert event.endswith(b"}\n\n")
    assert b"\r" not in event
    data = orjson.loads(event.split(b"data: ", 1)[1])
    assert HOSTILE in (data.get("message"), data.get("error", {}).get("message"))


def test_the_field_at_fault_is_named_to_openai_clients():
    error = GatewayError("invalid_request", "too long", param="stop")
    assert error_object(error, Dialect.OPENAI)["error"]["param"] == "stop"
    assert "param" not in error_object(error, Dialect.ANTHROPIC)["error"]


@pytest.mark.parametrize(
    ("given", "wanted"), [(None, b"1"), (0, b"1"), (-5, b"1"), (1, b"1"), (7, b"7"), (60, b"60"), (3600, b"60")]
)
@pytest.mark.parametrize("code", ["rate_limited", "no_ready_replica"])
def test_retry_after_is_whole_seconds_within_bounds(code, given, wanted):
    headers, _ = error_answer(GatewayError(code, retry_after=given), Dialect.OPENAI)
    assert dict(headers)[b"retry-after"] == wanted
