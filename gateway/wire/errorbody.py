"""Error objects and error events in the dialect of the endpoint: each client library raises the right exception."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import orjson

from gateway.errors import GatewayError
from gateway.model import Dialect
from gateway.wire.headers import header_lines

_JSON = (b"content-type", b"application/json")
_MAX_RETRY_AFTER = 60


def error_object(error: GatewayError, dialect: Dialect) -> dict[str, Any]:
    """OpenAI's error object, or Anthropic's for its endpoint."""
    spec = error.spec
    if dialect is Dialect.ANTHROPIC:
        return {"type": "error", "error": {"type": spec.anthropic_type, "message": error.message}}
    return {"error": {"message": error.message, "type": spec.type, "param": error.param, "code": spec.code}}


def error_answer(error: GatewayError, dialect: Dialect) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and body of an error answer.

    ``retry-after`` is on every 429 and 503 that trying again may mend, whole seconds, at most 60;
    ``x-should-retry: false`` tells the OpenAI client not to try again where that cannot help.
    """
    spec = error.spec
    headers = [_JSON, (b"cache-control", b"no-store")]
    if error.retry and spec.status in {429, 503}:
        seconds = min(max(error.retry_after or 1, 1), _MAX_RETRY_AFTER)
        headers.append((b"retry-after", b"%d" % seconds))
    headers.append((b"x-should-retry", b"true" if error.retry else b"false"))
    if spec.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers, orjson.dumps(error_object(error, dialect))


def error_lines(error: GatewayError, dialect: Dialect) -> tuple[bytes, bytes]:
    """Header lines and body of an error answer, as ``error_answer`` makes them.

    They are remembered: there are few, all in the gateway's own words, and making one is a tenth of what a refused
    request costs.
    """
    return _written(
        error.spec.code,
        error.message,
        param=error.param,
        retry_after=error.retry_after,
        retry=error.retry,
        dialect=dialect,
    )


@lru_cache(maxsize=256)
def _written(
    code: str, message: str, *, param: str | None, retry_after: int | None, retry: bool, dialect: Dialect
) -> tuple[bytes, bytes]:
    error = GatewayError(code, message, param=param, retry_after=retry_after)
    error.retry = retry
    headers, body = error_answer(error, dialect)
    return header_lines(headers), body


def error_event(error: GatewayError, dialect: Dialect) -> bytes:
    """The last event of a stream that failed after it had begun. No ``[DONE]`` follows."""
    if dialect is Dialect.RESPONSES:
        said = {"type": "error", "code": error.spec.code, "message": error.message, "param": None}
        return b"event: error\ndata: " + orjson.dumps(said) + b"\n\n"
    event = b"event: error\n" if dialect is Dialect.ANTHROPIC else b""
    return event + b"data: " + orjson.dumps(error_object(error, dialect)) + b"\n\n"
