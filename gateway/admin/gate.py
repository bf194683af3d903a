"""The outermost layer of the admin plane: the token, and a bound on the body, before anything is parsed.

FastAPI reads and parses a body before it runs dependencies: a token checked there would let anybody feed the parser.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.admin.errors import AdminRefusal, answer
from gateway.errors import ClientGone, GatewayError, Refusal
from gateway.secret import Secret

OPEN = frozenset({("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/metrics")})
"""What anybody who reaches the listener may read."""

MAX_BODY = 65_536
_PREFIX = b"bearer "


class Gate:
    """Lets a request through with the admin token, or without one to what is ``OPEN``."""

    def __init__(self, app: ASGIApp, token: Secret) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            if (scope["method"], scope["path"]) not in OPEN and not self._knows(scope):
                raise AdminRefusal("invalid_admin_token")
            body = await _body(receive)
        except ClientGone:
            return
        except GatewayError as error:
            await answer(error)(scope, receive, send)
            return
        await self._app(scope, _replay(body, receive), send)

    def _knows(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1 or given[0][: len(_PREFIX)].lower() != _PREFIX:
            return False
        return hmac.compare_digest(given[0][len(_PREFIX) :], self._token.reveal().encode())


async def _body(receive: Receive) -> bytes:
    data = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        data += message.get("body", b"")
        if len(data) > MAX_BODY:
            raise Refusal("body_too_large", close=True)
        if not message.get("more_body", False):
            return bytes(data)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that gives the body that was read, then whatever comes."""
    pending: list[Mapping[str, object]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return dict(pending.pop()) if pending else await receive()

    return again
