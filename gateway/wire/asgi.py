"""Run an ASGI application on an exchange: the one module that knows ASGI. Only the admin plane needs it.

The body is read whole and bounded when the application asks for it, so that one that refuses by the head alone has
nothing read; the application's answer is sent as it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote

from gateway.wire.exchange import Exchange
from gateway.wire.headers import header_lines

# Headers that the server writes itself: framing has one author.
_SERVERS = frozenset({b"content-length", b"transfer-encoding", b"connection", b"date"})

Message = MutableMapping[str, Any]
App = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]


class _Unhurried:
    """An ASGI application cannot be told to wait; its answers are small."""

    def pause(self) -> None:
        """Nothing to stop."""

    def resume(self) -> None:
        """Nothing to go on with."""


async def run_asgi(app: App, exchange: Exchange, body_limit: int) -> None:
    """Serve one exchange by an ASGI application.

    Its first ``receive`` raises ``Refusal`` for a body that is too large or too slow; so does this, if the application
    lets it pass.
    """
    answer = _Answer(exchange)
    try:
        await app(_scope(exchange), _Question(exchange, body_limit, answer).receive, answer.send)
    finally:
        answer.over.set()


def _scope(exchange: Exchange) -> dict[str, Any]:
    raw_path, _, query = exchange.target.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": exchange.version,
        "method": exchange.method,
        "scheme": "http",
        "path": unquote(raw_path.decode("ascii", "replace")),
        "raw_path": raw_path,
        "query_string": query,
        "root_path": "",
        "headers": list(exchange.headers),
        "client": (exchange.peer, 0),
        "server": None,
        "state": {},
    }


class _Question:
    """The request's messages: the body once, then nothing until the answer is over.

    Frameworks ask again while they answer, to hear of a client that leaves; here that cancels the task instead.
    """

    def __init__(self, exchange: Exchange, body_limit: int, answer: _Answer) -> None:
        self._exchange = exchange
        self._body_limit = body_limit
        self._answer = answer
        self._asked = False

    async def receive(self) -> Message:
        if not self._asked and not self._answer.over.is_set():
            self._asked = True
            body = await self._exchange.body(self._body_limit)
            return {"type": "http.request", "body": body, "more_body": False}
        await self._answer.over.wait()
        return {"type": "http.disconnect"}


class _Answer:
    """Collects an answer and sends it with its length; what is larger than one message is sent in pieces."""

    def __init__(self, exchange: Exchange) -> None:
        self.over = asyncio.Event()
        self._exchange = exchange
        self._status = 500
        self._lines = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._lines = header_lines([h for h in message.get("headers", ()) if h[0] not in _SERVERS])
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if not more:
            self.over.set()
            if not self._exchange.started:
                self._exchange.respond(self._status, self._lines, body)
                return
        if not self._exchange.started:
            self._exchange.start(self._status, self._lines, _Unhurried())
        self._exchange.write(body)
        if not more:
            self._exchange.finish()
