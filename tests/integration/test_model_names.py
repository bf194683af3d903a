"""Under whatever name a caller asked it is answered, everywhere; the served model's name and the engine stay unseen.

Every route that reaches an engine, as bytes: an answer, a stream, their headers. And the salt that keeps tenants apart.
"""

from __future__ import annotations

import json

import httpx
import pytest

from loadtests.engine.spec import TASKS

ALIAS, OTHER, SERVED = "internal-general", "internal.second", "sim-served-v7"
TEXTS = ["one", "two"]
CHAT = {"messages": [{"role": "user", "content": "hello world"}], "max_tokens": 4}
JSON_ROUTES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": TEXTS, "max_tokens": 4},
    "/v1/responses": {"input": "hello", "max_output_tokens": 4},
    "/v1/messages": CHAT,
    "/v1/messages/count_tokens": {"messages": CHAT["messages"]},
    "/v1/embeddings": {"input": TEXTS},
    "/v1/rerank": {"query": "q", "documents": TEXTS},
    "/v2/rerank": {"query": "q", "documents": TEXTS},
    "/rerank": {"query": "q", "documents": TEXTS},
    "/v1/score": {"text_1": "q", "text_2": TEXTS},
    "/score": {"queries": "q", "documents": TEXTS},
    "/v1/classify": {"input": TEXTS},
    "/classify": {"input": TEXTS},
    "/pooling": {"input": TEXTS},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [1, 2, 3]},
}
OTHER_PATHS = {"/v1/classify": "/classify"}  # vLLM has the second only
STREAMED = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
UNSALTED = ("/v1/messages", "/v1/messages/count_tokens", "/tokenize", "/detokenize")
ROOT = "/models/of/the/engine"


@pytest.fixture(scope="module")
def engine(shared_site):
    return shared_site.engine(model=SERVED, tasks=TASKS, step_time=0, prefill_tokens_per_second=0, root=ROOT)


@pytest.fixture(scope="module")
def gateway(shared_site, engine):
    gateway = shared_site.gateway([engine])
    gateway.wait_ready(SERVED)
    gateway.alias(ALIAS, SERVED)
    gateway.alias(OTHER, SERVED)
    return gateway


@pytest.fixture(scope="module")
def http(gateway):
    with httpx.Client(trust_env=False, base_url=gateway.url) as http:
        yield http


@pytest.fixture(scope="module")
def bearer(gateway):
    return {"authorization": f"Bearer {gateway.key('app', aliases=(ALIAS, OTHER))}"}


@pytest.fixture(scope="module")
def tenant_keys(gateway):
    """Two keys of one tenant, one of another."""
    return [gateway.key(name, tenant=name[:-1]) for name in ("first1", "first2", "second1")]


def posted(engine):
    """The last request that was no probe."""
    return next(request for request in reversed(list(engine.requests)) if request.method == "POST")


def assert_unseen(answer, *hidden):
    shown = answer.content + b"".join(name + value for name, value in answer.headers.raw)
    for word in (SERVED, ROOT, "uvicorn", *hidden):
        assert word.encode() not in shown


def names_in(answer):
    """All values of "model" in an answer or its events."""
    lines = answer.text.split("\n") if "event-stream" in answer.headers["content-type"] else [answer.text]
    found = [json.loads(line.removeprefix("data: ")) for line in lines if line.removeprefix("data: ").startswith("{")]
    holders = [holder for each in found for holder in (each, each.get("response"), each.get("message"))]
    return {holder["model"] for holder in holders if isinstance(holder, dict) and "model" in holder}


@pytest.mark.parametrize("alias", [ALIAS, OTHER])
@pytest.mark.parametrize("path", JSON_ROUTES)
def test_answer(http, bearer, engine, path, alias):
    answer = http.post(path, headers=bearer, json={"model": alias, **JSON_ROUTES[path]})
    assert answer.status_code == 200, answer.text
    assert names_in(answer) <= {alias}
    assert answer.headers["x-gateway-alias"] == f"{alias}@1"
    assert_unseen(answer)
    sent = posted(engine)
    assert (sent.path, json.loads(sent.body)["model"]) == (OTHER_PATHS.get(path, path), SERVED)
    assert b"authorization" not in dict(sent.headers)


