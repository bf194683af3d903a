"""HTTP/1.1 as uvicorn speaks it for vLLM 0.32.0, and clients that leave (both captured)."""

import asyncio
import contextlib
import json
import time

import pytest

from loadtests.engine.harness import until, with_engine
from loadtests.engine.server import SimulatedEngine
from loadtests.engine.spec import EngineSpec, instant_spec
from loadtests.engine.wireclient import EOF, OPEN, WireClient, ask, get, post

BODY = {"messages": [{"role": "user", "content": "hello world"}], "max_tokens": 2, "temperature": 0, "ignore_eos": True}
CHAT = json.dumps(BODY).encode()
LONG = json.dumps({**BODY, "max_tokens": 2000}).encode()
LONG_STREAM = json.dumps({**BODY, "max_tokens": 2000, "stream": True}).encode()
PATH = "/v1/chat/completions"
INVALID = b"Invalid HTTP request received."


def received(raw: bytes) -> tuple[bytes, str]:
    """All bytes after `raw` was sent on a fresh connection that the server then closes, and how it ended."""
    got: list[tuple[bytes, str]] = []

    async def check(engine: SimulatedEngine) -> None:
        async with WireClient(engine.port) as client:
            client.send(raw)
            got.append((await client.read_to_end(), client.state))

    with_engine(check)
    return got[0]


def head(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode()


def test_idle_connection_is_closed_after_its_time() -> None:
    async def check(engine: SimulatedEngine) -> None:
        async with WireClient(engine.port) as client:
            client.send(get("/health"))
            await client.answer()
            began = time.monotonic()
            assert await client.read_some() == b""
            assert client.state == EOF
            assert 0.18 <= time.monotonic() - began < 4.0  # of the 5 s that are usual

    with_engine(check, instant_spec(keep_alive_timeout=0.2))


def test_idle_time_begins_anew_with_each_request() -> None:
    async def check(engine: SimulatedEngine) -> None:
        async with WireClient(engine.port) as client:
            began = time.monotonic()
            while time.monotonic() - began < 1.5:
                client.send(get("/health"))
                assert (await client.answer()).status == 200
                await asyncio.sleep(0.02)

    with_engine(check, instant_spec(keep_alive_timeout=1.0))


@pytest.mark.parametrize("first", [b"", b"GET /health HTTP/1.1\r\nhos"])
def test_connection_without_a_whole_request_stays_open(first: bytes) -> None:
    async def check(engine: SimulatedEngine) -> None:
        async with WireClient(engine.port) as client:
            client.send(first)
            assert await client.read_some(0.2) == b""
            assert client.state == OPEN

    with_engine(check, instant_spec(keep_alive_timeout=0.05))


def test_the_default_idle_time_is_vllms() -> None:
    assert EngineSpec().keep_alive_timeout == 5.0


def test_expect_is_answered_before_the_body() -> None:
    async def check(engine: SimulatedEngine) -> None:
        async with WireClient(engine.port) as client:
            request = post(PATH, CHAT, "expect: 100-continue")
            client.send(request[: -len(CHAT)])
            assert await client.read_some() == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(CHAT)
            assert (await client.answer()).status == 200

    with_engine(check)


def test_chunked_request_body() -> None:
    framed = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (CHAT[:10], CHAT[10:])) + b"0\r\n\r\n"
    raw = head(f"POST {PATH} HTTP/1.1", "content-type: application/json", "transfer-encoding: chunked") + framed

    async def check(engine: SimulatedEngine) -> None:
        assert (await ask(engine.port, raw)).status == 200
        assert engine.requests[0].body == CHAT

    with_engine(check)


def test_pipelined_requests_are_answered_in_order() -> None:
    async def check(engine: SimulatedEngine) -> None:
        async with WireClient(engine.port) as client:
            names = [f"x-request-id: number-{number}" for number in range(4)]
            client.send(b"".join(post(PATH, CHAT, name) for name in names))
            ids = [json.loads((await client.answer()).body)["id"] for _ in names]
            assert ids == [f"chatcmpl-number-{number}" for number in range(4)]

    with_engine(check)


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        head(f"POST {PATH} HTTP/1.1", "content-length: 5", "transfer-encoding: chunked"),
    ],
)
def test_what_is_not_http_is_refused(raw: bytes) -> None:
    data, state = received(raw)
    lines, _, body = data.partition(b"\r\n\r\n")
    assert (body, state) == (INVALID, EOF)
    assert lines.split(b"\r\n")[0] == b"HTTP/1.1 400 Bad Request"
    assert lines.split(b"\r\n")[2:] == [
        b"server: uvicorn",
        b"content-type: text/plain; charset=utf-8",
        b"content-length: 30",
        b"connection: close",
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_http_1_0_gets_connection_close(stream: bool) -> None:
    body = json.dumps({**BODY, "stream": stream}).encode()
    raw = post(PATH, body).replace(b"HTTP/1.1", b"HTTP/1.0")
    data, state = received(raw)
    assert state == EOF
    lines = data.partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 200 OK"
    assert b"connection: close" in lines
    assert (lines[-1] == b"transfer-encoding: chunked") == stream


def test_connection_close_is_honoured() -> None:
    data, state = received(post(PATH, CHAT, "connection: close"))
    assert data.endswith(b'"metrics":null}')
    assert state == EOF


def test_gzip_body_is_refused() -> None:
    data, _ = received(post(PATH, b"\x1f\x8b\x08\x00rest", "content-encoding: gzip", "connection: close"))
    assert data.startswith(b"HTTP/1.1 400 ")
    assert data.endswith(b'\r\n\r\n{"detail":"There was an error parsing the body"}')


def test_request_without_body_lacks_it() -> None:
    data, _ = received(head(f"POST {PATH} HTTP/1.1", "content-type: application/json", "connection: close"))
    body = data.partition(b"\r\n\r\n")[2]
    assert len(body) == 170
    assert b"{'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}" in body


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/v1/%63hat/completions", 200),
        ("http://127.0.0.1/v1/chat/completions", 200),
        ("/v1/chat/completions?x=1", 200),
        ("//v1/chat/completions", 404),
        ("/v1/../v1/chat/completions", 404),
    ],
)
def test_odd_targets(target: str, status: int) -> None:
    async def check(engine: SimulatedEngine) -> None:
        assert (await ask(engine.port, post(target, CHAT))).status == status

    with_engine(check)


