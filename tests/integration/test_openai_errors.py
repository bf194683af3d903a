"""Every failure as the real openai client sees it: the right exception, OpenAI's error object, no word of the engine.

What a caller may not know (another's alias, a served model) is answered as what does not exist.
"""

from __future__ import annotations

import http.client
import json
import socket

import httpx
import openai
import pytest

ALIAS, SERVED, FOREIGN = "internal-general", "sim-served-v7", "other-team"
MESSAGES = [{"role": "user", "content": "hello world"}]
SECRET = "the engine quotes: hello world"


@pytest.fixture(scope="module")
def engine(shared_site):
    return shared_site.engine(model=SERVED, step_time=0.0002, max_model_len=2048)


@pytest.fixture(scope="module")
def gateway(shared_site, engine):
    # A replica that says that it is dead is taken out; the next test wants it back soon.
    soon = shared_site.routing(
        warmup={"shapes": [], "slow_start": 0}, breaker={"eject": 0.1, "eject_most": 0.2, "probation": 1}
    )
    gateway = shared_site.gateway([engine], body_timeout=0.3, timeouts_idle=0.4, timeouts_first_byte=0.4, policies=soon)
    gateway.wait_ready(SERVED)
    gateway.alias(ALIAS, SERVED)
    gateway.alias(FOREIGN, SERVED)
    return gateway


@pytest.fixture(scope="module")
def key(gateway):
    return gateway.key("app", aliases=(ALIAS,))


@pytest.fixture
def new_client(gateway, key):
    """Make a client with another key or another transport."""
    clients = []

    def make(api_key=key, **direct):
        http = openai.DefaultHttpxClient(trust_env=False, **direct)
        client = openai.OpenAI(base_url=gateway.base_url, api_key=api_key, max_retries=0, http_client=http)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def fault(engine, gateway, key, shared_site, wait_until):
    """Set a fault of the engine for this test. A replica on its way back would be out again by its first failure, and
    that might be the gateway's own request: the next test gets one that has proven itself."""

    async def switch(name, **params):
        engine.faults.set(name, **params) if name else engine.faults.clear()

    def sound(plain):
        answer = plain.post("/chat/completions", json={"model": ALIAS, "messages": MESSAGES, "max_tokens": 1})
        return answer.status_code == 200 and all(each.proven for each in gateway.gateway.core.registry.replicas)

    yield lambda name, **params: shared_site.run(switch(name, **params))
    shared_site.run(switch(None))
    gateway.wait_ready(SERVED)
    headers = {"authorization": f"Bearer {key}"}
    with httpx.Client(trust_env=False, base_url=gateway.base_url, headers=headers, timeout=30) as plain:
        wait_until(lambda: sound(plain), "a replica that has proven itself")


def chat(client, **changed):
    return client.chat.completions.create(**{"model": ALIAS, "messages": MESSAGES, "max_tokens": 4, **changed})


def refused(raised, client, **changed):
    """The exception that a call raises, after a look at its form."""
    with pytest.raises(raised) as caught:
        chat(client, **changed)
    error = caught.value
    assert set(error.body) == {"message", "type", "param", "code"}
    assert error.response.headers["x-request-id"].startswith("req_")
    assert SECRET not in error.response.text
    assert SERVED not in error.response.text
    return error


# who calls


@pytest.mark.parametrize("wrong", ["gw_nope", "sk-1234", "x" * 300])
def test_wrong_key(new_client, wrong):
    error = refused(openai.AuthenticationError, new_client(wrong))
    assert error.code == "invalid_api_key"


def test_all_bad_credentials_get_one_body(gateway, key):
    altered = key[:-1] + ("a" if key[-1] != "a" else "b")
    headers = [
        {},
        {"authorization": "Bearer gw_nope"},
        {"authorization": f"Bearer {altered}"},
        {"authorization": f"Basic {key}"},
        {"x-api-key": "nope"},
    ]
    with httpx.Client(trust_env=False, base_url=gateway.url) as plain:
        answers = [plain.get("/v1/models", headers=each) for each in headers]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.content for answer in answers}) == 1


def test_key_as_bearer_and_as_x_api_key_but_not_both(gateway, key):
    bearer, direct = {"authorization": f"Bearer {key}"}, {"x-api-key": key}
    with httpx.Client(trust_env=False, base_url=gateway.url) as plain:
        statuses = [plain.get("/v1/models", headers=h).status_code for h in (bearer, direct, {**bearer, **direct})]
    assert statuses == [200, 200, 400]


def test_key_without_any_alias(new_client, gateway):
    error = refused(openai.PermissionDeniedError, new_client(gateway.key("none", aliases=())))
    assert error.code == "alias_forbidden"


def test_an_alias_that_is_not_yours_looks_like_one_that_does_not_exist(new_client, gateway):
    client = new_client()
    unknown = refused(openai.NotFoundError, client, model="no-such-alias")
    foreign = refused(openai.NotFoundError, client, model=FOREIGN)
    served = refused(openai.NotFoundError, client, model=SERVED)
    assert unknown.code == "model_not_found"
    assert unknown.param == "model"
    assert unknown.response.content == foreign.response.content == served.response.content
    assert set(unknown.response.headers) == set(foreign.response.headers)
    assert chat(new_client(gateway.key("other", aliases=(FOREIGN,))), model=FOREIGN).model == FOREIGN


