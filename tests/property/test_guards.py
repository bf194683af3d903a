"""Whatever the body: the answer is a request or a Refusal, and no Refusal quotes what the body said."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import Refusal
from gateway.model import BodyKind, InferenceRequest, Route
from gateway.policy.guards import Guards, parse_guards
from gateway.routes import ROUTES
from gateway.steps.accept import accept, render

# The same examples each time, however slow the machine is.
STEADY = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TEXT = resources.files("policies").joinpath("guards.yaml").read_text(encoding="utf-8")
DEFAULT = parse_guards(TEXT, "guards.yaml")
WITH_MEDIA = parse_guards(TEXT.replace("images: none ", "images: data "), "guards.yaml")
CANARY = "CANARY"
BODY_ROUTES = [route for route in ROUTES.values() if route.body is not BodyKind.NONE]
JSON_ROUTES = [route for route in ROUTES.values() if route.body is BodyKind.JSON]
NESTED_NAMES = [
    "role", "content", "type", "text", "image_url", "url", "source", "data", "tool_calls", "function", "name",
    "arguments",
    "parameters", "schema", "json_schema", "properties", "items", "anyOf", "$ref", "enum", "required", "input_schema",
    "input", "output", "format", "include_usage", "enable_thinking", "effort", "1",
]  # fmt: skip
WORDS = ["user", "assistant", "text", "image_url", "function", "json_schema", "object", "message", "tool_use", "x" * 70]

scalars = st.sampled_from([None, True, False, 0, 1, -1, 9, 10**18, 0.5, 1e300, "", CANARY, f"a{CANARY}\n\0", *WORDS])
names = st.sampled_from(NESTED_NAMES)
values = st.recursive(
    scalars, lambda held: st.lists(held, max_size=3) | st.dictionaries(names, held, max_size=4), max_leaves=12
)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[Route, dict[str, Any]]:
    """A route and an object of its fields, required ones more often than not, some of them in order."""
    route = draw(st.sampled_from(JSON_ROUTES))
    guard = DEFAULT.endpoints[route.endpoint]
    payload = draw(st.dictionaries(st.sampled_from(sorted(guard.rules)), values, max_size=6))
    sound = {
        "model": "m",
        "prompt": "p",
        "input": "p",
        "query": "q",
        "documents": ["d"],
        "max_tokens": 1,
        "tokens": [1],
    }
    sound["messages"] = [{"role": "user", "content": draw(values)}]
    for name in guard.required:
        payload.setdefault(name, sound[name])
    return route, payload


def outcome(route: Route, content_type: bytes, body: bytes, guards: Guards = DEFAULT) -> InferenceRequest | Refusal:
    """What ``accept`` makes of a body; anything but a request or a ``Refusal`` fails the test."""
    try:
        return accept(route, content_type, body, guards)
    except Refusal as refusal:
        return refusal


@settings(STEADY, max_examples=400)
@given(bodies(), st.sampled_from([DEFAULT, WITH_MEDIA]))
def test_a_body_is_taken_or_refused_without_being_quoted(body: tuple[Route, dict[str, Any]], guards: Guards) -> None:
    route, payload = body
    found = outcome(route, b"application/json", json.dumps(payload).encode(), guards)
    if isinstance(found, Refusal):
        assert CANARY not in found.message
        assert CANARY not in (found.param or "")
        assert found.spec.code == "invalid_request"
        return
    forwarded = json.loads(render(found, model="served", cache_salt="s")[1])
    assert forwarded["model"] == "served"
    assert forwarded.keys() <= guards.endpoints[route.endpoint].rules.keys() | {"cache_salt", "stream_options"}
    assert forwarded.get("cache_salt", "s") == "s"


@settings(STEADY)
@given(st.sampled_from(JSON_ROUTES), st.text(min_size=1, max_size=80))
def test_an_unknown_member_is_named_only_if_plain(route: Route, name: str) -> None:
    body = json.dumps({"model": "m", f"{CANARY} {name}": CANARY}).encode()
    found = outcome(route, b"application/json", body)
    assert isinstance(found, Refusal)
    assert CANARY not in found.message
    assert found.param is None


@settings(STEADY)
@given(st.sampled_from(BODY_ROUTES), st.binary(max_size=200), st.binary(max_size=60))
def test_any_bytes_make_nothing_but_a_refusal(route: Route, body: bytes, content_type: bytes) -> None:
    for kind in (content_type, b"application/json", b"multipart/form-data; boundary=x"):
        for octets in (body, b"--x\r\n" + body + b"\r\n--x--\r\n", b'{"model":' + body + b"}"):
            found = outcome(route, kind, octets)
            assert isinstance(found, Refusal)
            assert found.message.isascii()
