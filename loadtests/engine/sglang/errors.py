"""How SGLang 0.5.23 writes its errors: flat, and inside `error` only in a stream (captured)."""

from __future__ import annotations

import json
from http import HTTPStatus

import orjson

from loadtests.engine.refusal import ErrorForms, Refusal

_SOURCE = "/VENV/lib/python3.11/site-packages/sglang/srt/entrypoints/http_server.py"
Fault = dict[str, object]


def schema_refusal(faults: list[Fault], path: str) -> Refusal:
    """A 400 of type "Bad Request" that lists pydantic's faults twice, and leaks where the server's code lies.

    Function and line are those of chat completions, the one place that was captured.
    """
    lines = "".join(f"\n  {fault}" for fault in faults)
    place = f'\n\n  File "{_SOURCE}", line 1870, in openai_v1_chat_completions\n    POST {path}'
    return Refusal(400, f"{_count(faults)}{lines}{place} {faults}", "Bad Request")


def media_type_refusal() -> Refusal:
    """A 400 for a body that does not say it is JSON; it names no place in the code."""
    words = "Unsupported Media Type: Only 'application/json' is allowed"
    fault: Fault = {"loc": ["header", "content-type"], "msg": words, "type": "value_error"}
    return Refusal(400, f"{_count([fault])}\n  {fault} {[fault]}", "Bad Request")


def _count(faults: list[Fault]) -> str:
    return f"{len(faults)} validation error{'s' if len(faults) > 1 else ''}:"


def queue_full() -> Refusal:
    """--max-queued-requests is reached. Its type is the status again."""
    return Refusal(503, "The request queue is full.", "503")


def error_body(refusal: Refusal) -> bytes:
    """SGLang never names the parameter."""
    return orjson.dumps({**_head(refusal), "type": refusal.kind, "param": None, "code": refusal.status})


def error_event(refusal: Refusal) -> bytes:
    """The error as a stream event: inside `error`, with spaces, its type the name of the status."""
    name = HTTPStatus(refusal.status).name
    return (
        b"data: %s\n\n"
        % json.dumps({"error": {**_head(refusal), "type": name, "param": None, "code": refusal.status}}).encode()
    )


def anthropic_error_body(refusal: Refusal) -> bytes:
    """As /v1/messages answers."""
    error = {"type": "invalid_request_error", "message": refusal.message}
    return orjson.dumps({"type": "error", "error": error})


def _head(refusal: Refusal) -> dict[str, object]:
    return {"object": "error", "message": refusal.message}


FORMS = ErrorForms(error_body, error_event, anthropic_error_body)
