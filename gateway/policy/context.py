"""The room that a request asks for: which member bounds its output, and whether a model has that room."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gateway.errors import Refusal
from gateway.model import Endpoint, InferenceRequest

# Members that bound the output, the first one given counts (vLLM prefers max_completion_tokens).
_LIMITS: Mapping[Endpoint, tuple[str, ...]] = MappingProxyType(
    {
        Endpoint.CHAT: ("max_completion_tokens", "max_tokens"),
        Endpoint.COMPLETIONS: ("max_tokens",),
        Endpoint.RESPONSES: ("max_output_tokens",),
        Endpoint.MESSAGES: ("max_tokens",),
    }
)


def output_limit(endpoint: Endpoint, payload: Mapping[str, Any]) -> tuple[str, int] | None:
    """The member that bounds each answer's tokens and its figure; ``None`` if the request leaves that to the engine."""
    for name in _LIMITS.get(endpoint, ()):
        limit: int | None = payload.get(name)
        if limit is not None:
            return name, limit
    return None


def judge_context(request: InferenceRequest, max_model_len: int | None) -> None:
    """Refuse output that leaves no room for a prompt. Raises ``Refusal`` (400 context_length_exceeded).

    ``max_model_len`` is the shortest context, in tokens, of the engines that may serve it (``None``: not known). A
    prompt has at least one token, and vLLM adds one answer's limit to it, whatever ``n`` is.
    """
    if max_model_len is None or request.max_tokens is None or request.max_tokens < max_model_len:
        return
    limit = output_limit(request.route.endpoint, request.payload)
    name = limit[0] if limit else "max_tokens"
    raise Refusal(
        "context_length_exceeded", f"{name} must be below the model's context of {max_model_len} tokens.", param=name
    )
