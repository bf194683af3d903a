"""guards.yaml: the default file, what it lets pass and what not, and that every fault of a file is reported at once."""

from __future__ import annotations

import base64
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import Refusal
from gateway.model import Endpoint
from gateway.policy.document import PolicyFault
from gateway.policy.engines import Floor
from gateway.policy.guards import Guards, load_guards, parse_guards

TEXT = resources.files("policies").joinpath("guards.yaml").read_text(encoding="utf-8")
GUARDS = parse_guards(TEXT, "guards.yaml")
MEDIA = parse_guards(TEXT.replace("images: none ", "images: data "), "guards.yaml")
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
MESSAGES: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
RESPONSES: dict[str, Any] = {"model": "m", "input": "hi"}
COMPLETIONS: dict[str, Any] = {"model": "m", "prompt": "hi"}


def refusal(endpoint: Endpoint, payload: dict[str, Any], guards: Guards = GUARDS) -> tuple[str | None, str] | None:
    """Parameter and message of the refusal, or ``None``."""
    try:
        guards.endpoints[endpoint].judge(payload)
    except Refusal as error:
        return error.param, error.message
    return None


def chat(**members: Any) -> tuple[str | None, str] | None:
    return refusal(Endpoint.CHAT, CHAT | members)


def said(*parts: Any, guards: Guards = GUARDS, role: str = "user") -> tuple[str | None, str] | None:
    return refusal(Endpoint.CHAT, {"model": "m", "messages": [{"role": role, "content": list(parts)}]}, guards)


def test_the_default_file_is_valid_and_says_what_the_design_says() -> None:
    assert (GUARDS.json_bytes, GUARDS.form_bytes) == (8 << 20, 26 << 20)
    assert (GUARDS.header_bytes, GUARDS.header_count) == (32 << 10, 64)
    assert (GUARDS.depth, GUARDS.isolation) == (16, "tenant")
    assert len(GUARDS.endpoints) == 14
    assert GUARDS.schemas_per_hour == 200
    assert GUARDS.floors == {"vllm": Floor("0.23.1", refuse=True)}
    assert GUARDS.mask("general") is None


def test_load_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "guards.yaml"
    path.write_text("isolation: some\n", encoding="utf-8")
    with pytest.raises(PolicyFault, match=re.escape(f"{path}:1: isolation: expected one of tenant, none")):
        load_guards(path)