def test_models_retrieve_tells_no_more(new_client):
    client = new_client()
    bodies = set()
    for name in ("no-such-alias", FOREIGN, SERVED):
        with pytest.raises(openai.NotFoundError) as caught:
            client.models.retrieve(name)
        bodies.add(caught.value.response.content)
    assert len(bodies) == 1


# what is asked


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"extra_body": {"inner_voice": 1}}, "inner_voice"),
        ({"extra_body": {"cache_salt": "mine"}}, "cache_salt"),
        ({"extra_body": {"priority": -1}}, "priority"),
        ({"extra_body": {"kv_transfer_params": {}}}, "kv_transfer_params"),
        ({"temperature": 3}, "temperature"),
        ({"n": 9}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_bad_field_is_named_before_an_engine_sees_it(new_client, engine, changed, param):
    before = engine.requests_seen
    error = refused(openai.BadRequestError, new_client(), **changed)
    assert param in error.message
    assert (error.code, error.param) == ("invalid_request", param)
    posts = [request for request in list(engine.requests)[before:] if request.method == "POST"]
    assert posts == []


def test_too_long_for_the_context(new_client):
    long = [{"role": "user", "content": "hello world " * 3000}]
    error = refused(openai.BadRequestError, new_client(), messages=long)
    assert error.code == "context_length_exceeded"
    assert "hello" not in error.response.text


def test_too_large(new_client):
    huge = [{"role": "user", "content": "x" * (9 << 20)}]
    error = refused(openai.APIStatusError, new_client(), messages=huge)
    assert (error.status_code, error.code) == (413, "body_too_large")


def test_body_that_comes_too_slowly(gateway, key):
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
    with socket.create_connection(gateway.address, timeout=10) as slow:
        slow.sendall(head.encode() + b'content-type: application/json\r\ncontent-length: 500\r\n\r\n{"model":')
        answer = http.client.HTTPResponse(slow)
        answer.begin()
        error = json.loads(answer.read())["error"]
    assert (answer.status, error["code"]) == (408, "request_timeout")


# what the engine does


@pytest.mark.parametrize(
    ("status", "raised", "shown", "code"),
    [
        (400, openai.BadRequestError, 400, "invalid_request"),
        (401, openai.InternalServerError, 502, "engine_error"),
        (403, openai.InternalServerError, 502, "engine_error"),
        (404, openai.NotFoundError, 404, "unsupported_endpoint"),
        (422, openai.BadRequestError, 400, "invalid_request"),
        (429, openai.RateLimitError, 429, "queue_full"),
        (500, openai.InternalServerError, 502, "engine_error"),
        (503, openai.InternalServerError, 503, "no_ready_replica"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_error_of_the_engine(new_client, fault, status, raised, shown, code, stream):
    fault("status_burst", status=status, message=SECRET, headers={"retry-after": "9999", "x-engine": SERVED})
    error = refused(raised, new_client(), stream=stream)
    assert (error.status_code, error.code) == (shown, code)
    assert "x-engine" not in error.response.headers
    if shown in (429, 503):
        assert 1 <= int(error.response.headers["retry-after"]) <= 60


def test_engine_does_not_answer(new_client, fault):
    fault("accept_and_hang")
    error = refused(openai.InternalServerError, new_client())
    assert (error.status_code, error.code) == (504, "engine_timeout")


def test_engine_refuses_connections(new_client, fault, gateway, shared_site):
    async def drop():
        for replica in gateway.gateway.core.registry.replicas:
            for connection in tuple(replica.link.requests._idle):
                connection.abort()

    fault("refuse")
    shared_site.run(drop())  # the fault is one of new connections; what an earlier test left open would serve
    error = refused(openai.InternalServerError, new_client())
    assert (error.status_code, error.code) == (503, "no_ready_replica")
    fault(None)
    gateway.wait_ready(SERVED)


@pytest.mark.parametrize("name", ["reset_mid_stream", "close_mid_stream", "error_event_mid", "truncate_chunk"])
def test_engine_fails_in_mid_stream(new_client, fault, name):
    fault(name, after_events=4)
    seen = []
    with pytest.raises(openai.APIError) as caught, chat(new_client(), max_tokens=50, stream=True) as stream:
        seen.extend(stream)
    assert len(seen) == 4
    assert (caught.value.code, caught.value.type) == ("engine_error", "api_error")
    assert SECRET not in caught.value.message


@pytest.mark.parametrize("name", ["error_event_first", "reset_before_response", "bad_status_line"])
def test_engine_fails_before_the_first_event(new_client, fault, name):
    fault(name)
    error = refused(openai.InternalServerError, new_client(), stream=True)
    assert (error.status_code, error.code) == (502, "engine_error")
