"""Whatever the objects: a repeated key is never forwarded, and what is forwarded means the same to every parser."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import Refusal
from gateway.policy.guards import parse_guards
from gateway.routes import ROUTES
from gateway.steps.accept import accept, render
from gateway.wire.json import JsonFault, JsonReason, dump, parse_object

# The same examples each time, however slow the machine is.
STEADY = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
GUARDS = parse_guards(resources.files("policies").joinpath("guards.yaml").read_text(encoding="utf-8"), "guards.yaml")
CHAT = ROUTES["POST", "/v1/chat/completions"]

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
keys = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=4)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(
    scalars, lambda held: st.lists(held, max_size=4) | st.dictionaries(keys, held, max_size=4), max_leaves=20
)
objects = st.dictionaries(keys, values, max_size=5)


def escaped(text: str, every: bool) -> str:
    """A JSON string of ``text``, each letter as an escape if ``every``."""
    if not every:
        return json.dumps(text, ensure_ascii=False)
    units = text.encode("utf-16-be")
    return '"' + "".join(f"\\u{units[i]:02x}{units[i + 1]:02X}" for i in range(0, len(units), 2)) + '"'


def write(value: Any, draw: Any, repeat: list[int]) -> str:
    """JSON in one of its many spellings. ``repeat`` counts down objects; at zero one of its keys is written twice."""
    space = draw(st.sampled_from(["", " ", "\n\t"]))
    if isinstance(value, list):
        return f"[{space}" + f"{space},".join(write(held, draw, repeat) for held in value) + "]"
    if not isinstance(value, dict):
        return escaped(value, draw(st.booleans())) if isinstance(value, str) else json.dumps(value)
    members = [(key, held) for key, held in value.items()]
    if members:
        repeat[0] -= 1
        if repeat[0] == 0:
            again = draw(st.sampled_from(members))
            members.insert(draw(st.integers(0, len(members))), (again[0], draw(scalars)))
    written = [
        f"{escaped(key, draw(st.booleans()))}{space}:{space}{write(held, draw, repeat)}" for key, held in members
    ]
    return "{" + f",{space}".join(written) + space + "}"


def objects_with_members(value: Any) -> int:
    if isinstance(value, list):
        return sum(objects_with_members(held) for held in value)
    if isinstance(value, dict):
        return bool(value) + sum(objects_with_members(held) for held in value.values())
    return 0


@settings(STEADY)
@given(objects, st.data())
def test_every_spelling_is_read_as_the_same_object(value: dict[str, Any], data: st.DataObject) -> None:
    body = write(value, data.draw, [0]).encode()
    assert parse_object(body, max_depth=64) == value
    compact = dump(value)
    assert parse_object(compact, max_depth=64) == value == json.loads(compact) == orjson.loads(compact)


@settings(STEADY)
@given(objects.filter(bool), st.data())
def test_a_repeated_key_anywhere_is_refused(value: dict[str, Any], data: st.DataObject) -> None:
    at = data.draw(st.integers(1, objects_with_members(value)))
    body = write(value, data.draw, [at]).encode()
    with pytest.raises(JsonFault) as caught:
        parse_object(body, max_depth=64)
    assert caught.value.reason is JsonReason.DUPLICATE_KEY


@settings(STEADY)
@given(st.binary(max_size=60) | st.text('{}[]":,\\ 1au0\n', max_size=60).map(str.encode))
def test_bytes_are_an_object_or_a_fault(body: bytes) -> None:
    try:
        found = parse_object(body, max_depth=4)
    except JsonFault:
        return
    assert found == json.loads(body.decode())


@settings(STEADY)
@given(texts, st.text("ab:/.-_", min_size=1, max_size=9), st.data())
def test_what_is_forwarded_names_the_model_that_was_authorised(text: str, alias: str, data: st.DataObject) -> None:
    payload = {"model": alias, "messages": [{"role": "user", "content": text or "x"}], "stream": True}
    again = data.draw(st.booleans())
    members = list(payload.items())
    if again:
        members.insert(data.draw(st.integers(0, 3)), ("model", data.draw(st.sampled_from([alias, "other"]))))
    body = "{" + ",".join(f"{escaped(k, data.draw(st.booleans()))}:{json.dumps(v)}" for k, v in members) + "}"
    try:
        request = accept(CHAT, b"application/json", body.encode(), GUARDS)
    except Refusal:
        assert again
        return
    assert not again
    assert request.alias == alias
    forwarded = render(request, model="served", cache_salt="s")[1]
    assert json.loads(forwarded) == orjson.loads(forwarded)
    assert json.loads(forwarded)["model"] == "served"
    assert json.loads(forwarded)["messages"] == payload["messages"]