ACCEPTED: dict[str, dict[str, Any]] = {
    "plain": {},
    "numbers": {"temperature": 0, "top_p": 1.0, "n": 8, "seed": -1, "max_tokens": 1, "top_k": -1, "min_p": 0.05},
    "nulls": {"temperature": None, "stop": None, "tools": None, "stream": None, "n": None},
    "stop_string": {"stop": "a" * 64},
    "stop_strings": {"stop": ["a", "b", "c", "d"]},
    "logprobs": {"logprobs": True, "top_logprobs": 5},
    "logit_bias": {"logit_bias": {"50256": -100, "1": 0.5}},
    "usage": {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "platform": {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
    "thinking": {"chat_template_kwargs": {"enable_thinking": False, "thinking": True}},
    "json_object": {"response_format": {"type": "json_object"}},
    "penalties": {"presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 1.1},
    "tool": {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
    },
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_chat_accepts(name: str) -> None:
    assert chat(**ACCEPTED[name]) is None


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"n": 0}, "n must be a whole number between 1 and 8."),
    ({"n": 9}, "n must be a whole number between 1 and 8."),
    ({"n": True}, "n must be a whole number between 1 and 8."),
    ({"n": 1.0}, "n must be a whole number between 1 and 8."),
    ({"n": "1"}, "n must be a whole number between 1 and 8."),
    ({"temperature": 2.1}, "temperature must be a number between 0 and 2."),
    ({"temperature": True}, "temperature must be a number between 0 and 2."),
    ({"stream": 1}, "stream must be true or false."),
    ({"stop": ["a"] * 5}, "stop must be a list of at most 4 items."),
    ({"stop": ["a", "b" * 65]}, "stop[1] must be a string of 1 to 64 characters."),
    ({"stop": ""}, "stop must be a string of 1 to 64 characters."),
    ({"top_logprobs": -1}, "top_logprobs must be a whole number between 0 and 5."),
    ({"logit_bias": {"x": 1}}, "logit_bias must have keys that are token ids in decimal digits."),
    ({"logit_bias": {"1\n": 1}}, "logit_bias must have keys that are token ids in decimal digits."),
    ({"logit_bias": {"1": 101}}, "logit_bias has a value that must be a number between -100 and 100."),
    ({"logit_bias": {str(n): 1 for n in range(301)}}, "logit_bias must have at most 300 members."),
    ({"model": ""}, "model must be 1 to 128 letters, digits and . _ : / @ -."),
    ({"model": "a b"}, "model must be 1 to 128 letters, digits and . _ : / @ -."),
    ({"model": "a\n"}, "model must be 1 to 128 letters, digits and . _ : / @ -."),
    ({"model": "m" * 129}, "model must be 1 to 128 letters, digits and . _ : / @ -."),
    ({"model": "mödel"}, "model must be 1 to 128 letters, digits and . _ : / @ -."),
    ({"model": None}, "model is required."),
    ({"messages": None}, "messages is required."),
    ({"messages": []}, "messages must be a list of 1 to 2048 items."),
    ({"messages": "hi"}, "messages must be a list of 1 to 2048 items."),
    ({"messages": ["hi"]}, "messages[0] must be an object."),
    ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content must be a string and not empty."),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]},
        "messages[0].content[0].text must be a string and not empty.",
    ),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content must be a list of 1 to 256 items."),
    ({"messages": [{"role": "user"}]}, "messages[0].content is required."),
    ({"messages": [{"role": "assistant"}]}, "messages[0].content is required."),
    ({"messages": [{"role": "user", "content": {"a": 1}}]}, "messages[0].content must be a list of 1 to 256 items."),
    ({"messages": [{"role": "user", "content": "a", "x y": 1}]}, "messages[0] has a member that is not allowed."),
    ({"messages": [{"role": "user", "content": "a", "extra": 1}]}, "messages[0].extra is not allowed."),
    ({"stream_options": {"include_usage": True}}, "stream_options is only allowed when stream is true."),
    ({"stream": True, "stream_options": {"a": True}}, "stream_options.a is not allowed."),
    ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize is not allowed."),
    (
        {"chat_template_kwargs": {"enable_thinking": "yes"}},
        "chat_template_kwargs.enable_thinking must be true or false.",
    ),
    ({"tool_choice": "always"}, "tool_choice must be one of none, auto, required."),
    ({"response_format": {"type": "regex"}}, "response_format.type must be one of text, json_object, json_schema."),
    (
        {"response_format": {"type": "structural_tag"}},
        "response_format.type must be one of text, json_object, json_schema.",
    ),
    ({"metadata": {"a": 1}}, "metadata has a value that must be a string of at most 512 characters."),
    ({"frobnicate": 1}, "frobnicate is not allowed."),
    ({"not plain": 1}, "The request has a member that is not allowed."),
]


@pytest.mark.parametrize(("members", "message"), REFUSED)
def test_chat_refuses_and_says_the_rule(members: dict[str, Any], message: str) -> None:
    name = next(iter(members))
    if name == "stream":
        name = list(members)[-1]
    assert chat(**members) == (None if name == "not plain" else name, message)


def test_roles_are_a_closed_set() -> None:
    roles = "system, developer, user, assistant, tool"
    expected = ("messages", f"messages[0].role must be one of {roles}.")
    for role in ("wizard", "function", "User", None, 1, [], {}):
        assert refusal(Endpoint.CHAT, {"model": "m", "messages": [{"role": role, "content": "x"}]}) == expected


def test_messages_are_bounded_in_number() -> None:
    one = {"role": "user", "content": "x"}
    assert refusal(Endpoint.CHAT, {"model": "m", "messages": [one] * 2048}) is None
    assert refusal(Endpoint.CHAT, {"model": "m", "messages": [one] * 2049}) is not None


def test_an_answer_may_be_sent_back_as_it_came() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": "why",
        "tool_calls": [call],
    }
    result = {"role": "tool", "tool_call_id": "call_1", "content": ""}
    assert refusal(Endpoint.CHAT, {"model": "m", "messages": [CHAT["messages"][0], answer, result]}) is None
    empty = {"role": "assistant", "content": "", "tool_calls": []}
    assert refusal(Endpoint.CHAT, {"model": "m", "messages": [CHAT["messages"][0], empty]}) is None


PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\1\0\0\0\1\x08\0\0\0\0crc4\0\0\0\0IDATcrc4").decode()
PIXEL = f"data:image/png;base64,{PNG}"


