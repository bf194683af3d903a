"""Masks: each setting against bodies that the endpoint's rules let pass, and that a mask can only narrow."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest

from gateway.errors import Refusal
from gateway.model import InferenceRequest
from gateway.policy.document import Document
from gateway.policy.guards import parse_guards
from gateway.policy.masks import Mask, Masks, read_masks
from gateway.routes import ROUTES
from gateway.steps.accept import accept, render

TEXT = resources.files("policies").joinpath("guards.yaml").read_text(encoding="utf-8")
CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
)
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
SOUND: dict[str, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"model": "m", "prompt": "hi"},
    RESPONSES: {"model": "m", "input": "hi"},
    MESSAGES: {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8},
    "/v1/embeddings": {"model": "m", "input": ["hi", "ho"]},
    "/detokenize": {"model": "m", "tokens": [1]},
}


TEXT = TEXT.replace("images: none ", "images: data ")
GUARDS = parse_guards(TEXT, "guards.yaml")
KNOWN = frozenset().union(*(guard.rules for guard in GUARDS.endpoints.values()))


def masks(*entries: str) -> Masks:
    document = Document(f"[{', '.join(entries)}]", "guards.yaml")
    read = read_masks(document, document.tree, KNOWN)
    document.finish()
    return read


def take(path: str, **members: Any) -> InferenceRequest:
    body = json.dumps(SOUND[path] | members).encode()
    return accept(ROUTES["POST", path], b"application/json", body, GUARDS)


def fault(settings: str, path: str, **members: Any) -> Refusal | None:
    """What a mask of these settings says of a body that its endpoint lets pass; the plain body always passes."""
    mask = masks(f"{{match: [m], {settings}}}").of("m")
    assert mask is not None
    mask.judge(take(path))
    try:
        mask.judge(take(path, **members))
    except Refusal as refusal:
        return refusal
    return None


def image(path: str) -> dict[str, Any]:
    url = f"data:image/png;base64,{PNG}"
    source = {"type": "base64", "media_type": "image/png", "data": PNG}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": source}]}
    return {
        CHAT: {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]},
        RESPONSES: {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]},
        MESSAGES: {"messages": [{"role": "user", "content": [result]}]},
    }[path]


SCHEMA = {"type": "object"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
STRICT = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}
JSON_FORMAT = {"type": "json_schema", "name": "x", "schema": SCHEMA}

REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("forbid: [presence_penalty]", CHAT, {"presence_penalty": 0}, "presence_penalty is not allowed"),
    ("forbid: [top_k, seed]", MESSAGES, {"top_k": 1}, "top_k is not allowed"),
    ("tools: refuse", CHAT, {"tools": [TOOL]}, "tools is not allowed"),
    ("tools: refuse", CHAT, {"tool_choice": "none"}, "tool_choice is not allowed"),
    ("tools: refuse", MESSAGES, {"tools": [{"name": "f", "input_schema": {}}]}, "tools is not allowed"),
    ("media: none", CHAT, image(CHAT), "messages must not hold images"),
    ("media: none", MESSAGES, image(MESSAGES), "messages must not hold images"),
    ("media: none", RESPONSES, image(RESPONSES), "input must not hold images"),
    ("logit_bias: refuse", CHAT, {"logit_bias": {"1": 1}}, "logit_bias is not allowed"),
    ("vocabulary: 100", CHAT, {"logit_bias": {"100": 1}}, "logit_bias must have token ids below 100"),
    ("vocabulary: 100", CHAT, {"logit_bias": {"0": 1, "999999999": 1}}, "logit_bias must have token ids below 100"),
    ("vocabulary: 100", "/detokenize", {"tokens": [1, 100]}, "tokens must be token ids below 100"),
    (
        "switches: [thinking]",
        CHAT,
        {"chat_template_kwargs": {"enable_thinking": True}},
        "chat_template_kwargs.enable_thinking is not allowed",
    ),
    (
        "switches: []",
        MESSAGES,
        {"chat_template_kwargs": {"thinking": False}},
        "chat_template_kwargs.thinking is not allowed",
    ),
    ("max_tokens: 10", CHAT, {"max_tokens": 11}, "max_tokens must be at most 10"),
    (
        "max_tokens: 10",
        CHAT,
        {"max_tokens": 1, "max_completion_tokens": 11},
        "max_completion_tokens must be at most 10",
    ),
    ("max_tokens: 10", COMPLETIONS, {"max_tokens": 11}, "max_tokens must be at most 10"),
    ("max_tokens: 10", RESPONSES, {"max_output_tokens": 11}, "max_output_tokens must be at most 10"),
    ("max_tokens: 10", MESSAGES, {"max_tokens": 11}, "max_tokens must be at most 10"),
    ("n: 1", CHAT, {"n": 2}, "n must be at most 1"),
    (
        "structured_output: refuse",
        CHAT,
        {"response_format": {"type": "json_object"}},
        "response_format must not ask for structured output",
    ),
    (
        "structured_output: refuse",
        COMPLETIONS,
        {"structured_outputs": {"choice": ["a"]}},
        "structured_outputs must not ask for structured output",
    ),
    (
        "structured_output: refuse",
        RESPONSES,
        {"text": {"format": JSON_FORMAT}},
        "text must not ask for structured output",
    ),
    (
        "structured_output: refuse",
        MESSAGES,
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        "output_config must not ask for structured output",
    ),
    ("structured_output: refuse", CHAT, {"tools": [TOOL, STRICT]}, "tools must not be strict"),
    (
        "structured_output: refuse",
        RESPONSES,
        {"tools": [{"type": "function", "name": "f", "strict": True}]},
        "tools must not be strict",
    ),
    (
        "structured_output: refuse",
        CHAT,
        {"tools": [TOOL], "tool_choice": "required"},
        "tool_choice must be none or auto",
    ),
    ("structured_output: refuse", MESSAGES, {"tool_choice": {"type": "any"}}, "tool_choice must be none or auto"),
    (
        "structured_output: refuse",
        CHAT,
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        "tool_choice must be none or auto",
    ),
]

PASSED: list[tuple[str, str, dict[str, Any]]] = [
    ("forbid: [presence_penalty]", CHAT, {"presence_penalty": None, "frequency_penalty": 1}),
    ("tools: allow", CHAT, {"tools": [TOOL]}),
    ("tools: refuse", CHAT, {"tools": None, "tool_choice": None}),
    ("media: data", CHAT, image(CHAT)),
    ("media: none", "/v1/embeddings", {"input": ["image_url"]}),
    ("vocabulary: 100", CHAT, {"logit_bias": {"99": 1, "000000099": 1}}),
    ("vocabulary: 100", "/detokenize", {"tokens": [0, 99]}),
    ("switches: [thinking]", CHAT, {"chat_template_kwargs": {"thinking": True}}),
    ("switches: []", CHAT, {"chat_template_kwargs": {}}),
    ("max_tokens: 10", CHAT, {"max_tokens": 10}),
    ("max_tokens: 10", CHAT, {"max_tokens": 99, "max_completion_tokens": 9}),  # the engine reads the second alone
    ("n: 1", CHAT, {"n": 1}),
    ("structured_output: refuse", CHAT, {"response_format": {"type": "text"}, "tools": [TOOL], "tool_choice": "auto"}),
    ("structured_output: refuse", RESPONSES, {"text": {"format": {"type": "text"}, "verbosity": "low"}}),
    ("structured_output: refuse", MESSAGES, {"output_config": {"effort": "low"}, "tool_choice": {"type": "auto"}}),
]


@pytest.mark.parametrize(("settings", "path", "members", "message"), REFUSED)
def test_a_mask_refuses_and_says_the_rule(settings: str, path: str, members: dict[str, Any], message: str) -> None:
    refusal = fault(settings, path, **members)
    assert refusal is not None
    assert (refusal.spec.code, refusal.spec.status) == ("invalid_request", 400)
    assert refusal.message == f"{message} for this model."
    assert refusal.param == message.partition(" ")[0].partition(".")[0]


@pytest.mark.parametrize(("settings", "path", "members"), PASSED)
def test_a_mask_lets_the_rest_pass(settings: str, path: str, members: dict[str, Any]) -> None:
    assert fault(settings, path, **members) is None


def test_a_form_is_judged_too() -> None:
    parts = {"model": "m", "prompt": "secret"}
    body = "".join(f'--x\r\ncontent-disposition: form-data; name="{n}"\r\n\r\n{v}\r\n' for n, v in parts.items())
    body += '--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nabc\r\n--x--\r\n'
    route = ROUTES["POST", "/v1/audio/transcriptions"]
    request = accept(route, b"multipart/form-data; boundary=x", body.encode(), GUARDS)
    Mask(forbid=frozenset({"language"})).judge(request)
    with pytest.raises(Refusal) as caught:
        Mask(forbid=frozenset({"prompt"})).judge(request)
    assert caught.value.message == "prompt is not allowed for this model."


def test_all_entries_that_match_hold() -> None:
    held = masks(
        "{match: [draft-*], forbid: [seed], max_tokens: 100, switches: [thinking, enable_thinking]}",
        "{match: ['*'], forbid: [stop], max_tokens: 200, vocabulary: 50, switches: [thinking], n: 3}",
        "{match: [draft-one, other], media: none, structured_output: refuse}",
    )
    assert held.of("draft-one") == Mask(
        forbid=frozenset({"seed", "stop"}),
        images=False,
        structured_output=False,
        switches=frozenset({"thinking"}),
        max_tokens=100,
        vocabulary=50,
        n=3,
    )
    assert held.of("general") == Mask(
        forbid=frozenset({"stop"}), max_tokens=200, vocabulary=50, n=3, switches=frozenset({"thinking"})
    )
    assert held.of("draft-one") is held.of("draft-one")


def test_an_entry_that_allows_widens_nothing() -> None:
    held = masks("{match: [m], tools: refuse, logit_bias: refuse, media: none, structured_output: refuse}")
    both = masks(
        "{match: [m], tools: refuse, logit_bias: refuse, media: none, structured_output: refuse}",
        "{match: [m], tools: allow, logit_bias: allow, media: data, structured_output: allow, max_tokens: 1048576}",
    )
    wide = both.of("m")
    assert wide is not None
    assert wide.narrowed(Mask()) == wide
    assert held.of("m") == Mask(wide.forbid, wide.images, wide.structured_output)


def test_the_section_of_the_file() -> None:
    held = parse_guards(TEXT.replace("aliases: []", "aliases: [{match: [m], n: 1}]"), "guards.yaml")
    assert held.mask("m") == Mask(n=1)
    assert held.mask("other") is None


def test_aliases_without_a_mask() -> None:
    held = masks("{match: [draft-*, exact], n: 1}")
    for alias in ("general", "draft", "exactly", "Draft-1", ""):
        assert held.of(alias) is None
    assert Masks().of("anything") is None


@pytest.mark.parametrize(
    ("path", "members", "name"),
    [(CHAT, {}, "max_tokens"), (CHAT, {"max_tokens": None}, "max_tokens"), (RESPONSES, {}, "max_output_tokens")],
)
def test_an_open_ended_request_gets_the_limit(path: str, members: dict[str, Any], name: str) -> None:
    request = take(path, **members)
    before = dict(request.payload)
    bound = Mask(max_tokens=77).bound(request)
    assert (bound.payload[name], bound.max_tokens) == (77, 77)
    assert json.loads(render(bound, model="s", cache_salt=None)[1])[name] == 77
    assert (request.payload, request.max_tokens) == (before, None)


def test_a_request_that_is_bound_stays_as_it_is() -> None:
    stated = take(CHAT, max_completion_tokens=5)
    assert Mask(max_tokens=77).bound(stated) is stated
    assert Mask().bound(take(CHAT)).max_tokens is None
    for path in (COMPLETIONS, "/v1/embeddings"):  # sixteen tokens unless asked, and none at all
        assert Mask(max_tokens=77).bound(take(path)).max_tokens is None
