"""Everything a caller may ask of a text model, through the gateway, of the simulated engine and of the real one."""

from __future__ import annotations

import json

import anthropic
import openai
import pytest

ALIAS, SERVED = "internal-general", "internal-general-v3"
MESSAGES = [{"role": "user", "content": "hello world"}]
UNIT = {
    "type": "object",
    "properties": {"unit": {"type": "string", "enum": ["celsius"]}},
    "required": ["unit"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather.", "strict": True, "parameters": UNIT},
}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
OF_THE_ENGINE = (SERVED, "vllm", "EngineCore", "parameter=", "pydantic", "uvicorn")


@pytest.fixture
def client(gateway):
    key = gateway.bearer["authorization"].removeprefix("Bearer ")
    direct = openai.DefaultHttpxClient(trust_env=False)
    with openai.OpenAI(base_url=gateway.base_url, api_key=key, max_retries=0, http_client=direct) as client:
        yield client


@pytest.fixture
def claude(gateway):
    key = gateway.bearer["authorization"].removeprefix("Bearer ")
    direct = anthropic.DefaultHttpxClient(trust_env=False)
    with anthropic.Anthropic(base_url=gateway.url, api_key=key, max_retries=0, http_client=direct) as client:
        yield client


def chat(client, **changed):
    asked = {"model": ALIAS, "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
    return client.chat.completions.create(**{**asked, **changed})


def test_models(client):
    assert [model.id for model in client.models.list()] == [ALIAS]


def test_chat_and_its_stream_say_the_same(client):
    whole = chat(client)
    with chat(client, stream=True) as stream:
        chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "length"
    assert {whole.model, *(chunk.model for chunk in chunks)} == {ALIAS}
    assert whole.usage.completion_tokens == 8


def test_usage_is_hidden_unless_asked_for_and_recorded_always(client, gateway):
    with chat(client, stream=True, max_tokens=7) as stream:
        assert all(chunk.usage is None and chunk.choices for chunk in stream)
    hidden = gateway.records.last(endpoint="chat", stream=True, completion_tokens=7)
    with chat(client, stream=True, max_tokens=7, stream_options={"include_usage": True}) as stream:
        last = list(stream)[-1]
    assert (last.choices, last.usage.completion_tokens, last.model) == ([], 7, ALIAS)
    assert last.usage.prompt_tokens == hidden["prompt_tokens"]


def test_usage_on_each_chunk(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    with chat(client, stream=True, stream_options=options) as stream:
        counts = [chunk.usage.completion_tokens for chunk in stream]
    assert counts == sorted(counts)
    assert counts[-1] == 8


def test_several_choices_and_logprobs(client):
    answer = chat(client, n=2, logprobs=True, top_logprobs=2, temperature=1, seed=7)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert [len(choice.logprobs.content) for choice in answer.choices] == [8, 8]
    assert all(len(token.top_logprobs) >= 2 for token in answer.choices[0].logprobs.content)


def test_several_choices_streamed(client):
    with chat(client, n=3, stream=True, temperature=1, seed=7) as stream:
        ends = [c.index for chunk in stream for c in chunk.choices if c.finish_reason]
    assert sorted(ends) == [0, 1, 2]


def test_stop(client):
    whole = chat(client).choices[0].message.content
    stop = whole.split()[1]
    answer = chat(client, stop=stop)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == whole[: whole.index(stop)]


def test_json_schema(client):
    wanted = {"type": "json_schema", "json_schema": {"name": "w", "schema": UNIT, "strict": True}}
    answer = chat(client, response_format=wanted, max_tokens=200)
    assert json.loads(answer.choices[0].message.content) == {"unit": "celsius"}


@pytest.mark.parametrize("choice", [NAMED, "required"])
def test_tools(client, choice):
    answer = chat(client, tools=[WEATHER], tool_choice=choice, max_tokens=300)
    call = answer.choices[0].message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"unit": "celsius"})


@pytest.mark.parametrize("choice", [NAMED, "required"])
def test_tools_streamed(client, choice):
    with chat(client, tools=[WEATHER], tool_choice=choice, max_tokens=300, stream=True) as stream:
        chunks = list(stream)
    calls = [call for chunk in chunks for c in chunk.choices for call in c.delta.tool_calls or () if call.index == 0]
    assert next(call.function.name for call in calls if call.function.name) == "get_weather"
    assert json.loads("".join(call.function.arguments or "" for call in calls)) == {"unit": "celsius"}
    assert {chunk.model for chunk in chunks} == {ALIAS}


def test_completions(client):
    asked = {"model": ALIAS, "prompt": ["hello", "world"], "max_tokens": 4, "temperature": 0}
    whole = client.completions.create(**asked, echo=True)
    assert [choice.text[:5] for choice in whole.choices] == ["hello", "world"]
    with client.completions.create(**asked, stream=True) as stream:
        chunks = list(stream)
    assert {c.choices[0].index for c in chunks if c.choices[0].finish_reason} == {0, 1}
    assert {chunk.model for chunk in chunks} == {ALIAS}


def test_responses(client):
    asked = {"model": ALIAS, "input": "hello world", "max_output_tokens": 6, "temperature": 0}
    whole = client.responses.create(**asked)
    with client.responses.create(**asked, stream=True) as stream:
        events = list(stream)
    assert (whole.model, whole.usage.output_tokens, events[-1].type) == (ALIAS, 6, "response.completed")
    assert events[-1].response.output_text == whole.output_text
    assert {event.response.model for event in events if hasattr(event, "response")} == {ALIAS}


def test_messages(claude):
    asked = {"model": ALIAS, "max_tokens": 6, "messages": MESSAGES, "extra_body": {"temperature": 0}}
    whole = claude.messages.create(**asked)
    with claude.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    assert (whole.model, whole.stop_reason, whole.usage.output_tokens) == (ALIAS, "max_tokens", 6)
    assert (streamed.model, streamed.usage) == (ALIAS, whole.usage)
    assert streamed.content[0].text == whole.content[0].text
    counted = claude.messages.count_tokens(model=ALIAS, messages=MESSAGES)
    assert counted.input_tokens == whole.usage.input_tokens


def test_messages_with_a_tool(claude):
    tool = {"name": "get_weather", "description": "Weather.", "input_schema": UNIT, "strict": True}
    asked = {"model": ALIAS, "max_tokens": 300, "messages": MESSAGES, "extra_body": {"temperature": 0}}
    asked |= {"tools": [tool], "tool_choice": {"type": "any"}}
    whole = claude.messages.create(**asked)
    with claude.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    for answer in (whole, streamed):
        assert answer.stop_reason == "tool_use"
        assert (answer.content[0].name, answer.content[0].input) == ("get_weather", {"unit": "celsius"})


def test_tokens_there_and_back(http):
    split = http.post("/tokenize", json={"model": ALIAS, "prompt": "hello world"}).json()
    back = http.post("/detokenize", json={"model": ALIAS, "tokens": split["tokens"]}).json()
    assert back == {"prompt": "hello world"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("stream", [True, False])
def test_nothing_names_the_served_model(http, path, stream):
    text = {"prompt": "hello"} if path == "/v1/completions" else {"messages": MESSAGES}
    text = {"input": "hello"} if path == "/v1/responses" else text
    limit = {"max_output_tokens" if path == "/v1/responses" else "max_tokens": 3}
    answer = http.post(path, json={"model": ALIAS, "stream": stream, **limit, **text})
    assert answer.status_code == 200
    shown = answer.text + "".join(f"{name}: {value}" for name, value in answer.headers.items())
    assert SERVED not in shown
    assert f'"model":"{ALIAS}"' in answer.text


# errors: each is mapped, and not a word of the engine's own passes


PELICAN = [{"role": "user", "content": "pelican " * 3000}]
CONTEXT, INVALID = (400, "context_length_exceeded"), (400, "invalid_request")
NO_ENDPOINT = (404, "unsupported_endpoint")


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/chat/completions", {"messages": PELICAN}, CONTEXT),
        ("/v1/chat/completions", {"messages": PELICAN, "stream": True}, CONTEXT),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 3000}, CONTEXT),
        ("/v1/completions", {"prompt": "pelican " * 3000}, CONTEXT),
        ("/v1/responses", {"input": "pelican " * 3000}, CONTEXT),
        ("/v1/embeddings", {"input": "pelican"}, NO_ENDPOINT),
        ("/v1/rerank", {"query": "pelican", "documents": ["a"]}, NO_ENDPOINT),
        ("/v1/score", {"text_1": "pelican", "text_2": "a"}, NO_ENDPOINT),
        ("/classify", {"input": "pelican"}, NO_ENDPOINT),
        ("/pooling", {"input": "pelican"}, NO_ENDPOINT),
        ("/detokenize", {"tokens": [2_000_000_000]}, None),
    ],
)
def test_error(http, path, body, expected):
    answer = http.post(path, json={"model": ALIAS, **body})
    if expected is not None:
        assert (answer.status_code, answer.json()["error"]["code"]) == expected
    assert "pelican" not in answer.text
    assert not [word for word in OF_THE_ENGINE if word in answer.text]


def test_error_in_anthropics_form(http):
    answer = http.post("/v1/messages", json={"model": ALIAS, "max_tokens": 4, "messages": PELICAN})
    assert answer.status_code == 400
    error = answer.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert "pelican" not in answer.text


def test_no_audio(http):
    answer = http.post(
        "/v1/audio/transcriptions", data={"model": ALIAS}, files={"file": ("a.wav", b"RIFF", "audio/wav")}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == NO_ENDPOINT