def image(url: Any, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def test_media_is_off_by_default_and_data_when_switched_on() -> None:
    assert said(image(PIXEL)) == ("messages", "messages[0].content[0] holds media, which is not enabled.")
    assert said(image(PIXEL, detail="low"), guards=MEDIA) is None
    assert said(*[image(PIXEL)] * 4, guards=MEDIA) is None
    assert said(*[image(PIXEL)] * 5, guards=MEDIA) == ("messages", "messages must hold at most 4 images.")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/a.png",
        "https://example.com/a.png",
        "file:///etc/passwd",
        "ftp://a/b",
        "DATA:image/png;base64,AAAA",
        " data:image/png;base64,AAAA",
        "data:image/gif;base64,AAAA",
        "data:image/svg+xml;base64,AAAA",
        "data:video/jpeg;base64,AAAA",
        "data:image/png,AAAA",
        "data:image/png;charset=x;base64,AAAA",
        "data:image/jpeg;base64,AAAA,BBBB",
        "data:image/png;base64,",
        "data:image/png;base64,AA\nAA",
        "data:image/png;base64," + "A" * ((4 << 20) + 1),
        "http:\\\\allowed@evil/",
        None,
        {"a": 1},
    ],
)
def test_only_images_as_data(url: Any) -> None:
    assert said(image(url), guards=MEDIA) is not None


def test_an_image_declares_its_size_and_is_what_it_says() -> None:
    small = parse_guards(TEXT.replace("images: none ", "images: data ").replace("pixels: 16000000", "pixels: 1"), "x")
    wide = base64.b64encode(base64.b64decode(PNG).replace(b"IHDR\0\0\0\1", b"IHDR\0\0\0\2")).decode()
    fault = "must be an image of its media type, not animated, of at most 1 pixels."
    assert said(image(PIXEL), guards=small) is None
    for url in (f"data:image/png;base64,{wide}", f"data:image/jpeg;base64,{PNG}", "data:image/png;base64,AAAA"):
        assert said(image(url), guards=small) == ("messages", f"messages[0].content[0].image_url.url {fault}")
    source = {"type": "base64", "media_type": "image/webp", "data": PNG}
    block = {"role": "user", "content": [{"type": "image", "source": source}]}
    assert refusal(Endpoint.MESSAGES, MESSAGES | {"messages": [block]}, small) == (
        "messages",
        f"messages[0].content[0].source.data {fault}",
    )


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_embeds", "image_embeds": "AAAA"},
        {"type": "audio_embeds", "audio_embeds": "AAAA"},
        {"type": "prompt_embeds", "data": "AAAA"},
        {"type": "video_url", "video_url": {"url": "data:video/jpeg;base64,AAAA"}},
        {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_data": "AAAA"}},
        {"type": "text", "text": "a", "image_embeds": "AAAA"},
        {"image_url": PIXEL},
        {"type": ["text"], "text": "a"},
        "text",
        {},
    ],
)
def test_no_other_parts_even_with_media_on(part: Any) -> None:
    assert said({"type": "text", "text": "a"}, part, guards=MEDIA) is not None


def schema_fault(schema: Any) -> str | None:
    found = chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    assert (found is None) or found[1].startswith("response_format.json_schema.schema")
    in_tool = chat(tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}])
    assert (found is None) == (in_tool is None), "a tool's parameters go through the same rule"
    return found[1] if found else None


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels - 1):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


GOOD_SCHEMAS: list[dict[str, Any]] = [
    {},
    {"type": "object", "properties": {"pattern": {"type": "string"}, "$ref": {"type": ["string", "null"]}}},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "integer"}}},
    {"type": "object", "properties": {"a": {"enum": ["x", {"pattern": "y"}]}}, "required": ["a"]},
    {"anyOf": [{"type": "string", "maxLength": 10000}, {"type": "null"}], "default": {"pattern": 1}},
    {"type": "array", "items": {"type": "number", "minimum": 0}, "maxItems": 3},
    {"type": "object", "properties": {"a": True}, "additionalProperties": False},
    nested(8),
]


@pytest.mark.parametrize("schema", GOOD_SCHEMAS)
def test_schemas_that_pass(schema: dict[str, Any]) -> None:
    assert schema_fault(schema) is None


