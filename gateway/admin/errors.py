"""Every failure of the admin plane as the same error object that the inference plane speaks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from gateway.aliasing.plan import PlanFault
from gateway.errors import PLAIN_NAME, ErrorSpec, GatewayError, Refusal
from gateway.model import Dialect
from gateway.stores.interfaces import Conflict, NotFound
from gateway.wire.errorbody import error_answer

_INVALID = "invalid_request_error"
_DENIED = "permission_error"
ADMIN_CODES: Mapping[str, ErrorSpec] = MappingProxyType(
    {
        "verb_forbidden": ErrorSpec("verb_forbidden", 403, _DENIED, _DENIED, "This needs an admin verb that you lack."),
        "grant_too_wide": ErrorSpec("grant_too_wide", 403, _DENIED, _DENIED, "Nobody gives more than it has."),
        "no_such_object": ErrorSpec("no_such_object", 404, _INVALID, "not_found_error", "No such key or alias."),
        "conflict": ErrorSpec("conflict", 409, _INVALID, _INVALID, "Somebody else was first."),
        "model_not_served": ErrorSpec("model_not_served", 409, _INVALID, _INVALID, "No replica serves that model now."),
        "alias_in_use": ErrorSpec("alias_in_use", 409, _INVALID, _INVALID, "The alias is in use."),
        "change_refused": ErrorSpec("change_refused", 409, _INVALID, _INVALID, "The alias does not stand so."),
    }
)
_BY_STATUS = MappingProxyType({404: "not_found", 405: "method_not_allowed"})

# Kinds of validation errors whose message is made from our own rules. Others could quote what was sent.
_OWN_WORDS = frozenset(
    {
        "bool_type",
        "extra_forbidden",
        "float_type",
        "greater_than_equal",
        "int_parsing",
        "int_type",
        "less_than_equal",
        "list_type",
        "literal_error",
        "missing",
        "model_attributes_type",
        "string_pattern_mismatch",
        "string_type",
        "too_long",
        "too_short",
        "value_error",
    }
)


class AdminRefusal(Refusal):
    """A refusal with a row of ``ADMIN_CODES``."""

    def __init__(self, code: str, message: str | None = None, *, param: str | None = None) -> None:
        super().__init__("invalid_request", message or ADMIN_CODES[code].message, param=param)
        self.spec = ADMIN_CODES[code]


def answer(error: GatewayError) -> Response:
    """The response for an error."""
    headers, body = error_answer(error, Dialect.OPENAI)
    return Response(
        body, status_code=error.spec.status, headers={name.decode(): value.decode() for name, value in headers}
    )


def validation_refusal(kind: str, place: tuple[int | str, ...], words: str) -> Refusal:
    """A validation error in words that never quote what was sent: a field name only when it is a plain one."""
    names = [str(part) for part in place[1:]]
    param = ".".join(names) if names and all(PLAIN_NAME.match(name) or name.isdecimal() for name in names) else None
    text = words.removeprefix("Value error, ") if kind in _OWN_WORDS else "Not valid"
    return Refusal("invalid_request", f"{param}: {text}." if param else f"{text}.", param=param)


def install(app: FastAPI) -> None:
    """Register the handlers: the first fault of a validation, our errors, the framework's own, and anything else."""

    async def invalid(_: Request, error: Exception) -> Response:
        if not isinstance(error, RequestValidationError):
            raise error
        first = error.errors()[0]
        return answer(validation_refusal(first["type"], first["loc"], first["msg"]))

    async def ours(_: Request, error: Exception) -> Response:
        return answer(error if isinstance(error, GatewayError) else GatewayError("internal_error"))

    async def missing(_: Request, error: Exception) -> Response:
        return answer(AdminRefusal("no_such_object", f"{str(error).capitalize()}."))

    async def lost(_: Request, error: Exception) -> Response:
        return answer(AdminRefusal("conflict", f"{error}."))

    async def unplanned(_: Request, error: Exception) -> Response:
        return answer(AdminRefusal("change_refused", f"{error}."))

    async def framework(_: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        return answer(Refusal(_BY_STATUS.get(status, "invalid_request")))

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(GatewayError, ours)
    app.add_exception_handler(NotFound, missing)
    app.add_exception_handler(Conflict, lost)
    app.add_exception_handler(PlanFault, unplanned)
    app.add_exception_handler(HTTPException, framework)
    app.add_exception_handler(Exception, ours)
