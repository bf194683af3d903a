"""The closed route table: everything the inference listener answers. What is not here is 404 and reaches no engine."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gateway.model import BodyKind, Dialect, Endpoint, Route


def _post(
    path: str,
    endpoint: Endpoint,
    *,
    dialect: Dialect = Dialect.OPENAI,
    streams: bool = False,
    upstream: str | None = None,
    queries: frozenset[bytes] = frozenset(),
) -> Route:
    return Route("POST", path, endpoint, BodyKind.JSON, dialect, upstream or path, streams, queries=queries)


def _form(path: str, endpoint: Endpoint) -> Route:
    return Route("POST", path, endpoint, BodyKind.MULTIPART, Dialect.OPENAI, path, streams=True)


# Anthropic's client adds it to its beta calls, Claude Code to every call.
_BETA = frozenset({b"beta=true"})

_ROWS = (
    _post("/v1/chat/completions", Endpoint.CHAT, streams=True),
    _post("/v1/completions", Endpoint.COMPLETIONS, streams=True),
    _post("/v1/embeddings", Endpoint.EMBEDDINGS),
    _post("/v1/responses", Endpoint.RESPONSES, dialect=Dialect.RESPONSES, streams=True),
    _post("/v1/messages", Endpoint.MESSAGES, dialect=Dialect.ANTHROPIC, streams=True, queries=_BETA),
    _post("/v1/messages/count_tokens", Endpoint.COUNT_TOKENS, dialect=Dialect.ANTHROPIC, queries=_BETA),
    _post("/v1/rerank", Endpoint.RERANK),
    _post("/v2/rerank", Endpoint.RERANK),
    _post("/rerank", Endpoint.RERANK),
    _post("/v1/score", Endpoint.SCORE),
    _post("/score", Endpoint.SCORE),
    _post("/v1/classify", Endpoint.CLASSIFY, upstream="/classify"),  # vLLM has no /v1 form of it
    _post("/classify", Endpoint.CLASSIFY),
    _post("/pooling", Endpoint.POOLING),
    _form("/v1/audio/transcriptions", Endpoint.TRANSCRIPTIONS),
    _form("/v1/audio/translations", Endpoint.TRANSLATIONS),
    _post("/tokenize", Endpoint.TOKENIZE),
    _post("/detokenize", Endpoint.DETOKENIZE),
    Route("GET", "/v1/models", Endpoint.MODELS),
    Route("GET", "/v1/models/{alias}", Endpoint.MODELS),
    Route("GET", "/healthz", Endpoint.HEALTH, anonymous=True),
    Route("GET", "/readyz", Endpoint.HEALTH, anonymous=True),
)

ROUTES: Mapping[tuple[str, str], Route] = MappingProxyType({(row.method, row.path): row for row in _ROWS})
