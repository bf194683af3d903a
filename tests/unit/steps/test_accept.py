"""From bytes to a judged request and back to bytes, and the bodies that the real clients send."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from types import ModuleType
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from pydantic import BaseModel

from gateway.errors import Refusal
from gateway.model import InferenceRequest
from gateway.policy.guards import parse_guards
from gateway.routes import ROUTES
from gateway.steps.accept import accept, render
from gateway.wire.multipart import parse_form

GUARDS = parse_guards(resources.files("policies").joinpath("guards.yaml").read_text(encoding="utf-8"), "guards.yaml")
JSON = b"application/json"
CHAT: dict[str, Any] = {"model": "general", "messages": [{"role": "user", "content": "hé"}]}


def take(path: str, payload: Any, content_type: bytes = JSON) -> InferenceRequest:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return accept(ROUTES["POST", path], content_type, body, GUARDS)


def sent(request: InferenceRequest, *, model: str = "served", cache_salt: str | None = None) -> dict[str, Any]:
    content_type, body = render(request, model=model, cache_salt=cache_salt)
    assert content_type == JSON
    loaded: dict[str, Any] = json.loads(body)
    return loaded


def refused(path: str, payload: Any, content_type: bytes = JSON) -> Refusal:
    with pytest.raises(Refusal) as caught:
        take(path, payload, content_type)
    return caught.value


def test_what_is_read_off_a_chat_body() -> None:
    members = {"stream": True, "stream_options": {"include_usage": True}, "n": 2, "max_tokens": 9}
    request = take("/v1/chat/completions", CHAT | members)
    assert (request.alias, request.stream, request.include_usage) == ("general", True, True)
    assert (request.max_tokens, request.choices) == (9, 2)


@pytest.mark.parametrize(
    ("path", "members", "limit"),
    [
        ("/v1/chat/completions", CHAT, None),
        ("/v1/chat/completions", CHAT | {"max_tokens": 9, "max_completion_tokens": 7}, 7),
        ("/v1/chat/completions", CHAT | {"max_tokens": 9, "max_completion_tokens": None}, 9),
        ("/v1/completions", {"model": "m", "prompt": "p", "max_tokens": 3}, 3),
        ("/v1/responses", {"model": "m", "input": "p", "max_output_tokens": 4}, 4),
        ("/v1/messages", CHAT | {"max_tokens": 5}, 5),
        ("/v1/embeddings", {"model": "m", "input": "p"}, None),
    ],
)
def test_output_limits(path: str, members: dict[str, Any], limit: int | None) -> None:
    assert take(path, members).max_tokens == limit


def test_choices_count_prompts_too() -> None:
    assert take("/v1/completions", {"model": "m", "prompt": ["a", "b", "c"], "n": 2}).choices == 6
    assert take("/v1/completions", {"model": "m", "prompt": "a", "n": None}).choices == 1


@pytest.mark.parametrize(
    "content_type",
    [
        JSON,
        b"application/json; charset=utf-8",
        b'Application/JSON;charset="UTF-8"',
        b"application/json ; charset=utf-8 ",
    ],
)
def test_content_types_taken(content_type: bytes) -> None:
    assert take("/v1/chat/completions", CHAT, content_type).alias == "general"


@pytest.mark.parametrize(
    "content_type",
    [
        b"",
        b"text/plain",
        b"text/json",
        b"application/jsonp",
        b"application/json; charset=utf-16",
        b"application/json; charset=utf-8; x=y",
        b"application/json, text/plain",
        b"application/problem+json",
        b"multipart/form-data; boundary=x",
        b"application/json\n",
    ],
)
def test_content_types_refused(content_type: bytes) -> None:
    refusal = refused("/v1/chat/completions", CHAT, content_type)
    assert refusal.spec.status == 400
    assert refusal.message == "Content-Type must be application/json."


def test_empty_and_large_bodies() -> None:
    assert refused("/v1/chat/completions", b"").message == "The request has no body."
    small = replace(GUARDS, json_bytes=40, form_bytes=40)
    for path, kind in (("/v1/chat/completions", JSON), ("/v1/audio/translations", b"multipart/form-data; boundary=x")):
        with pytest.raises(Refusal) as caught:
            accept(ROUTES["POST", path], kind, b"x" * 41, small)
        assert caught.value.spec.status == 413


def test_the_body_may_not_be_ambiguous() -> None:
    body = rb'{"model":"mine","mod\u0065l":"other","messages":[{"role":"user","content":"x"}]}'
    assert refused("/v1/chat/completions", body).message == "The body must not name a member twice."


def test_render_is_new_for_each_attempt() -> None:
    request = take("/v1/chat/completions", CHAT | {"stream": True, "user": "u", "store": True, "metadata": {"a": "b"}})
    first = sent(request, model="one", cache_salt="salt")
    assert first == {
        "model": "one",
        "messages": CHAT["messages"],
        "stream": True,
        "cache_salt": "salt",
        "stream_options": {"include_usage": True},
    }
    second = sent(request, model="two")
    assert second["model"] == "two"
    assert "cache_salt" not in second
    assert request.payload["model"] == "general"


def test_continuous_usage_only_for_who_asked_for_both() -> None:
    def options(asked: dict[str, bool] | None) -> Any:
        return sent(take("/v1/chat/completions", CHAT | {"stream": True, "stream_options": asked}))["stream_options"]

    both = {"include_usage": True, "continuous_usage_stats": True}
    assert options(both) == both
    for asked in (None, {}, {"continuous_usage_stats": True}, {"include_usage": False, "include_obfuscation": False}):
        assert options(asked) == {"include_usage": True}


def test_no_stream_options_without_a_stream() -> None:
    assert "stream_options" not in sent(take("/v1/chat/completions", CHAT | {"stream": False}))
    request = take("/v1/messages", CHAT | {"max_tokens": 5, "stream": True})
    assert "stream_options" not in sent(request), "Anthropic's streams report usage unasked"


SALTED = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "m", "prompt": "p"},
    "/v1/responses": {"model": "m", "input": "p"},
    "/v1/embeddings": {"model": "m", "input": "p"},
    "/pooling": {"model": "m", "input": "p"},
    "/classify": {"model": "m", "input": "p"},
    "/score": {"model": "m", "text_1": "p", "text_2": ["q"]},
    "/v2/rerank": {"model": "m", "query": "p", "documents": ["q"]},
}
UNSALTED = {
    "/v1/messages": CHAT | {"max_tokens": 1},
    "/v1/messages/count_tokens": CHAT,
    "/tokenize": {"model": "m", "prompt": "p"},
    "/detokenize": {"model": "m", "tokens": [1]},
}


@pytest.mark.parametrize("path", SALTED | UNSALTED)
def test_the_salt_is_ours_and_goes_where_the_engine_knows_it(path: str) -> None:
    payload = (SALTED | UNSALTED)[path]
    assert refused(path, payload | {"cache_salt": "mine"}).param == "cache_salt"
    assert (sent(take(path, payload), cache_salt="ours").get("cache_salt") == "ours") == (path in SALTED)


def test_responses_never_ask_the_engine_to_store() -> None:
    for members in ({}, {"store": True}, {"store": None}, {"store": False}):
        request = take("/v1/responses", {"model": "m", "input": "p", "background": False, **members})
        assert sent(request) == {"model": "served", "input": "p", "store": False}


def form(*, model: str = "whisper", filename: str = "a.wav", kind: str = "audio/wav", more: bytes = b"") -> bytes:
    head = f'--x\r\nContent-Disposition: form-data; name="file"; filename="{filename}"\r\nContent-Type: {kind}\r\n\r\n'
    return one("model", model) + more + head.encode() + b"RIFF\r\n--\0\xff\r\n--x--\r\n"


def one(name: str, value: str) -> bytes:
    return f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()


FORM = b"multipart/form-data; boundary=x"
TRANSCRIBE = "/v1/audio/transcriptions"


def test_forms_are_written_anew() -> None:
    more = one("temperature", "0.2") + one("stream", "true") + one("include[]", "logprobs")
    request = take(TRANSCRIBE, form(filename="../../my secret.MP3", kind="text/html", more=more), FORM)
    assert (request.alias, request.stream, request.payload) == ("whisper", True, {})
    content_type, body = render(request, model="served", cache_salt="salt")
    parts = parse_form(body, content_type, max_parts=9, max_field_bytes=99)
    assert [(part.name, part.data, part.filename, part.content_type) for part in parts] == [
        ("model", b"served", None, None),
        ("temperature", b"0.2", None, None),
        ("stream", b"true", None, None),
        ("file", b"RIFF\r\n--\0\xff", "audio.mp3", "application/octet-stream"),
    ]
    assert b"secret" not in body
    assert request.parts[0].data == b"whisper", "another attempt renders from the same request"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (form(more=one("frobnicate", "1")), "frobnicate"),
        (form(more=one("temperature", "hot")), "temperature"),
        (form(more=one("temperature", "nan")), "temperature"),
        (form(more=one("temperature", "1" * 5000)), "temperature"),
        (form(more=one("stream", "maybe")), "stream"),
        (form(more=one("timestamp_granularities[]", "year")), "timestamp_granularities[]"),
        (form(more=one("response_format", "xml")), "response_format"),
        (form(model="a b"), "model"),
        (one("model", "m") + b"--x--\r\n", "file"),
        (one("model", "m") + one("file", "text") + b"--x--\r\n", "file"),
        (form(more=one("a[]", "1")), None),
    ],
)
def test_forms_refused(body: bytes, param: str | None) -> None:
    assert refused(TRANSCRIBE, body, FORM).param == param


def test_a_form_that_is_none() -> None:
    assert refused(TRANSCRIBE, form(), JSON).message.startswith("Content-Type must be multipart/form-data")
    assert refused(TRANSCRIBE, b"{}", FORM).message.startswith("The body must be a multipart form")


def test_every_route_with_a_body_has_rules() -> None:
    for route in ROUTES.values():
        if route.body.value != "none":
            assert route.endpoint in GUARDS.endpoints
            assert GUARDS.endpoints[route.endpoint].rules["model"] is not None


class Wire:
    """A transport that keeps what a client would have sent; ``library`` is httpx or its successor."""

    def __init__(self, library: ModuleType) -> None:
        self._library = library
        self.requests: list[Any] = []

    def client(self) -> Any:
        return self._library.Client(transport=self._library.MockTransport(self._answer))

    def _answer(self, request: Any) -> Any:
        request.read()
        self.requests.append(request)
        return self._library.Response(200, json={})

    def last(self) -> InferenceRequest:
        request = self.requests[-1]
        kind = request.headers["content-type"].encode()
        return accept(ROUTES["POST", request.url.path], kind, request.content, GUARDS)


class Weather(BaseModel):
    """A parsed answer, as the clients build schemas from."""

    city: str
    degrees: float | None = None
    wind: list[Weather] = []


TOOL = {
    "type": "function",
    "function": {"name": "f", "strict": True, "parameters": {"type": "object", "properties": {}}},
}
OPENAI_CALLS: dict[str, Callable[[openai.OpenAI], object]] = {
    "chat": lambda c: c.chat.completions.with_raw_response.create(
        model="m",
        messages=[{"role": "developer", "content": "d"}, {"role": "user", "content": [{"type": "text", "text": "hé"}]}],
        temperature=0.5,
        max_completion_tokens=5,
        stop=["a"],
        user="u",
        metadata={"a": "b"},
        store=False,
        seed=1,
        reasoning_effort="low",
        logprobs=True,
        top_logprobs=2,
        logit_bias={"5": 1},
        extra_body={"top_k": 5, "chat_template_kwargs": {"enable_thinking": False}},
    ),
    "chat_stream": lambda c: c.chat.completions.with_raw_response.create(
        model="m", messages=[{"role": "user", "content": "x"}], stream=True, stream_options={"include_usage": True}
    ),
    "chat_tools": lambda c: c.chat.completions.with_raw_response.create(
        model="m",
        messages=[
            {"role": "user", "content": "x"},
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "1"},
        ],
        tools=[TOOL],  # type: ignore[list-item]
        tool_choice="auto",
        parallel_tool_calls=True,
    ),
    "chat_parsed": lambda c: c.chat.completions.with_raw_response.parse(
        model="m", messages=[{"role": "user", "content": "x"}], response_format=Weather
    ),
    "completions": lambda c: c.completions.with_raw_response.create(
        model="m", prompt=["a", "b"], max_tokens=5, logprobs=1, suffix="z", n=2, presence_penalty=0.1
    ),
    "embeddings": lambda c: c.embeddings.with_raw_response.create(model="m", input=["a", "b"], dimensions=64, user="u"),
    "responses": lambda c: c.responses.with_raw_response.create(
        model="m",
        input=[{"role": "user", "content": [{"type": "input_text", "text": "x"}]}],
        instructions="i",
        max_output_tokens=16,
        store=False,
        reasoning={"effort": "low", "summary": "auto"},
        include=["reasoning.encrypted_content"],
        tools=[{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": True}],
        truncation="auto",
        metadata={"a": "b"},
    ),
    "responses_parsed": lambda c: c.responses.with_raw_response.parse(model="m", input="x", text_format=Weather),
    "transcriptions": lambda c: c.audio.transcriptions.with_raw_response.create(
        file=("my speech.wav", b"RIFF\r\n--x"),
        model="m",
        language="en",
        prompt="é",
        response_format="verbose_json",
        temperature=0.2,
        timestamp_granularities=["word", "segment"],
    ),
    "translations": lambda c: c.audio.translations.with_raw_response.create(file=io.BytesIO(b"xx"), model="m"),
}
ANTHROPIC_CALLS: dict[str, Callable[[anthropic.Anthropic], object]] = {
    "messages": lambda c: c.messages.with_raw_response.create(
        model="m",
        max_tokens=5,
        system=[{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": "hé"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "1"}]},
        ],
        tools=[{"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {}}}],
        tool_choice={"type": "auto"},
        stop_sequences=["a"],
        metadata={"user_id": "u"},
        stream=True,
    ),
    "count_tokens": lambda c: c.messages.with_raw_response.count_tokens(
        model="m", system="s", messages=[{"role": "user", "content": "x"}]
    ),
}


@pytest.mark.parametrize("name", OPENAI_CALLS)
@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
def test_the_openai_client_is_understood(name: str) -> None:
    wire = Wire(httpx)
    with openai.OpenAI(base_url="http://gateway/v1", api_key="k", max_retries=0, http_client=wire.client()) as client:
        OPENAI_CALLS[name](client)
    request = wire.last()
    assert request.alias == "m"
    assert render(request, model="served", cache_salt="s")[1]


@pytest.mark.parametrize("name", ANTHROPIC_CALLS)
def test_the_anthropic_client_is_understood(name: str) -> None:
    wire = Wire(httpx2)
    with anthropic.Anthropic(
        base_url="http://gateway", api_key="k", max_retries=0, http_client=wire.client()
    ) as client:
        ANTHROPIC_CALLS[name](client)
    request = wire.last()
    assert (request.alias, request.stream) == ("m", name == "messages")
    assert sent(request)["model"] == "served"
