"""An ASGI application on an exchange."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from gateway.errors import Refusal
from gateway.wire.asgi import run_asgi

LIMIT = 100


class FakeExchange:
    method = "POST"
    version = "1.1"
    peer = "127.0.0.1"

    def __init__(self, target: bytes = b"/a%20b?c=d", body: bytes = b"body") -> None:
        self.target = target
        self.headers = [(b"host", b"gw"), (b"x-a", b"1"), (b"x-a", b"2")]
        self._body = body
        self.reads = 0
        self.started = False
        self.status = 0
        self.answered: list[tuple[bytes, bytes]] = []
        self.sent: list[bytes] = []
        self.finished = False

    async def body(self, limit: int) -> bytes:
        self.reads += 1
        if len(self._body) > limit:
            raise Refusal("body_too_large", close=True)
        return self._body

    def respond(self, status: int, lines: bytes, body: bytes, *, close: bool = False) -> None:
        self.start(status, lines, None)
        self.write(body)
        self.finish()

    def start(self, status: int, lines: bytes, flow: Any) -> None:
        assert not self.started
        self.started, self.status = True, status
        self.answered = [tuple(line.split(b": ", 1)) for line in lines.split(b"\r\n")[:-1]]

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def finish(self) -> None:
        self.finished = True


def run(app: Any, exchange: FakeExchange | None = None) -> FakeExchange:
    exchange = exchange or FakeExchange()
    asking: Any = exchange

    async def body() -> None:
        async with asyncio.timeout(5):
            await run_asgi(app, asking, LIMIT)

    asyncio.run(body())
    return exchange


Receive = Callable[[], Coroutine[Any, Any, dict[str, Any]]]
Send = Callable[[dict[str, Any]], Coroutine[Any, Any, None]]
START = {"type": "http.response.start", "status": 201, "headers": [(b"x-b", b"3"), (b"content-length", b"5")]}


def test_the_scope() -> None:
    seen: dict[str, Any] = {}

    async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        seen.update(scope)
        seen["message"] = await receive()

    run(app)
    assert (seen["path"], seen["raw_path"], seen["query_string"]) == ("/a b", b"/a%20b", b"c=d")
    assert seen["headers"] == [(b"host", b"gw"), (b"x-a", b"1"), (b"x-a", b"2")]
    assert seen["message"] == {"type": "http.request", "body": b"body", "more_body": False}
    assert seen["client"] == ("127.0.0.1", 0)


def test_a_whole_answer() -> None:
    async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"whole"})

    exchange = run(app)
    assert (exchange.status, exchange.answered) == (201, [(b"x-b", b"3")])
    assert (exchange.sent, exchange.finished) == ([b"whole"], True)


def test_an_answer_in_pieces() -> None:
    async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await send({"type": "http.response.body", "body": b"two", "more_body": True})
        await send({"type": "http.response.body"})

    exchange = run(app)
    assert (exchange.sent, exchange.finished) == ([b"one", b"two", b""], True)


def test_framing_has_one_author() -> None:
    async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        names = (b"transfer-encoding", b"connection", b"date", b"content-length", b"content-type")
        await send({**START, "headers": [(name, b"1") for name in names]})
        await send({"type": "http.response.body"})

    assert run(app).answered == [(b"content-type", b"1")]


def test_a_body_is_read_once_and_not_before_the_application_asks_for_it() -> None:
    reads: list[int] = []

    async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        reads.append(exchange.reads)
        await receive()
        reads.append(exchange.reads)
        await send(START)
        await send({"type": "http.response.body"})
        await receive()
        reads.append(exchange.reads)

    exchange = FakeExchange()
    run(app, exchange)
    assert reads == [0, 1, 1]


def test_who_answers_by_the_head_alone_has_no_body_read() -> None:
    async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"no"})
        assert (await receive())["type"] == "http.disconnect"

    exchange = run(app, FakeExchange(body=b"a" * (LIMIT + 1)))
    assert (exchange.status, exchange.reads) == (201, 0)


def test_a_body_over_the_limit_is_told_to_the_application_when_it_asks() -> None:
    told: list[str] = []

    async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        try:
            await receive()
        except Refusal as refusal:
            told.append(refusal.spec.code)
            raise

    with pytest.raises(Refusal):
        run(app, FakeExchange(body=b"a" * (LIMIT + 1)))
    assert told == ["body_too_large"]


def test_who_listens_for_a_disconnect_waits_until_the_answer_is_over() -> None:
    heard: list[str] = []

    async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await receive()
        listening = asyncio.ensure_future(receive())
        await send(START)
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await asyncio.sleep(0)
        heard.append("nothing" if not listening.done() else "something")
        await send({"type": "http.response.body"})
        heard.append((await listening)["type"])

    run(app)
    assert heard == ["nothing", "http.disconnect"]


def test_starlettes_streams_run_to_their_end() -> None:
    async def stream(request: Request) -> StreamingResponse:
        async def parts() -> Any:
            for part in ("a", "b"):
                yield part

        return StreamingResponse(parts())

    exchange = run(Starlette(routes=[Route("/s", stream, methods=["POST"])]), FakeExchange(b"/s"))
    assert (exchange.status, b"".join(exchange.sent), exchange.finished) == (200, b"ab", True)