BAD_SCHEMAS: list[tuple[Any, str]] = [
    ("string", "must be an object"),
    ([], "must be an object"),
    ({"type": "nonsense"}, "types of JSON Schema"),
    ({"type": {"type": "object"}}, "types of JSON Schema"),
    ({"type": []}, "types of JSON Schema"),
    ({"type": ["string", 1]}, "types of JSON Schema"),
    ({"pattern": "(a+)+$"}, "must not use pattern"),
    ({"patternProperties": {"a": {}}}, "must not use pattern"),
    ({"properties": {"a": {"items": {"anyOf": [{"pattern": "x"}]}}}}, "must not use pattern"),
    ({"items": [{"pattern": "x"}]}, "must not use pattern"),
    ({"unheard_of": {"deep": {"pattern": "x"}}}, "must not use pattern"),
    ({"$defs": {"A": {"pattern": "x"}}}, "must not use pattern"),
    ({"$ref": "http://169.254.169.254/x"}, "references within itself"),
    ({"$ref": "other.json#/a"}, "references within itself"),
    ({"$ref": 1}, "references within itself"),
    ({"maxLength": 10001}, "must keep maxLength between 0 and 10000"),
    ({"minItems": -1}, "must keep minItems between"),
    ({"properties": {"a": "string"}}, "must have schemas in properties"),
    ({"properties": [1]}, "must have schemas in properties"),
    ({"enum": "a"}, "must have lists in enum"),
    ({"properties": {f"a{n}": {} for n in range(201)}}, "at most 200 properties"),
    ({"allOf": [{"properties": {f"a{n}_{m}": {} for n in range(101)}} for m in range(2)]}, "at most 200 properties"),
    ({"description": "x" * (16 << 10)}, "at most 16384 bytes"),
    (nested(9), "at most 8 levels"),
]


@pytest.mark.parametrize(("schema", "message"), BAD_SCHEMAS)
def test_schemas_that_do_not(schema: Any, message: str) -> None:
    assert message in (schema_fault(schema) or "passed")


@pytest.mark.parametrize("name", ["regex", "grammar", "structural_tag", "backend", "whitespace_pattern"])
def test_structured_outputs_without_expressions(name: str) -> None:
    assert chat(structured_outputs={"json": {"type": "object"}}) is None
    assert chat(structured_outputs={"choice": ["a", "b"]}) is None
    assert chat(structured_outputs={name: "a"}) == ("structured_outputs", f"structured_outputs.{name} is not allowed.")


def test_prompts_are_texts() -> None:
    assert refusal(Endpoint.COMPLETIONS, COMPLETIONS | {"prompt": ["a"] * 16}) is None
    for prompt in ("", [], [""], ["a"] * 17, [1, 2], [[1, 2]], {"prompt_token_ids": [1]}, 5):
        found = refusal(Endpoint.COMPLETIONS, COMPLETIONS | {"prompt": prompt})
        assert found is not None
        assert found[0] == "prompt"


def test_echo_may_not_be_a_way_to_prompt_logprobs() -> None:
    assert refusal(Endpoint.COMPLETIONS, COMPLETIONS | {"echo": True}) is None
    assert refusal(Endpoint.COMPLETIONS, COMPLETIONS | {"echo": False, "logprobs": 1}) is None
    found = refusal(Endpoint.COMPLETIONS, COMPLETIONS | {"echo": True, "logprobs": 0})
    assert found == ("echo", "echo may not be combined with logprobs.")


@pytest.mark.parametrize(
    "members",
    [
        {"previous_response_id": "resp_1"},
        {"background": True},
        {"conversation": "c"},
        {"prompt": {"id": "p"}},
        {"tools": [{"type": "web_search"}]},
        {"tools": [{"type": "mcp", "server_url": "http://127.0.0.1/"}]},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": []},
        {"input": ""},
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "http://127.0.0.1/"}]}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": PIXEL}]}]},
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"pattern": "x"}}}},
        {"previous_response": {}},
        {"cache_salt": "a"},
    ],
)
def test_responses_are_stateless(members: dict[str, Any]) -> None:
    found = refusal(Endpoint.RESPONSES, RESPONSES | members)
    assert found is not None
    assert found[0] == next(iter(members))


def test_responses_accept_a_conversation_sent_back() -> None:
    items = [
        {"role": "developer", "content": "be brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "phase": None,
            "content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": None}],
        },
    ]
    assert refusal(Endpoint.RESPONSES, RESPONSES | {"input": items, "store": True, "background": False}) is None


