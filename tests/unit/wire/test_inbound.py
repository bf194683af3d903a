"""One request and its answer, without a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.errors import Refusal, Unavailable
from gateway.wire.bodymemory import BodyMemory
from gateway.wire.inbound import UNREAD_WINDOW, Inbound, ServerClock


class Line:
    """Keeps what an exchange says to its connection."""

    peer = "127.0.0.1"

    def __init__(self) -> None:
        clock = ServerClock(lambda: 0.0)
        policy = asyncio.get_event_loop_policy()
        self.context = SimpleNamespace(draining=False, loop=policy, bodies=BodyMemory(1 << 20), clock=clock)
        self.said: list[Any] = []
        self.last = False

    def want_body(self, exchange: Inbound) -> None:
        self.said.append("want_body")

    def send(self, data: bytes) -> None:
        self.said.append(data)

    def closes_after(self, exchange: Inbound) -> bool:
        return self.last

    def distrust(self) -> None:
        self.said.append("distrust")

    def answered(self, exchange: Inbound) -> None:
        self.said.append("answered")

    def abort(self) -> None:
        self.said.append("abort")


def made() -> tuple[Inbound, Line]:
    line: Any = Line()
    return Inbound(line, 1.5), line


def read(exchange: Inbound, limit: int, *later: bytes) -> bytes:
    """The body, of which some comes only when it is waited for."""

    async def body() -> bytes:
        exchange._line.context.loop = asyncio.get_running_loop()
        reading = asyncio.ensure_future(exchange.body(limit))
        await asyncio.sleep(0)
        for data in later:
            exchange.feed(data)
        if later:
            exchange.end_body()
        return await reading

    return asyncio.run(body())


def test_a_body_in_one_piece_is_not_copied() -> None:
    exchange, line = made()
    data = b"a" * 1000
    exchange.feed(data)
    exchange.end_body()
    assert read(exchange, 1000) is data
    assert read(exchange, 1000) == b"", "what was handed over is not kept as well"
    assert line.said == []


def test_a_body_in_crumbs() -> None:
    exchange, line = made()
    exchange.feed(b"a")
    assert read(exchange, 5, b"b", b"c", b"de") == b"abcde"
    assert line.said == ["want_body"]
    assert exchange.received == 5


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_over_its_limit(declared: bool) -> None:
    exchange, line = made()
    if declared:
        exchange.head = {b"content-length": b"6"}
    with pytest.raises(Refusal) as caught:
        read(exchange, 5, b"abc", b"def")
    assert (caught.value.spec.code, caught.value.close) == ("body_too_large", True)
    assert line.said == ([] if declared else ["want_body"])
    exchange.feed(b"ghi")
    assert exchange._body == b"", "what is refused is not kept"


def test_a_body_that_fails() -> None:
    exchange, _ = made()
    exchange.feed(b"abc")
    exchange.fail_body(Refusal("request_timeout"))
    with pytest.raises(Refusal):
        read(exchange, 5)


def test_what_nobody_asked_for_is_bounded() -> None:
    exchange, _ = made()
    exchange.feed(b"a" * UNREAD_WINDOW)
    assert not exchange.unread()
    exchange.feed(b"a")
    assert exchange.unread()


ENDS: dict[str, Callable[[Inbound], None]] = {
    "a whole answer": lambda exchange: exchange.respond(200, b"", b""),
    "the end of a stream": lambda exchange: exchange.finish(),
    "given up": lambda exchange: exchange.abort(),
    "the client left": lambda exchange: exchange.lose(),
    "too slow": lambda exchange: exchange.fail_body(Refusal("request_timeout")),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("asked", [False, True])
def test_a_body_counts_until_its_request_has_ended_in_whatever_way(end: Any, asked: bool) -> None:
    exchange, line = made()
    memory = line.context.bodies
    exchange.feed(b"a" * 300)
    exchange.feed(b"a" * 700)
    assert memory.held == 1000
    if asked:
        exchange.end_body()
        read(exchange, 1000)
        assert memory.held == 1000, "an engine has not answered yet"
    for _ in range(2):
        end(exchange)
        assert memory.held == 0
    exchange.feed(b"late")
    assert (memory.held, exchange._body) == (0, b"")


def test_a_body_for_which_there_is_no_room_is_refused_and_lets_go_of_what_it_had() -> None:
    exchange, line = made()
    memory = line.context.bodies = BodyMemory(1000)
    assert memory.take(300)
    exchange.feed(b"a" * 600)
    assert memory.held == 900
    exchange.feed(b"a" * 101)
    assert memory.held == 300
    exchange.feed(b"a" * 10)
    exchange.end_body()
    with pytest.raises(Unavailable) as caught:
        read(exchange, 5000)
    error = caught.value
    assert (error.spec.code, error.spec.status, error.retry_after, error.close) == ("overloaded", 503, 1, True)
    assert (memory.held, exchange._body, exchange.received) == (300, b"", 711)


def test_an_answer_is_given_once() -> None:
    exchange, line = made()
    exchange.respond(200, b"", b"one")
    exchange.respond(500, b"", b"two")
    exchange.start(200, b"", None)  # type: ignore[arg-type]
    exchange.write(b"three")
    exchange.finish()
    date = b"date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
    assert line.said == [b"HTTP/1.1 200 OK\r\n%bcontent-length: 3\r\n\r\none" % date, "answered"]
    assert exchange.finished


def test_an_answer_that_closes() -> None:
    exchange, line = made()
    exchange.respond(400, b"", b"", close=True)
    assert line.said[0] == "distrust"


def test_the_answer_to_head_has_the_length_and_no_body_and_the_last_one_says_so() -> None:
    exchange, line = made()
    exchange.method, line.last = "HEAD", True
    exchange.respond(503, b"x-a: 1\r\n", b"one")
    assert line.said[0].startswith(b"HTTP/1.1 503 Service Unavailable\r\ndate: ")
    assert line.said[0].endswith(b"\r\nx-a: 1\r\nconnection: close\r\ncontent-length: 3\r\n\r\n")


def test_a_body_of_known_length_is_complete_at_its_last_byte_and_says_what_is_behind() -> None:
    exchange, _ = made()
    exchange.owed = 5
    assert (exchange.take(b"he"), exchange.owed, exchange.complete) == (b"", 3, False)
    assert exchange.whole_body(10) is None
    assert (exchange.take(b"lloXY"), exchange.owed, exchange.complete) == (b"XY", 0, True)
    assert exchange.whole_body(4) is None
    assert exchange.whole_body(5) == b"hello"
    empty, _ = made()
    assert (empty.take(b""), empty.complete, empty.whole_body(1)) == (b"", True, b"")


def test_whole_chunks_are_passed_on_as_they_are() -> None:
    exchange, line = made()
    exchange.start(200, b"", None)  # type: ignore[arg-type]
    exchange.pass_on(b"1\r\na\r\n")
    assert line.said[-1] == b"1\r\na\r\n"
    exchange.finish()
    exchange.pass_on(b"1\r\nb\r\n")
    assert line.said[-1] == "answered"


def test_a_stream() -> None:
    exchange, line = made()
    flow: Any = object()
    exchange.start(200, b"", flow)
    assert exchange.flow is flow
    exchange.write(b"a" * 17)
    exchange.write(b"")
    exchange.finish()
    exchange.write(b"late")
    assert line.said[0].endswith(b" GMT\r\ntransfer-encoding: chunked\r\n\r\n")
    assert line.said[1:] == [b"11\r\n" + b"a" * 17 + b"\r\n", b"0\r\n\r\n", "answered"]
    assert exchange.flow is None


def test_nothing_is_said_to_a_client_that_is_gone() -> None:
    exchange, line = made()
    exchange.gone = True
    exchange.respond(200, b"", b"")
    exchange.start(200, b"", None)  # type: ignore[arg-type]
    exchange.write(b"a")
    exchange.finish()
    assert line.said == []


def test_aborting() -> None:
    exchange, line = made()
    exchange.abort()
    assert (line.said, exchange.finished) == (["abort"], True)


def test_the_date_is_made_once_a_second() -> None:
    times = iter([0.0, 0.9, 1.0])
    clock = ServerClock(lambda: next(times))
    first, same, second = clock.date_line(), clock.date_line(), clock.date_line()
    assert first is same
    assert (first, second) == (b"date: Thu, 01 Jan 1970 00:00:00 GMT\r\n", b"date: Thu, 01 Jan 1970 00:00:01 GMT\r\n")
