"""The room for a prompt, and which member names the output's."""

from __future__ import annotations

import pytest

from gateway.errors import Refusal
from gateway.model import Endpoint, InferenceRequest
from gateway.policy.context import judge_context, output_limit
from gateway.routes import ROUTES


def request(path: str = "/v1/chat/completions", **payload: int) -> InferenceRequest:
    route = ROUTES["POST", path]
    limit = output_limit(route.endpoint, payload)
    return InferenceRequest(route, "m", dict(payload), max_tokens=limit[1] if limit else None, choices=8)


def test_the_first_limit_given_counts() -> None:
    both = {"max_tokens": 9, "max_completion_tokens": 7}
    assert output_limit(Endpoint.CHAT, both) == ("max_completion_tokens", 7)
    assert output_limit(Endpoint.CHAT, both | {"max_completion_tokens": None}) == ("max_tokens", 9)
    assert output_limit(Endpoint.CHAT, {}) is None
    assert output_limit(Endpoint.EMBEDDINGS, both) is None


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "max_tokens"),
        ("/v1/chat/completions", "max_completion_tokens"),
        ("/v1/completions", "max_tokens"),
        ("/v1/responses", "max_output_tokens"),
        ("/v1/messages", "max_tokens"),
    ],
)
def test_output_that_leaves_no_room_for_a_prompt(path: str, name: str) -> None:
    judge_context(request(path, **{name: 2047}), 2048)
    for asked in (2048, 2049, 1 << 20):
        with pytest.raises(Refusal) as caught:
            judge_context(request(path, **{name: asked}), 2048)
        assert (caught.value.spec.code, caught.value.spec.status) == ("context_length_exceeded", 400)
        assert caught.value.param == name
        assert caught.value.message == f"{name} must be below the model's context of 2048 tokens."


def test_what_is_not_known_or_not_asked_for_is_the_engines_to_judge() -> None:
    judge_context(request(max_tokens=1 << 20), None)
    judge_context(request(), 1)
    judge_context(request("/v1/embeddings"), 1)
