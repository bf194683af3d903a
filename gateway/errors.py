"""Every way a request can fail, as one table, and the exceptions that carry a row of it.

    GatewayError                 carries a row of CODES; becomes the answer at the edge, once
    ├── Refusal                  the request itself is at fault, or the caller may not make it
    ├── Unavailable              nothing can serve it now; trying again may help
    └── EngineFailure            an engine was tried and failed
        ├── EngineUnreachable    no connection
        ├── EngineBusy           no connection left to use
        ├── EngineReset          the connection broke before the answer was complete
        ├── EngineProtocolError  what came is not a valid answer
        ├── EngineTimeout        a deadline passed
        ├── EngineHung           it has not moved for so long that it was taken out
        └── EngineRefused        the engine answered with an error of its own
            ├── EngineClosing    it is shutting down
            └── EngineDead       the process that computes is gone, its server still answers
    ClientGone                   the caller left; nothing is answered, the record says 499

Messages are written here or at the place that raises; none may quote what a client or an engine sent, apart from
field names that passed ``PLAIN_NAME``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\Z")


@dataclass(frozen=True, slots=True)
class ErrorSpec:
    """One error code: HTTP status, OpenAI ``type``, Anthropic ``type``, default message, whether a retry can help."""

    code: str
    status: int
    type: str
    anthropic_type: str
    message: str
    retry: bool = False


def _spec(
    code: str, status: int, openai_type: str, anthropic_type: str, message: str, *, retry: bool = False
) -> ErrorSpec:
    return ErrorSpec(code, status, openai_type, anthropic_type, message, retry)


_INVALID = "invalid_request_error"
_ROWS = (
    _spec("invalid_request", 400, _INVALID, _INVALID, "The request is not valid."),
    _spec("context_length_exceeded", 400, _INVALID, _INVALID, "The input and the requested output exceed the context."),
    _spec(
        "invalid_api_key",
        401,
        "authentication_error",
        "authentication_error",
        "Missing, invalid or expired credential. Send one API key as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
    ),
    _spec("alias_forbidden", 403, "permission_error", "permission_error", "This credential may not do that."),
    _spec("model_not_found", 404, _INVALID, "not_found_error", "No such model. GET /v1/models lists yours."),
    _spec("unsupported_endpoint", 404, _INVALID, "not_found_error", "The model does not offer this endpoint."),
    _spec("not_found", 404, _INVALID, "not_found_error", "No such path. An OpenAI client's base_url ends in /v1."),
    _spec("method_not_allowed", 405, _INVALID, _INVALID, "This path does not take that method."),
    _spec("request_timeout", 408, _INVALID, _INVALID, "The request arrived too slowly.", retry=True),
    _spec("body_too_large", 413, _INVALID, "request_too_large", "The request body is too large."),
    _spec("headers_too_large", 431, _INVALID, "request_too_large", "The request headers are too large."),
    _spec("rate_limited", 429, "rate_limit_error", "rate_limit_error", "Request rate limit reached.", retry=True),
    _spec("tokens_limited", 429, "rate_limit_error", "rate_limit_error", "Token rate limit reached.", retry=True),
    _spec("concurrency_limited", 429, "rate_limit_error", "rate_limit_error", "Too many at once.", retry=True),
    _spec("queue_full", 429, "rate_limit_error", "overloaded_error", "All capacity is in use.", retry=True),
    _spec("client_gone", 499, _INVALID, _INVALID, "The client closed the connection."),
    _spec("internal_error", 500, "api_error", "api_error", "The gateway failed to handle the request.", retry=True),
    _spec("engine_error", 502, "api_error", "api_error", "The model server failed to answer.", retry=True),
    _spec("no_ready_replica", 503, "api_error", "overloaded_error", "No model server is ready.", retry=True),
    _spec("queue_timeout", 503, "api_error", "overloaded_error", "No capacity became free in time.", retry=True),
    _spec("store_unavailable", 503, "api_error", "overloaded_error", "Credentials cannot be checked now.", retry=True),
    _spec("overloaded", 503, "api_error", "overloaded_error", "The gateway holds all the bodies it may.", retry=True),
    _spec("draining", 503, "api_error", "overloaded_error", "The gateway is stopping.", retry=True),
    _spec("engine_timeout", 504, "api_error", "api_error", "The model server did not answer in time.", retry=True),
)

CODES: Mapping[str, ErrorSpec] = MappingProxyType({row.code: row for row in _ROWS})


class GatewayError(Exception):
    """A failure with its row of ``CODES``.

    ``message`` overrides the row's text, ``param`` names the field at fault, ``retry_after`` is whole seconds.
    ``retry`` says whether trying again can help: the row's word, unless whoever raises knows better.
    """

    def __init__(
        self,
        code: str,
        message: str | None = None,
        *,
        param: str | None = None,
        retry_after: int | None = None,
        close: bool = False,
    ) -> None:
        self.spec = CODES[code]
        self.message = message or self.spec.message
        self.param = param
        self.retry_after = retry_after
        self.close = close
        self.retry = self.spec.retry
        super().__init__(code)


class Refusal(GatewayError):
    """The request is at fault, or its caller may not make it. An engine never saw it."""


class Unavailable(GatewayError):
    """Nothing can serve the request now."""


class EngineFailure(GatewayError):
    """An engine was tried and did not answer properly.

    ``elsewhere`` says whether another replica may succeed; ``reason`` how it failed, from a closed set.
    """

    reason = "failed"

    def __init__(self, code: str = "engine_error", message: str | None = None, *, elsewhere: bool = False) -> None:
        super().__init__(code, message)
        self.elsewhere = elsewhere


class EngineUnreachable(EngineFailure):
    """No connection could be made: refused, or the connect deadline passed.

    The second is ``slow``: an engine with more connections than it can take looks so, one that is gone refuses.
    """

    reason = "connect"

    def __init__(self, *, slow: bool = False) -> None:
        super().__init__("no_ready_replica", elsewhere=True)
        self.slow = slow


class EngineBusy(EngineFailure):
    """All connections that the gateway may hold to this replica are in use, or its own queue is full."""

    reason = "busy"

    def __init__(self) -> None:
        super().__init__("queue_full", elsewhere=True)


class EngineReset(EngineFailure):
    """The engine closed or reset the connection before its answer was complete."""

    reason = "reset"

    def __init__(self) -> None:
        super().__init__(elsewhere=True)


class EngineProtocolError(EngineFailure):
    """The engine's bytes are not a valid, bounded HTTP answer of the kind expected."""

    reason = "protocol"


