"""The closed route table, told a second time: a new route is a decision, and has to be made here too."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from gateway.errors import Refusal
from gateway.model import BodyKind
from gateway.policy.guards import load_guards
from gateway.routes import ROUTES
from gateway.steps.guard import guard, open_door

# method, path, endpoint, body, dialect, engine's path, may stream, anonymous
TABLE = {
    ("POST", "/v1/chat/completions", "chat", "json", "openai", "/v1/chat/completions", True, False),
    ("POST", "/v1/completions", "completions", "json", "openai", "/v1/completions", True, False),
    ("POST", "/v1/embeddings", "embeddings", "json", "openai", "/v1/embeddings", False, False),
    ("POST", "/v1/responses", "responses", "json", "responses", "/v1/responses", True, False),
    ("POST", "/v1/messages", "messages", "json", "anthropic", "/v1/messages", True, False),
    (
        "POST",
        "/v1/messages/count_tokens",
        "count_tokens",
        "json",
        "anthropic",
        "/v1/messages/count_tokens",
        False,
        False,
    ),
    ("POST", "/v1/rerank", "rerank", "json", "openai", "/v1/rerank", False, False),
    ("POST", "/v2/rerank", "rerank", "json", "openai", "/v2/rerank", False, False),
    ("POST", "/rerank", "rerank", "json", "openai", "/rerank", False, False),
    ("POST", "/v1/score", "score", "json", "openai", "/v1/score", False, False),
    ("POST", "/score", "score", "json", "openai", "/score", False, False),
    ("POST", "/v1/classify", "classify", "json", "openai", "/classify", False, False),
    ("POST", "/classify", "classify", "json", "openai", "/classify", False, False),
    ("POST", "/pooling", "pooling", "json", "openai", "/pooling", False, False),
    (
        "POST",
        "/v1/audio/transcriptions",
        "transcriptions",
        "multipart",
        "openai",
        "/v1/audio/transcriptions",
        True,
        False,
    ),
    (
        "POST",
        "/v1/audio/translations",
        "translations",
        "multipart",
        "openai",
        "/v1/audio/translations",
        True,
        False,
    ),
    ("POST", "/tokenize", "tokenize", "json", "openai", "/tokenize", False, False),
    ("POST", "/detokenize", "detokenize", "json", "openai", "/detokenize", False, False),
    ("GET", "/v1/models", "models", "none", "openai", None, False, False),
    ("GET", "/v1/models/{alias}", "models", "none", "openai", None, False, False),
    ("GET", "/healthz", "health", "none", "openai", None, False, True),
    ("GET", "/readyz", "health", "none", "openai", None, False, True),
}

# What else a vLLM or an SGLang server answers, or may be made to answer.
ENGINE_ONLY = [
    "/abort_requests",
    "/abort_request",
    "/collective_rpc",
    "/configure_logging",
    "/docs",
    "/docs/oauth2-redirect",
    "/encode",
    "/flush_cache",
    "/generate",
    "/get_model_info",
    "/get_server_info",
    "/health",
    "/health_generate",
    "/inference/v1/generate",
    "/init_weights_update_group",
    "/invocations",
    "/is_paused",
    "/is_scaling_elastic_ep",
    "/is_sleeping",
    "/load",
    "/metrics",
    "/openapi.json",
    "/pause",
    "/ping",
    "/redoc",
    "/release_memory_occupation",
    "/reset_encoder_cache",
    "/reset_mm_cache",
    "/reset_prefix_cache",
    "/resume",
    "/resume_memory_occupation",
    "/scale_elastic_ep",
    "/server_info",
    "/shutdown",
    "/sleep",
    "/start_profile",
    "/stop_profile",
    "/tokenizer_info",
    "/update_weights_from_disk",
    "/v1/audio/speech",
    "/v1/batches",
    "/v1/chat/completions/render",
    "/v1/chat/completions/batch",
    "/v1/completions/render",
    "/v1/files",
    "/v1/fine_tuning/jobs",
    "/v1/images/generations",
    "/v1/load_lora_adapter",
    "/v1/realtime",
    "/v1/responses/resp_1",
    "/v1/responses/resp_1/cancel",
    "/v1/unload_lora_adapter",
    "/version",
    "/wake_up",
    "/",
    "/v1",
    "/v1/",
    "/admin",
    "/state",
]


def test_the_table_is_this_one():
    rows = {
        (r.method, r.path, r.endpoint, r.body, r.dialect, r.upstream_path, r.streams, r.anonymous)
        for r in ROUTES.values()
    }
    assert rows == TABLE
    assert len(ROUTES) == len(TABLE)


def test_every_row_is_found_under_its_own_method_and_path():
    assert all(key == (route.method, route.path) for key, route in ROUTES.items())
    with pytest.raises(TypeError):
        ROUTES[("GET", "/metrics")] = ROUTES[("GET", "/healthz")]  # type: ignore[index]


def test_every_route_with_a_body_has_rules_for_it_and_no_rule_is_for_nothing():
    guards = load_guards(Path(str(files("policies"))) / "guards.yaml")
    judged = {route.endpoint for route in ROUTES.values() if route.body is not BodyKind.NONE}
    assert set(guards.endpoints) == judged
    for endpoint in judged:
        assert "model" in guards.endpoints[endpoint].rules


def test_what_the_gateway_answers_itself_has_no_body_and_what_goes_on_has_one():
    for route in ROUTES.values():
        assert (route.body is BodyKind.NONE) is (route.upstream_path is None)


def test_only_health_is_anonymous():
    assert {route.path for route in ROUTES.values() if route.anonymous} == {"/healthz", "/readyz"}


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"])
def test_nothing_else_of_an_engine_is_reachable(method, fakes):
    door = open_door(ROUTES)
    for path in ENGINE_ONLY:
        with pytest.raises(Refusal) as refused:
            guard(fakes.Exchange(method, path), door)
        assert refused.value.spec.code == "not_found", path


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions/", "//v1/models", "/v1/../metrics", "/v1/models?x=1", "/V1/models", "/v1/model"]
)
def test_a_path_that_is_nearly_a_route_is_none(path, fakes):
    for method in ("GET", "POST"):
        with pytest.raises(Refusal) as refused:
            guard(fakes.Exchange(method, path), open_door(ROUTES))
        assert refused.value.spec.code == "not_found"


def test_another_method_on_a_known_path_is_405(fakes):
    door = open_door(ROUTES)
    for method, path in ROUTES:
        other = "POST" if method == "GET" else "GET"
        with pytest.raises(Refusal) as refused:
            guard(fakes.Exchange(other, path.replace("{alias}", "a")), door)
        assert refused.value.spec.code == "method_not_allowed", path


def test_only_anthropics_calls_take_a_query_and_only_the_one_its_clients_send():
    assert {route.path: route.queries for route in ROUTES.values() if route.queries} == {
        "/v1/messages": {b"beta=true"},
        "/v1/messages/count_tokens": {b"beta=true"},
    }
