"""Each fault does on the wire what its name says."""

import json
import time
from pathlib import Path

import pytest

from loadtests.engine.faults import FAULTS
from loadtests.engine.harness import with_engine
from loadtests.engine.server import SimulatedEngine
from loadtests.engine.wireclient import EOF, OPEN, RESET, WireClient, ask, get, post

BODY = {"messages": [{"role": "user", "content": "hello world"}], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
STREAM = post("/v1/chat/completions", json.dumps({**BODY, "stream": True}).encode())
WHOLE = post("/v1/chat/completions", json.dumps(BODY).encode())
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error": {"message": "EngineCore encountered an issue.'
END = b"0\r\n\r\n"
QUIET = 0.15
"""Seconds without a byte that count as silence."""


def wire(name: str, request: bytes = STREAM, *, until_silence: bool = False, **params: object) -> WireClient:
    """The client after a request under a fault: when the answer or the connection has ended, or at `until_silence`."""
    clients = []

    async def check(engine: SimulatedEngine) -> None:
        engine.faults.set(name, **params)  # type: ignore[arg-type]
        async with WireClient(engine.port) as client:
            client.send(request)
            if until_silence:
                await client.read_to_end(QUIET)
            else:
                await client.read_until(END if request is STREAM else b'"metrics":null}')
            clients.append(client)

    with_engine(check)
    return clients[0]


def events_of(data: bytes) -> int:
    return data.count(b"data: {")


def test_refuse_closes_the_listener_and_opens_it_again() -> None:
    async def check(engine: SimulatedEngine) -> None:
        async with WireClient(engine.port) as old:
            engine.faults.set("refuse")
            with pytest.raises(ConnectionRefusedError):
                await ask(engine.port, WHOLE)
            old.send(WHOLE)
            assert (await old.answer()).status == 200
        engine.faults.clear("refuse")
        assert (await ask(engine.port, WHOLE)).status == 200

    with_engine(check)


def test_accept_and_hang() -> None:
    client = wire("accept_and_hang", until_silence=True)
    assert (client.received, client.state) == (b"", OPEN)


def test_first_byte_delay() -> None:
    async def check(engine: SimulatedEngine) -> None:
        engine.faults.set("first_byte_delay", seconds=0.1)
        began = time.monotonic()
        assert (await ask(engine.port, WHOLE)).complete
        assert time.monotonic() - began >= 0.1

    with_engine(check)


def test_headers_then_hang() -> None:
    client = wire("headers_then_hang", until_silence=True)
    assert client.received.startswith(b"HTTP/1.1 200 OK")
    assert client.received.endswith(b"\r\n\r\n")
    assert client.state == OPEN


def test_headers_come_at_once_without_a_fault_and_late_with_one() -> None:
    async def check(engine: SimulatedEngine) -> None:
        engine.faults.set("health_ok_generation_hangs")
        async with WireClient(engine.port) as client:
            client.send(STREAM)
            assert (await client.read_some()).startswith(b"HTTP/1.1 200 OK")
        engine.faults.set("headers_late")
        async with WireClient(engine.port) as client:
            client.send(STREAM)
            assert await client.read_some(QUIET) == b""
            engine.faults.clear("health_ok_generation_hangs")
            assert (await client.answer()).body.endswith(DONE)

    with_engine(check)


def test_stall_mid_stream() -> None:
    client = wire("stall_mid_stream", until_silence=True, after_events=3)
    assert events_of(client.received) == 3
    assert client.state == OPEN


def test_truncate_chunk() -> None:
    client = wire("truncate_chunk", after_events=2)
    assert events_of(client.received) == 3
    before, _, rest = client.received.rpartition(b"\r\n")
    assert 0 < len(rest) < int(before.rpartition(b"\r\n")[2], 16)
    assert client.state == EOF


def test_reset_mid_stream() -> None:
    client = wire("reset_mid_stream", after_events=3)
    assert events_of(client.received) == 3
    assert client.state == RESET


@pytest.mark.parametrize("name", ["stall_mid_stream", "truncate_chunk", "reset_mid_stream", "close_mid_stream"])
def test_whole_answers_break_off_in_their_body(name: str) -> None:
    client = wire(name, WHOLE, until_silence=True)
    head, _, body = client.received.partition(b"\r\n\r\n")
    length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    assert len(body) == length // 2
    ends = {"stall_mid_stream": OPEN, "reset_mid_stream": RESET}
    assert client.state == ends.get(name, EOF)


@pytest.mark.parametrize("name", ["malformed_sse", "invalid_utf8", "huge_line"])
def test_whole_answers_are_spoilt_too(name: str) -> None:
    client = wire(name, WHOLE, until_silence=True)
    with pytest.raises((json.JSONDecodeError, UnicodeDecodeError)):
        json.loads(client.received.partition(b"\r\n\r\n")[2])


def test_reset_before_response() -> None:
    client = wire("reset_before_response")
    assert (client.received, client.state) == (b"", RESET)


def test_close_mid_stream() -> None:
    client = wire("close_mid_stream", after_events=3)
    assert events_of(client.received) == 3
    assert not client.received.endswith(END)
    assert client.state == EOF


def test_malformed_sse() -> None:
    client = wire("malformed_sse", after_events=2, text="data: {broken")
    assert b"data: {broken\n\n" in client.received
    assert client.received.endswith(END)


def test_invalid_utf8() -> None:
    client = wire("invalid_utf8", after_events=2)
    with pytest.raises(UnicodeDecodeError):
        client.received.decode()
    assert client.received.endswith(END)


def test_huge_line() -> None:
    async def check(engine: SimulatedEngine) -> None:
        engine.faults.set("huge_line", bytes=2_000_000)
        answer = await ask(engine.port, STREAM)
        assert max(len(line) for line in answer.body.split(b"\n")) >= 2_000_000

    with_engine(check)


def test_error_event_first() -> None:
    client = wire("error_event_first")
    assert events_of(client.received.replace(ERROR, b"")) == 0
    assert ERROR in client.received
    assert client.received.endswith(b"e\r\n" + DONE + b"\r\n" + END)


def test_error_event_first_of_a_whole_answer_is_a_500() -> None:
    assert wire("error_event_first", WHOLE, until_silence=True).received.startswith(b"HTTP/1.1 500 ")


def test_error_event_mid() -> None:
    client = wire("error_event_mid", after_events=4)
    assert events_of(client.received.partition(ERROR)[0]) == 4
    assert client.received.endswith(b"e\r\n" + DONE + b"\r\n" + END)


def test_done_missing() -> None:
    client = wire("done_missing")
    assert DONE not in client.received
    assert client.received.endswith(END)


def test_done_twice() -> None:
    assert wire("done_twice").received.count(DONE) == 2


@pytest.mark.parametrize("request_", [STREAM, WHOLE])
def test_wrong_content_type(request_: bytes) -> None:
    client = wire("wrong_content_type", request_, content_type="text/html")
    assert b"\r\ncontent-type: text/html\r\n" in client.received


def test_informational_flood() -> None:
    client = wire("informational_flood", responses=50, status=103)
    assert client.received.count(b"HTTP/1.1 103 ") == 50
    assert b"HTTP/1.1 200 OK" in client.received


@pytest.mark.parametrize("request_", [STREAM, WHOLE])
def test_giant_headers(request_: bytes) -> None:
    client = wire("giant_headers", request_, bytes=100_000, headers=4)
    assert len(client.received.partition(b"\r\n\r\n")[0]) > 100_000
    assert client.received.count(b"\r\nx-padding-") == 4


@pytest.mark.parametrize("request_", [STREAM, WHOLE])
def test_bytes_after_end(request_: bytes) -> None:
    client = wire("bytes_after_end", request_, until_silence=True, text="tail")
    assert client.received.endswith(b"tail")
    assert client.state == OPEN


@pytest.mark.parametrize("request_", [STREAM, WHOLE])
def test_status_burst_for_so_many_requests(request_: bytes) -> None:
    async def check(engine: SimulatedEngine) -> None:
        params = {"status": 503, "type": "Service Unavailable", "message": "busy", "headers": {"retry-after": "7"}}
        engine.faults.set("status_burst", count=2, **params)
        answers = [await ask(engine.port, request_) for _ in range(3)]
        assert [answer.status for answer in answers] == [503, 503, 200]
        assert answers[0].header("retry-after") == "7"
        expected = {"message": "busy", "type": "Service Unavailable", "param": None, "code": 503}
        assert json.loads(answers[0].body) == {"error": expected}
        assert engine.requests_seen == 3

    with_engine(check)


def test_bad_status_line() -> None:
    client = wire("bad_status_line", until_silence=True, line="HTTP/9 what")
    assert client.received.startswith(b"HTTP/9 what\r\n")
    assert client.state == EOF


@pytest.mark.parametrize("request_", [STREAM, WHOLE])
def test_both_lengths(request_: bytes) -> None:
    head = wire("both_lengths", request_, until_silence=request_ is STREAM).received.partition(b"\r\n\r\n")[0]
    assert b"\r\ncontent-length: " in head
    assert b"\r\ntransfer-encoding: chunked" in head


@pytest.mark.parametrize("request_", [STREAM, WHOLE])
def test_wrong_model_name(request_: bytes) -> None:
    client = wire("wrong_model_name", request_, model="other")
    assert b'"model":"other"' in client.received
    assert b'"model":"sim-model"' not in client.received


def test_keepalive_comments_while_nothing_comes() -> None:
    async def check(engine: SimulatedEngine) -> None:
        engine.faults.set("health_ok_generation_hangs")
        engine.faults.set("keepalive_comments", interval=0.01)
        async with WireClient(engine.port) as client:
            client.send(STREAM)
            await client.read_until(b": keep-alive\n\n\r\ne\r\n: keep-alive\n\n\r\n")
            assert events_of(client.received) == 0
            engine.faults.clear("health_ok_generation_hangs")
            assert (await client.answer()).body.endswith(DONE)

    with_engine(check)


def test_split_events_arrive_in_pieces_and_whole() -> None:
    body = {"messages": [{"role": "user", "content": "text 5"}], "max_tokens": 8, "ignore_eos": True, "stream": True}
    request = post("/v1/chat/completions", json.dumps(body).encode())

    async def check(engine: SimulatedEngine) -> None:
        plain = await ask(engine.port, request)
        assert not plain.body.isascii()
        engine.faults.set("split_events")
        async with WireClient(engine.port) as client:
            client.send(request)
            answer = await client.answer()
            assert len(client.reads) > 50
            assert any(_ends_inside_a_character(read) for read in client.reads)
        assert _without_ids(answer.body) == _without_ids(plain.body)

    with_engine(check)


def _ends_inside_a_character(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return True
    return False


def _without_ids(body: bytes) -> list[object]:
    events = [json.loads(line[6:]) for line in body.split(b"\n\n") if line.startswith(b"data: {")]
    return [event["choices"] for event in events]


def test_merged_events() -> None:
    async def check(engine: SimulatedEngine) -> None:
        plain = await ask(engine.port, STREAM)
        engine.faults.set("merged_events", events=4)
        merged = await ask(engine.port, STREAM)
        assert [events_of(chunk) + chunk.count(DONE) for chunk in merged.chunks] == [4, 4, 2]
        assert _without_ids(merged.body) == _without_ids(plain.body)

    with_engine(check)


def test_crlf_events() -> None:
    client = wire("crlf_events")
    assert b"data: [DONE]\r\n\r\n" in client.received
    assert b"\n\n" not in client.received.replace(b"\r\n", b"")


def test_no_space_data() -> None:
    client = wire("no_space_data")
    assert b"data:{" in client.received
    assert b"data: " not in client.received


def test_a_fault_can_be_put_on_one_path() -> None:
    async def check(engine: SimulatedEngine) -> None:
        engine.faults.set("status_burst", path="/v1/models", status=500)
        assert (await ask(engine.port, get("/v1/models"))).status == 500
        assert (await ask(engine.port, WHOLE)).status == 200

    with_engine(check)


def test_two_faults_at_once() -> None:
    async def check(engine: SimulatedEngine) -> None:
        engine.faults.set("crlf_events")
        engine.faults.set("done_twice")
        assert (await ask(engine.port, STREAM)).body.count(b"data: [DONE]\r\n\r\n") == 2

    with_engine(check)


def test_every_fault_is_tested() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_fault*.py"))
    assert [name for name in FAULTS if f'"{name}"' not in text] == []