@pytest.mark.parametrize("path", STREAMED)
def test_stream(http, bearer, path):
    answer = http.post(path, headers=bearer, json={"model": ALIAS, "stream": True, **JSON_ROUTES[path]})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert names_in(answer) == {ALIAS}
    assert_unseen(answer)


@pytest.mark.parametrize("path", JSON_ROUTES)
@pytest.mark.parametrize("body", [{}, {"model": ALIAS, "unheard_of": 1}, {"model": SERVED}])
def test_refusal(http, bearer, path, body):
    answer = http.post(path, headers=bearer, json={**JSON_ROUTES[path], **body})
    assert answer.status_code in (400, 404)
    assert_unseen(answer)


def test_models(http, bearer):
    answer = http.get("/v1/models", headers=bearer)
    assert [row["id"] for row in answer.json()["data"]] == sorted([ALIAS, OTHER])
    assert_unseen(answer)
    assert http.get(f"/v1/models/{OTHER}", headers=bearer).json() == answer.json()["data"][1]


def test_text_that_holds_the_served_name_is_left_alone(http, bearer):
    said = f'"model":"{SERVED}"'
    tokens = http.post("/tokenize", headers=bearer, json={"model": ALIAS, "prompt": said}).json()["tokens"]
    answer = http.post("/detokenize", headers=bearer, json={"model": ALIAS, "tokens": tokens})
    assert answer.json() == {"prompt": said}


# what the other endpoints answer


def test_rerank_sorts_and_cuts(http, bearer):
    body = {"model": ALIAS, "query": "q", "documents": ["one", "two", "three"], "top_n": 2}
    answer = http.post("/v1/rerank", headers=bearer, json=body).json()
    scores = [result["relevance_score"] for result in answer["results"]]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)


def test_score_classify_pooling(http, bearer):
    scores = http.post("/v1/score", headers=bearer, json={"model": ALIAS, "text_1": "q", "text_2": TEXTS}).json()
    classes = http.post("/classify", headers=bearer, json={"model": ALIAS, "input": TEXTS}).json()
    vectors = http.post("/pooling", headers=bearer, json={"model": ALIAS, "input": TEXTS}).json()
    assert [len(answer["data"]) for answer in (scores, classes, vectors)] == [2, 2, 2]
    assert all(sum(row["probs"]) == pytest.approx(1) for row in classes["data"])


def test_tokens_there_and_back(http, bearer):
    body = {"model": ALIAS, "prompt": "hello world", "return_token_strs": True}
    split = http.post("/tokenize", headers=bearer, json=body).json()
    assert len(split["token_strs"]) == split["count"]
    back = http.post("/detokenize", headers=bearer, json={"model": ALIAS, "tokens": split["tokens"]}).json()
    assert back == {"prompt": "hello world"}


# the prefix cache


def salt_of(http, engine, key, path, **changed):
    answer = http.post(path, headers={"x-api-key": key}, json={"model": ALIAS, **JSON_ROUTES[path], **changed})
    assert answer.status_code == 200, answer.text
    return json.loads(posted(engine).body).get("cache_salt")


@pytest.mark.parametrize("path", [path for path in JSON_ROUTES if path not in UNSALTED])
def test_salt_is_the_tenants(http, engine, tenant_keys, path):
    first, same, other = tenant_keys
    salts = [salt_of(http, engine, key, path) for key in (first, first, same, other)]
    assert salts[0] == salts[1] == salts[2] != salts[3]
    assert all(len(salt) >= 16 for salt in salts)


@pytest.mark.parametrize("path", UNSALTED)
def test_endpoints_without_a_salt_in_their_schema_get_none(http, engine, tenant_keys, path):
    assert salt_of(http, engine, tenant_keys[0], path) is None


@pytest.mark.parametrize("path", JSON_ROUTES)
def test_a_salt_of_the_clients_own_is_refused(http, bearer, path):
    answer = http.post(path, headers=bearer, json={"model": ALIAS, **JSON_ROUTES[path], "cache_salt": "mine"})
    assert answer.status_code == 400
    assert "cache_salt" in answer.text
