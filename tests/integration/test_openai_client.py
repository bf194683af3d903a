"""The real openai client, sync and async, through a real gateway: every endpoint it has that the gateway serves."""

from __future__ import annotations

import asyncio
import json
import random

import openai
import pytest

from loadtests.engine.spec import TASKS
from loadtests.engine.speech import parse_form

ALIAS, SERVED = "internal-general", "sim-served-v7"
MESSAGES = [{"role": "user", "content": "hello world"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a place.",
        "parameters": {"type": "object", "properties": {"unit": {"type": "string", "enum": ["celsius"]}}},
    },
}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture(scope="module")
def engine(shared_site):
    return shared_site.engine(model=SERVED, tasks=TASKS, step_time=0.0002)


@pytest.fixture(scope="module")
def gateway(shared_site, engine):
    gateway = shared_site.gateway([engine])
    gateway.wait_ready(SERVED)
    gateway.alias(ALIAS, SERVED)
    return gateway


@pytest.fixture(scope="module")
def key(gateway):
    return gateway.key("app", aliases=(ALIAS,))


@pytest.fixture
def client(gateway, key):
    direct = openai.DefaultHttpxClient(trust_env=False)
    with openai.OpenAI(base_url=gateway.base_url, api_key=key, max_retries=0, http_client=direct) as client:
        yield client


@pytest.fixture
def run_async(gateway, key):
    """Run a coroutine function with an async client."""

    def run(use):
        async def body():
            direct = openai.DefaultAsyncHttpxClient(trust_env=False)
            async with openai.AsyncOpenAI(
                base_url=gateway.base_url, api_key=key, max_retries=0, http_client=direct
            ) as client:
                return await use(client)

        return asyncio.run(body())

    return run


def posted(engine):
    """The last request that was no probe."""
    return next(request for request in reversed(list(engine.requests)) if request.method == "POST")


# chat


def test_chat(client, engine):
    answer = client.chat.completions.create(model=ALIAS, messages=MESSAGES, max_tokens=5, temperature=0)
    assert answer.model == ALIAS
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content
    assert (answer.usage.prompt_tokens > 0, answer.usage.completion_tokens) == (True, 5)
    assert json.loads(posted(engine).body)["model"] == SERVED


def test_chat_async(run_async):
    answer = run_async(lambda c: c.chat.completions.create(model=ALIAS, messages=MESSAGES, max_tokens=5))
    assert (answer.model, answer.usage.completion_tokens) == (ALIAS, 5)


def test_many_at_once_get_their_own_answers(run_async):
    async def use(client):
        calls = [client.chat.completions.create(model=ALIAS, messages=MESSAGES, max_tokens=n) for n in range(1, 21)]
        return await asyncio.gather(*calls)

    answers = run_async(use)
    assert [answer.usage.completion_tokens for answer in answers] == list(range(1, 21))
    assert len({answer.id for answer in answers}) == 20


def test_raw_answer_carries_the_promised_headers(client):
    raw = client.chat.completions.with_raw_response.create(model=ALIAS, messages=MESSAGES, max_tokens=1)
    assert raw.headers["x-request-id"].startswith("req_")
    assert raw.headers["x-gateway-alias"] == f"{ALIAS}@1"
    assert float(raw.headers["x-gateway-overhead-ms"]) >= 0
    assert raw.parse().model == ALIAS


