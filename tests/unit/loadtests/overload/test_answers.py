import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from loadtests.overload.answers import GAVE_UP, SERVED, WRONG, Heard, ask, judge
from loadtests.vllm.engine import held_port

EVENT = b'data: {"choices":[{"delta":{"content":"la"}}]}\n\n'
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + EVENT * 3 + b"data: [DONE]\n\n"
REFUSED = (
    b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\nRetry-After: 7\r\n\r\n"
    b'{"error":{"message":"All capacity is in use.","code":"queue_full"}}'
)


def test_an_answer_counts_its_tokens() -> None:
    assert judge(STREAM, 0.2) == Heard(SERVED, 0.2, 3)


def test_what_the_head_says_of_the_queue_is_seconds() -> None:
    queued = STREAM.replace(b"\r\n\r\n", b"\r\nx-gateway-queue-ms: 250\r\n\r\n", 1)
    assert judge(queued, 0.3).queued == pytest.approx(0.25)


def test_a_refusal_has_its_code_and_the_time_that_it_tells() -> None:
    assert judge(REFUSED, None) == Heard("queue_full", retry_after=7.0)
    silent = REFUSED.replace(b"Retry-After: 7\r\n", b"")
    assert judge(silent, None) == Heard("queue_full")
    assert judge(b"HTTP/1.1 503 Busy\r\n\r\nnot json", None) == Heard("status 503")


def test_a_retry_after_in_a_body_is_none_in_the_head() -> None:
    assert judge(b"HTTP/1.1 503 Busy\r\n\r\n\r\nretry-after: 7\r\n", None).retry_after is None


@pytest.mark.parametrize(
    "received",
    [
        b"",
        b"HTTP/1.1 500 Oops\r\n\r\n{}",
        STREAM.replace(b"data: [DONE]\n\n", b""),
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"\xff",
    ],
)
def test_anything_else_is_wrong_and_says_why(received: bytes) -> None:
    heard = judge(received, None)
    assert heard.outcome == WRONG
    assert heard.error


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _asked(serve: Serve, patience: float, longest: float = 20.0) -> Heard:
    """Asks a server that plays ``serve``, and waits until it has let go of its connection."""
    served = asyncio.Event()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.close()
            served.set()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        heard = await ask(server.sockets[0].getsockname()[1], b"hello\r\n", time.monotonic, patience, longest)
        await served.wait()
        return heard


async def _well(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(STREAM)


async def _never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n: a comment is no token\n\n")
    await reader.read()


async def _hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM[: STREAM.index(EVENT) + len(EVENT)])
    await reader.read()


def test_a_first_token_is_measured() -> None:
    heard = asyncio.run(_asked(_well, 20.0))
    assert (heard.outcome, heard.tokens) == (SERVED, 3)
    assert heard.ttft is not None
    assert 0 <= heard.ttft < 20


def test_a_client_leaves_when_no_token_comes() -> None:
    assert asyncio.run(_asked(_never, 0.05)) == Heard(GAVE_UP)


def test_a_stream_that_hangs_is_wrong_and_patience_ends_with_the_first_token() -> None:
    heard = asyncio.run(_asked(_hangs, 20.0, 0.05))
    assert heard.outcome == WRONG
    assert heard.ttft is not None


def test_nobody_there_is_wrong() -> None:
    async def nobody() -> Heard:
        with held_port() as held:
            return await ask(held.getsockname()[1], b"", time.monotonic, 5.0)

    assert asyncio.run(nobody()).error.startswith("connection: ")