class EngineTimeout(EngineFailure):
    """A deadline for the engine passed: first byte, silence between bytes, or total."""

    reason = "timeout"

    def __init__(self) -> None:
        super().__init__("engine_timeout")


class EngineHung(EngineFailure):
    """The replica was taken out because it had work and did none; nothing of this answer had come."""

    reason = "hung"

    def __init__(self) -> None:
        super().__init__("engine_timeout", elsewhere=True)


class EngineRefused(EngineFailure):
    """The engine answered with an error of its own, now in the gateway's words.

    ``fault`` says whether it speaks against the engine: it does not where the request or its size was refused.
    """

    reason = "refused"

    def __init__(
        self, code: str = "engine_error", message: str | None = None, *, elsewhere: bool = False, fault: bool = False
    ) -> None:
        super().__init__(code, message, elsewhere=elsewhere)
        self.fault = fault


class EngineClosing(EngineRefused):
    """The engine is shutting down: it will refuse every new request (vLLM's drain, captured)."""

    reason = "closing"

    def __init__(self) -> None:
        super().__init__("no_ready_replica", elsewhere=True, fault=True)


class EngineDead(EngineRefused):
    """The process that computes has died behind its server.

    Perhaps of this very request (captured, vLLM 0.11.0): so it is not tried elsewhere, and the client is told not to
    try again, unless it was not alone there.
    """

    reason = "dead"

    def __init__(self) -> None:
        super().__init__(fault=True)
        self.retry = False

    def absolve(self) -> None:
        """Others were there with it, so that it was hardly this one. It may be tried elsewhere."""
        self.elsewhere = self.retry = True


class ClientGone(Exception):
    """The caller closed the connection; there is nobody to answer."""