def _text(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_chat_stream_is_the_whole_answer_in_pieces(client):
    asked = {"model": ALIAS, "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.create(**asked, stream=True) as stream:
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        chunks = list(stream)
    assert _text(chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "length"
    assert {chunk.model for chunk in chunks} == {ALIAS}


def test_stream_without_usage_shows_none_though_the_gateway_asks_for_it(client, engine, gateway):
    with client.chat.completions.create(model=ALIAS, messages=MESSAGES, max_tokens=7, stream=True) as stream:
        chunks = list(stream)
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    assert json.loads(posted(engine).body)["stream_options"] == {"include_usage": True}
    assert gateway.records.last(endpoint="chat", stream=True, completion_tokens=7)


def test_stream_with_usage_ends_with_it(client):
    options = {"include_usage": True}
    with client.chat.completions.create(
        model=ALIAS, messages=MESSAGES, max_tokens=7, stream=True, stream_options=options
    ) as stream:
        *chunks, last = list(stream)
    assert (last.choices, last.usage.completion_tokens, last.model) == ([], 7, ALIAS)
    assert all(chunk.usage is None for chunk in chunks)


def test_stream_with_continuous_usage_has_it_on_each_chunk(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    with client.chat.completions.create(
        model=ALIAS, messages=MESSAGES, max_tokens=3, stream=True, stream_options=options
    ) as stream:
        chunks = list(stream)
    assert [chunk.usage.completion_tokens for chunk in chunks] == [0, 1, 2, 3, 3]


def test_chat_stream_async(run_async):
    async def use(client):
        stream = await client.chat.completions.create(model=ALIAS, messages=MESSAGES, max_tokens=9, stream=True)
        async with stream:
            return [chunk async for chunk in stream]

    chunks = run_async(use)
    assert {chunk.model for chunk in chunks} == {ALIAS}
    assert chunks[-1].choices[0].finish_reason == "length"


def test_client_may_leave_a_stream(client, engine, gateway, wait_until):
    before = engine.requests_aborted
    with client.chat.completions.create(model=ALIAS, messages=MESSAGES, max_tokens=8000, stream=True) as stream:
        next(iter(stream))
    wait_until(lambda: engine.requests_aborted == before + 1, "the engine to notice")
    assert gateway.records.last(status=499)["error"] == "client_gone"


def test_several_choices_with_logprobs(client):
    answer = client.chat.completions.create(
        model=ALIAS, messages=MESSAGES, max_tokens=3, n=2, logprobs=True, top_logprobs=2, seed=7
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    first, second = (choice.logprobs.content for choice in answer.choices)
    assert (len(first), len(second)) == (3, 3)
    assert all(len(token.top_logprobs) == 2 for token in first)
    assert [token.token for token in first] != [token.token for token in second]


def test_several_choices_streamed(client):
    with client.chat.completions.create(
        model=ALIAS, messages=MESSAGES, max_tokens=3, n=2, logprobs=True, stream=True, seed=7
    ) as stream:
        chunks = list(stream)
    ends = {c.choices[0].index: c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason}
    assert ends == {0: "length", 1: "length"}
    assert any(c.choices[0].logprobs for c in chunks)


SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "count": {"type": "integer"}},
    "required": ["ok", "count"],
    "additionalProperties": False,
}


def test_answer_by_json_schema(client):
    wanted = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": SCHEMA, "strict": True}}
    answer = client.chat.completions.create(model=ALIAS, messages=MESSAGES, response_format=wanted)
    verdict = json.loads(answer.choices[0].message.content)
    assert (type(verdict["ok"]), type(verdict["count"])) == (bool, int)


# tools


@pytest.mark.parametrize(("choice", "reason"), [(NAMED, "stop"), ("required", "tool_calls")])
def test_tool_call(client, choice, reason):
    answer = client.chat.completions.create(model=ALIAS, messages=MESSAGES, tools=[WEATHER], tool_choice=choice)
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"unit": "celsius"})
    # vLLM says "stop" for a named function (captured, 0.32.0).
    assert answer.choices[0].finish_reason == reason


@pytest.mark.parametrize("choice", [NAMED, "required"])
def test_tool_call_streamed(client, choice):
    with client.chat.completions.create(
        model=ALIAS, messages=MESSAGES, tools=[WEATHER], tool_choice=choice, stream=True
    ) as stream:
        calls = [call for chunk in stream for c in chunk.choices for call in c.delta.tool_calls or ()]
    assert calls[0].function.name == "get_weather"
    assert calls[0].id
    assert json.loads("".join(call.function.arguments or "" for call in calls)) == {"unit": "celsius"}


def test_tool_conversation_goes_on(client):
    asked = (
        client.chat.completions.create(model=ALIAS, messages=MESSAGES, tools=[WEATHER], tool_choice="required")
        .choices[0]
        .message
    )
    result = {"role": "tool", "tool_call_id": asked.tool_calls[0].id, "content": "12 degrees"}
    answer = client.chat.completions.create(
        model=ALIAS, messages=[*MESSAGES, asked, result], tools=[WEATHER], tool_choice="none", max_tokens=4
    )
    assert answer.usage.completion_tokens == 4


# completions


def test_completion_of_several_prompts_with_echo(client):
    answer = client.completions.create(model=ALIAS, prompt=["hello", "world"], max_tokens=3, echo=True, temperature=0)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert [choice.text[:5] for choice in answer.choices] == ["hello", "world"]
    assert (answer.model, answer.usage.completion_tokens) == (ALIAS, 6)


def test_completion_stream(client):
    with client.completions.create(model=ALIAS, prompt=["hello", "world"], max_tokens=4, stream=True) as stream:
        chunks = list(stream)
    assert {chunk.model for chunk in chunks} == {ALIAS}
    assert {c.choices[0].index for c in chunks if c.choices[0].finish_reason == "length"} == {0, 1}
    assert all(chunk.usage is None for chunk in chunks)


# embeddings


@pytest.mark.parametrize("encoding", [openai.omit, "float", "base64"])
def test_embeddings(client, encoding):
    answer = client.embeddings.create(model=ALIAS, input=["one", "two"], dimensions=8, encoding_format=encoding)
    assert answer.model == ALIAS
    assert [item.index for item in answer.data] == [0, 1]
    assert answer.data[0].embedding != answer.data[1].embedding
    if encoding != "base64":  # what the client is asked for by name it does not decode
        assert len(answer.data[0].embedding) == 8


# responses


def test_response(client):
    answer = client.responses.create(model=ALIAS, input="hello world", max_output_tokens=6)
    assert (answer.model, answer.usage.output_tokens) == (ALIAS, 6)
    assert answer.output_text


def test_response_stream(client):
    with client.responses.create(model=ALIAS, input="hello world", max_output_tokens=6, stream=True) as stream:
        events = list(stream)
    assert events[0].type == "response.created"
    assert {event.response.model for event in events if hasattr(event, "response")} == {ALIAS}
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text
    assert events[-1].response.usage.output_tokens == 6


def test_response_stream_async(run_async):
    async def use(client):
        async with await client.responses.create(model=ALIAS, input="hi", max_output_tokens=3, stream=True) as stream:
            return [event async for event in stream]

    events = run_async(use)
    assert [event.sequence_number for event in events] == list(range(len(events)))


# models


def test_models_are_the_aliases_of_the_key(client):
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == (ALIAS, "model", "gateway")
    assert client.models.retrieve(ALIAS) == model


def test_models_async(run_async):
    async def use(client):
        return [model.id async for model in client.models.list()]

    assert run_async(use) == [ALIAS]


# audio


SOUND = random.Random(5).randbytes(200_000) + b"\r\n--boundary\r\n\r\n\x00\xff" + b"\r\n"


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # the client's word on translations
@pytest.mark.parametrize("kind", ["transcriptions", "translations"])
def test_audio_arrives_byte_for_byte_under_the_served_name(client, engine, kind):
    answer = getattr(client.audio, kind).create(model=ALIAS, file=("speech.wav", SOUND, "audio/wav"), temperature=0.2)
    assert f"{len(SOUND)} bytes" in answer.text
    received = posted(engine)
    form = parse_form(received.header(b"content-type"), received.body)
    assert form.file == SOUND
    assert form.fields == {"model": SERVED, "temperature": "0.2"}
    assert ALIAS.encode() not in received.body


@pytest.mark.parametrize("form", ["text", "verbose_json"])
def test_audio_answer_forms(client, form):
    answer = client.audio.transcriptions.create(model=ALIAS, file=("a.wav", SOUND), response_format=form)
    text = answer if form == "text" else answer.text
    assert text.startswith("transcription of")


def test_audio_stream_is_passed_with_the_alias(client):
    with client.audio.transcriptions.with_streaming_response.create(
        model=ALIAS, file=("a.wav", SOUND), stream=True
    ) as answer:
        lines = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
    assert {line["model"] for line in lines} == {ALIAS}
    assert "".join(line["choices"][0]["delta"]["content"] for line in lines).startswith("transcription of")
