"""The outermost layer of the admin plane: who calls, and may it, before a body is read.

FastAPI reads and parses a body before it runs dependencies: a credential checked there would let anybody feed the
parser.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.admin.callers import Caller, Knowledge, hand_over, recognise
from gateway.admin.errors import AdminRefusal
from gateway.admin.handlers import answer
from gateway.admin.verbs import OPEN, Doors
from gateway.admin.writes import WriteLimit
from gateway.errors import ClientGone, GatewayError, Refusal

MAX_BODY = 65_536
_WRITES = ":write"


class Gate:
    """Lets a request through to a route whose verb its caller has, or which is ``OPEN``."""

    def __init__(self, app: ASGIApp, doors: Doors, known: Knowledge, writes: WriteLimit) -> None:
        self._app = app
        self._doors = doors
        self._known = known
        self._writes = writes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            admitted = await self._admit(scope)
            body = await _body(receive)
        except ClientGone:
            return
        except GatewayError as error:
            await answer(error)(scope, receive, send)
            return
        await self._app(admitted, _replay(body, receive), send)

    async def _admit(self, scope: Scope) -> Scope:
        verb = self._doors.verb(scope)
        if verb == OPEN:
            return scope
        peer = scope["client"][0] if scope["client"] else ""
        caller = await recognise(scope["headers"], peer, self._known)
        if isinstance(verb, Refusal):
            raise verb
        self._authorise(caller, verb)
        return hand_over(caller, scope)

    def _authorise(self, caller: Caller, verb: str) -> None:
        if verb not in caller.verbs:
            raise AdminRefusal("verb_forbidden", f"This needs the admin verb {verb}, which no role of yours gives.")
        wait = self._writes.admit(caller.author) if verb.endswith(_WRITES) else None
        if wait is not None:
            raise Refusal("rate_limited", "Too many writes of one author.", retry_after=wait)


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
