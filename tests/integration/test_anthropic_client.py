"""The real anthropic client, sync and async, through a real gateway: messages, their streams, counting, its errors."""

from __future__ import annotations

import asyncio
import json

import anthropic
import pytest

ALIAS, SERVED = "internal-general", "sim-served-v7"
MESSAGES = [{"role": "user", "content": "hello world"}]
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a place.",
    "input_schema": {"type": "object", "properties": {"unit": {"type": "string", "enum": ["celsius"]}}},
}


@pytest.fixture(scope="module")
def engine(shared_site):
    return shared_site.engine(model=SERVED, step_time=0.0002)


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
def new_client(gateway):
    """Make a client with other credentials."""
    clients = []

    def make(**credential):
        direct = anthropic.DefaultHttpxClient(trust_env=False)
        client = anthropic.Anthropic(base_url=gateway.url, max_retries=0, http_client=direct, **credential)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(new_client, key):
    return new_client(api_key=key)


@pytest.fixture
def fault(engine, shared_site):
    """Set a fault of the engine for this test."""

    async def switch(name, **params):
        engine.faults.set(name, **params) if name else engine.faults.clear()

    yield lambda name, **params: shared_site.run(switch(name, **params))
    shared_site.run(switch(None))


def test_message(client, engine):
    answer = client.messages.create(model=ALIAS, max_tokens=5, messages=MESSAGES)
    assert (answer.model, answer.stop_reason, answer.usage.output_tokens) == (ALIAS, "max_tokens", 5)
    assert answer.content[0].text
    posted = next(request for request in reversed(list(engine.requests)) if request.method == "POST")
    assert json.loads(posted.body)["model"] == SERVED


def test_message_async(gateway, key):
    async def body():
        direct = anthropic.DefaultAsyncHttpxClient(trust_env=False)
        async with anthropic.AsyncAnthropic(
            base_url=gateway.url, api_key=key, max_retries=0, http_client=direct
        ) as client:
            answer = await client.messages.create(model=ALIAS, max_tokens=5, messages=MESSAGES)
            async with client.messages.stream(model=ALIAS, max_tokens=6, messages=MESSAGES) as stream:
                return answer, await stream.get_final_message()

    answer, streamed = asyncio.run(body())
    assert [answer.model, streamed.model] == [ALIAS, ALIAS]
    assert [answer.usage.output_tokens, streamed.usage.output_tokens] == [5, 6]


def test_message_stream(client, gateway):
    asked = {"model": ALIAS, "max_tokens": 6, "messages": MESSAGES, "extra_body": {"temperature": 0}}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert (final.model, final.stop_reason, final.usage.output_tokens) == (ALIAS, "max_tokens", 6)
    assert final.content[0].text == whole.content[0].text
    assert gateway.records.last(endpoint="messages", stream=True, completion_tokens=6)


def test_system_and_conversation(client):
    turns = [*MESSAGES, {"role": "assistant", "content": [{"type": "text", "text": "yes"}]}, *MESSAGES]
    short = client.messages.create(model=ALIAS, max_tokens=1, messages=MESSAGES)
    long = client.messages.create(model=ALIAS, max_tokens=1, messages=turns, system="Be brief.")
    assert long.usage.input_tokens > short.usage.input_tokens


def test_tool_use(client):
    answer = client.messages.create(
        model=ALIAS, max_tokens=200, messages=MESSAGES, tools=[WEATHER], tool_choice={"type": "any"}
    )
    (use,) = [block for block in answer.content if block.type == "tool_use"]
    assert (use.name, use.input, answer.stop_reason) == ("get_weather", {"unit": "celsius"}, "tool_use")


def test_tool_use_streamed(client):
    with client.messages.stream(
        model=ALIAS, max_tokens=200, messages=MESSAGES, tools=[WEATHER], tool_choice={"type": "any"}
    ) as stream:
        final = stream.get_final_message()
    (use,) = [block for block in final.content if block.type == "tool_use"]
    assert (use.name, use.input, final.model) == ("get_weather", {"unit": "celsius"}, ALIAS)


def test_count_tokens(client):
    counted = client.messages.count_tokens(model=ALIAS, messages=MESSAGES)
    answer = client.messages.create(model=ALIAS, max_tokens=1, messages=MESSAGES)
    assert counted.input_tokens == answer.usage.input_tokens > 0


def test_key_as_bearer(new_client, key):
    client = new_client(api_key=None, auth_token=key)
    assert client.messages.create(model=ALIAS, max_tokens=1, messages=MESSAGES).model == ALIAS


# errors


def ask(client, **changed):
    return client.messages.create(**{"model": ALIAS, "max_tokens": 4, "messages": MESSAGES, **changed})


def test_wrong_key(new_client):
    with pytest.raises(anthropic.AuthenticationError) as caught:
        ask(new_client(api_key="gw_nope"))
    assert caught.value.body["error"]["type"] == "authentication_error"


def test_key_without_aliases(new_client, gateway):
    with pytest.raises(anthropic.PermissionDeniedError):
        ask(new_client(api_key=gateway.key("none", aliases=())))


def test_unknown_alias(client):
    with pytest.raises(anthropic.NotFoundError) as caught:
        ask(client, model="no-such-alias")
    assert caught.value.body["error"]["type"] == "not_found_error"


def test_unknown_field_is_named(client):
    with pytest.raises(anthropic.BadRequestError, match="inner_voice"):
        ask(client, extra_body={"inner_voice": 1})


def test_too_large(client):
    with pytest.raises(anthropic.RequestTooLargeError):
        ask(client, messages=[{"role": "user", "content": "x" * (9 << 20)}])


@pytest.mark.parametrize(
    ("status", "raised", "kind"),
    [
        (400, anthropic.BadRequestError, "invalid_request_error"),
        (429, anthropic.RateLimitError, "overloaded_error"),
        (500, anthropic.InternalServerError, "api_error"),
        (503, anthropic.InternalServerError, "overloaded_error"),
    ],
)
def test_error_of_the_engine(client, fault, status, raised, kind):
    fault("status_burst", status=status, message="quoting hello world")
    with pytest.raises(raised) as caught:
        ask(client)
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == kind
    assert "quoting" not in caught.value.response.text


def test_engine_fails_in_mid_stream(client, fault):
    fault("reset_mid_stream", after_events=4)
    with (
        pytest.raises(anthropic.APIStatusError) as caught,
        client.messages.stream(model=ALIAS, max_tokens=50, messages=MESSAGES) as stream,
    ):
        list(stream)
    assert caught.value.body["error"]["type"] == "api_error"
