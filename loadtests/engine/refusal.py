"""A request that the engine refuses, with the facts its error body needs. Born where the cause is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import orjson


class Refusal(Exception):
    """The engine answers `status` with vLLM's error object.

    `kind` is the error's `type`: vLLM 0.32.0 has NotFoundError, BadRequestError, "Bad Request" (schema errors, with a
    space), InternalServerError, "Service Unavailable", PermissionDeniedError (all captured).
    """

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param


class RoutingRefusal(Exception):
    """FastAPI's own error, `{"detail": ...}`: no such route, wrong method, a body that is not text."""

    def __init__(self, status: int, detail: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers


class HandlerCrashed(Exception):
    """The server's own code failed: uvicorn answers with a bare 500 (captured: SGLang, for a body that is a list)."""


def bad_parameter(message: str, param: str, value: object = None) -> Refusal:
    """A 400 that names its parameter as vLLM's VLLMValidationError does."""
    shown = f", value={value}" if value is not None else ""
    return Refusal(400, f"{message} (parameter={param}{shown})", param=param)


def engine_died() -> Refusal:
    """What everything in flight gets when the engine process ends (SIGTERM without a drain, SIGKILL; captured)."""
    message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    return Refusal(500, message, "InternalServerError")


def shutting_down() -> Refusal:
    """What a new request gets while the engine drains (captured): at once, on a port that stays open."""
    return Refusal(500, "cannot schedule new futures after shutdown", "InternalServerError")


def queue_full() -> Refusal:
    """--max-num-queued-reqs is reached (captured)."""
    message = (
        "The engine is currently busy and cannot accept new requests. "
        "Please try again later or on a different instance."
    )
    return Refusal(503, message, "Service Unavailable")


def error_body(refusal: Refusal) -> bytes:
    """OpenAI's error object as vLLM writes it in an answer of its own: no spaces."""
    return orjson.dumps({"error": _error(refusal)})


def anthropic_error_body(refusal: Refusal) -> bytes:
    """Anthropic's error object, as /v1/messages answers."""
    return orjson.dumps({"type": "error", "error": {"type": refusal.kind, "message": refusal.message}})


def error_event(refusal: Refusal) -> bytes:
    """The error as a stream event: json.dumps with its default separators, so with spaces (captured)."""
    message = orjson.dumps(refusal.message).decode()
    param = "null" if refusal.param is None else f'"{refusal.param}"'
    return (
        f'data: {{"error": {{"message": {message}, "type": "{refusal.kind}", "param": {param}, '
        f'"code": {refusal.status}}}}}\n\n'
    ).encode()


class ErrorForms(NamedTuple):
    """How a server writes its errors: as an answer, as an event of a stream, as an answer of /v1/messages."""

    body: Callable[[Refusal], bytes]
    event: Callable[[Refusal], bytes]
    anthropic: Callable[[Refusal], bytes]


VLLM_FORMS = ErrorForms(error_body, error_event, anthropic_error_body)


def _error(refusal: Refusal) -> dict[str, object]:
    return {"message": refusal.message, "type": refusal.kind, "param": refusal.param, "code": refusal.status}
