"""Every failure of the admin plane as the same error object that the inference plane speaks."""

from __future__ import annotations

from types import MappingProxyType

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from gateway.admin.errors import AdminRefusal, validation_refusal
from gateway.aliasing.plan import PlanFault
from gateway.errors import GatewayError, Refusal
from gateway.model import Dialect
from gateway.stores.interfaces import Conflict, NotFound
from gateway.wire.errorbody import error_answer

_BY_STATUS = MappingProxyType({404: "not_found", 405: "method_not_allowed"})


def answer(error: GatewayError) -> Response:
    """The response for an error."""
    headers, body = error_answer(error, Dialect.OPENAI)
    return Response(
        body, status_code=error.spec.status, headers={name.decode(): value.decode() for name, value in headers}
    )


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
