"""What the gateway answers by itself: whether it is well, and which models a caller may name. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import orjson

from gateway.model import AliasTable, Revision

_JSON_LINE = b"content-type: application/json\r\n"


class Answer(NamedTuple):
    """A whole answer: status, header lines, body."""

    status: int
    lines: bytes
    body: bytes


def health(ready: bool) -> Answer:
    """For ``/healthz``, which is always ready, and ``/readyz``."""
    body = b'{"status":"ok"}' if ready else b'{"status":"not ready"}'
    return Answer(200 if ready else 503, _JSON_LINE + b"cache-control: no-store\r\n", body)


def models(table: AliasTable, may_call: Callable[[str], bool], request_id: str) -> Answer:
    """``GET /v1/models``: the aliases that the caller may call, by name."""
    listed = [_model_object(revision) for name, revision in sorted(table.current.items()) if may_call(name)]
    return _json({"object": "list", "data": listed}, request_id)


def model(revision: Revision, request_id: str) -> Answer:
    """``GET /v1/models/{alias}``."""
    return _json(_model_object(revision), request_id)


def _json(answer: dict[str, Any], request_id: str) -> Answer:
    return Answer(200, b"%bx-request-id: %b\r\n" % (_JSON_LINE, request_id.encode()), orjson.dumps(answer))


def _model_object(revision: Revision) -> dict[str, object]:
    return {"id": revision.alias, "object": "model", "created": int(revision.created_at), "owned_by": "gateway"}