def test_anthropic_messages() -> None:
    blocks = [
        {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": [1]}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "1", "is_error": False}]},
    ]
    members = {
        "messages": blocks,
        "system": [{"type": "text", "text": "be brief"}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        "stop_sequences": ["a"],
        "metadata": {"user_id": "u"},
        "thinking": {"type": "disabled"},
    }
    assert refusal(Endpoint.MESSAGES, MESSAGES | members) is None


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools"),
        ({"tools": [{"name": "f", "input_schema": {"pattern": "x"}}]}, "tools"),
        ({"tools": [{"name": "f"}]}, "tools"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"system": ""}, "system"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://a"}}]}
                ]
            },
            "messages",
        ),
        ({"kv_transfer_params": {}}, "kv_transfer_params"),
        ({"mcp_servers": []}, "mcp_servers"),
    ],
)
def test_anthropic_refuses(members: dict[str, Any], param: str) -> None:
    found = refusal(Endpoint.MESSAGES, MESSAGES | members, MEDIA)
    assert found is not None
    assert found[0] == param


def test_anthropic_images_within_tool_results_count() -> None:
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [block] * 3}
    assert refusal(Endpoint.MESSAGES, MESSAGES | {"messages": [{"role": "user", "content": [result]}]}, MEDIA) is None
    over = MESSAGES | {"messages": [{"role": "user", "content": [result, block, block]}]}
    assert refusal(Endpoint.MESSAGES, over, MEDIA) == ("messages", "messages must hold at most 4 images.")


def test_what_the_gateway_itself_reads_cannot_be_given_another_kind() -> None:
    for old, new in (
        ("required: [model, tokens]", "required: [tokens]"),
        ("model: {is: model}\n      tokens", "model: {is: text}\n      tokens"),
        ("n: {is: integer, min: 1, max: 8}              #", "n: {is: text}  #"),
        (
            "    stream: {is: boolean}\n    stream_options",
            "    stream: {is: boolean, action: drop}\n    stream_options",
        ),
    ):
        assert old in TEXT
        with pytest.raises(PolicyFault, match="the gateway reads"):
            parse_guards(TEXT.replace(old, new), "x.yaml")


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "guards.yaml"
    path.write_bytes(b"isolation: \xff")
    with pytest.raises(PolicyFault, match="expected UTF-8"):
        load_guards(path)


def test_all_faults_of_a_file_are_reported_together() -> None:
    broken = """
isolation: sometimes
bodies: {json: lots, depth: 16, depth: 17}
extra: 1
groups:
  odd:
    a: {is: nothing}
endpoints:
  chat:
    include: [odd, missing]
    required: [nope]
    needs: [[a]]
    fields:
      n: {is: integer, min: 8, max: 1}
      m: {is: integer, max: 1, colour: red}
      t: {is: text, action: forward}
  models: {}
aliases:
  - {match: [a], forbid: [nonsense]}
  - {match: [], n: 0}
engines: {vllm: {minimum: 0.23, below: ignore}, sglang: {}}
"""
    with pytest.raises(PolicyFault) as caught:
        parse_guards(broken, "x.yaml")
    report = str(caught.value)
    for line in (
        "x.yaml:2: isolation: expected one of tenant, none",
        "x.yaml:3: bodies.depth: written twice",
        "x.yaml:3: bodies.json: expected a size",
        "x.yaml:4: extra: not known",
        "x.yaml:7: groups.odd.a: expected is: one of",
        "x.yaml:10: endpoints.chat.include: expected one of the groups odd",
        "endpoints.chat: expected names of its own fields",
        "x.yaml:12: endpoints.chat.needs",
        "x.yaml:14: endpoints.chat.fields.n: expected min to be at most max",
        "x.yaml:15: endpoints.chat.fields.m: expected min",
        "x.yaml:15: endpoints.chat.fields.m.colour: not known",
        "x.yaml:16: endpoints.chat.fields.t: expected action",
        "x.yaml:17: endpoints.models: not known",
        "endpoints: expected completions",
        "x.yaml:19: aliases[0].forbid: expected members that an endpoint lets pass; nonsense is not among them",
        "x.yaml:20: aliases[1].match: expected a list of names",
        "x.yaml:20: aliases[1].n: expected a whole number",
        "x.yaml:21: engines.vllm.minimum: expected a version in quotes",
        "x.yaml:21: engines.vllm.below: expected one of refuse, warn",
        "x.yaml:21: engines.sglang: not known",
    ):
        assert line in report


@pytest.mark.parametrize(
    "text", ["", "[]", "a: [", "- 1", "endpoints: 1", "a: !!python/object:os.system {}", "&a [*a, *a, *a]"]
)
def test_files_that_are_no_policy(text: str) -> None:
    with pytest.raises(PolicyFault):
        parse_guards(text, "x.yaml")