def test_large_heads_and_bodies_are_taken() -> None:
    async def check(engine: SimulatedEngine) -> None:
        padding = json.dumps({**BODY, "padding": "x" * 2_000_000}).encode()
        assert (await ask(engine.port, post(PATH, padding, "x-long: " + "y" * 100_000))).status == 200

    with_engine(check)


SLOW = EngineSpec(step_time=0.005, max_num_seqs=2)


@pytest.mark.parametrize("body", [LONG, LONG_STREAM])
def test_client_that_leaves_is_noticed_at_once(body: bytes) -> None:
    async def check(engine: SimulatedEngine) -> None:
        async with WireClient(engine.port) as client:
            client.send(post(PATH, body))
            await until(lambda: engine.running == 1)
            client.close()
            await until(lambda: engine.running == 0, 5.0)  # what it asked for takes 10 s
        assert engine.requests[0].state == "aborted"
        assert engine.kv_usage == 0
        metrics = engine.metrics_text()
        assert b'finished_reason="abort",model_name="sim-model"} 0.0' in metrics

    with_engine(check, SLOW)


def test_client_that_leaves_the_queue_is_noticed_at_once() -> None:
    async def check(engine: SimulatedEngine) -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(WireClient(engine.port)) for _ in range(4)]
            for client in clients:
                client.send(post(PATH, LONG_STREAM))
                await client.read_until(b"\r\n\r\n")
            await until(lambda: (engine.running, engine.waiting) == (2, 2))
            assert engine.open_connections == 4
            for client in clients[2:]:
                client.close()
            await until(lambda: (engine.running, engine.waiting, engine.open_connections) == (2, 0, 2))

    with_engine(check, SLOW)


@pytest.mark.parametrize("body", [LONG, LONG_STREAM])
def test_half_close_counts_as_gone(body: bytes) -> None:
    async def check(engine: SimulatedEngine) -> None:
        async with WireClient(engine.port) as client:
            client.send(post(PATH, body))
            await until(lambda: engine.running == 1)
            client.half_close()
            data = await client.read_to_end()
            assert client.state == EOF
            assert b"[DONE]" not in data
            assert engine.running == 0
        assert engine.requests[0].state == "aborted"

    with_engine(check, SLOW)


def test_headers_of_a_queued_stream_come_at_once() -> None:
    async def check(engine: SimulatedEngine) -> None:
        async with WireClient(engine.port) as first, WireClient(engine.port) as second:
            first.send(post(PATH, LONG_STREAM))
            await first.read_until(b"data: ")
            second.send(post(PATH, LONG_STREAM))
            assert (await second.read_some()).endswith(b"transfer-encoding: chunked\r\n\r\n")
            assert engine.waiting == 1

    with_engine(check, EngineSpec(step_time=0.005, max_num_seqs=1))


def test_slow_reader_gets_everything_in_the_end() -> None:
    body = json.dumps({**BODY, "max_tokens": 3000, "stream": True}).encode()

    async def check(engine: SimulatedEngine) -> None:
        async with WireClient(engine.port) as client:
            client.send(post(PATH, body))
            await until(lambda: engine.state()["in_flight"] == 1)
            await until(lambda: engine.state()["in_flight"] == 0, 10.0)
            answer = await client.answer()
            assert answer.complete
            assert answer.body.count(b'"token_ids":null') == 3000

    with_engine(check)


def test_events_of_an_instant_stream_are_written_one_by_one() -> None:
    async def check(engine: SimulatedEngine) -> None:
        async with WireClient(engine.port) as client:
            client.send(post(PATH, json.dumps({**BODY, "max_tokens": 50, "stream": True}).encode()))
            answer = await client.answer()
            assert len(answer.chunks) == 52
            assert len(client.reads) > 10

    with_engine(check)
