"""One inference: what counts as its end, what it takes from hostile engines, and that no connection is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random

import orjson
import pytest

from gateway.errors import (
    EngineBusy,
    EngineClosing,
    EngineDead,
    EngineFailure,
    EngineProtocolError,
    EngineReset,
    EngineTimeout,
    EngineUnreachable,
)
from gateway.fleet.inference import InferenceRefused, Timing, infer
from gateway.fleet.warmup import Kind, Size, call
from gateway.wire.answer import Answer, UpstreamLimits
from gateway.wire.deadline import Sweeper
from gateway.wire.upstream import UpstreamPool
from loadtests.engine.harness import running_engine, until
from loadtests.engine.server import SimulatedEngine
from loadtests.engine.spec import EMBED, EngineSpec, instant_spec
from loadtests.scripted import Act, ScriptedServer, Step, chunked, ok

PATIENCE = 10.0
SIZE = Size(16, 4)
JSON = b"content-type: application/json"
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


class Lane:
    """A pool as a replica would use it."""

    def __init__(self, pool: UpstreamPool) -> None:
        self.pool = pool

    def send(
        self, path: str, content_type: bytes, body: bytes, request_id: str, *, total: float | None
    ) -> Awaitable[Answer]:
        lines = f"POST {path} HTTP/1.1\r\nhost: e\r\ncontent-length: {len(body)}\r\nx-request-id: {request_id}\r\n"
        return self.pool.request(lines.encode() + b"content-type: %b\r\n\r\n" % content_type, body, total=total)


@contextlib.asynccontextmanager
async def lane_to(port: int) -> AsyncIterator[Lane]:
    loop = asyncio.get_running_loop()
    sweeper = Sweeper(loop, 0.01)
    pool = UpstreamPool(loop, sweeper, "127.0.0.1", port, UpstreamLimits(connect=5.0))
    try:
        yield Lane(pool)
    finally:
        pool.close()
        sweeper.close()


def ask(kind: Kind = Kind.COMPLETIONS, size: Size = SIZE):
    return call(kind, "sim-model", size, salt="salt", random=Random(1))


async def do(lane: Lane, kind: Kind = Kind.COMPLETIONS, patience: float = PATIENCE) -> Timing:
    return await infer(lane, ask(kind), "warmup-1", patience, time.monotonic)


def with_engine(body: Callable[[SimulatedEngine, Lane], Awaitable[None]], spec: EngineSpec | None = None) -> None:
    async def main() -> None:
        async with running_engine(spec) as engine, lane_to(engine.port) as lane:
            await body(engine, lane)

    asyncio.run(main())


def scripted(*steps: Step, kind: Kind = Kind.COMPLETIONS, patience: float = PATIENCE) -> Timing:
    """The inference against an engine that plays these steps, however it ends; no connection outlives it in use."""

    async def main() -> Timing:
        async with ScriptedServer(lambda _: steps) as server, lane_to(server.port) as lane:
            try:
                return await do(lane, kind, patience)
            finally:
                await until(lambda: lane.pool.open == lane.pool.idle)

    return asyncio.run(main())


def event(text: str = "x", finish: str | None = None) -> bytes:
    chunk = {"id": "c", "model": "m", "choices": [{"index": 0, "text": text, "finish_reason": finish}]}
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def refusing(status: bytes, body: bytes) -> bytes:
    return ok(body, JSON).replace(b"200 OK", status)


# --- an engine that is well


def test_an_inference_is_timed_and_its_text_counted():
    async def body(engine, lane):
        timing = await do(lane)
        assert timing.tokens == SIZE.output
        assert 0.01 <= timing.first_token < timing.total
        assert timing.total >= 0.01 * SIZE.output
        request = engine.requests[-1]
        assert (request.path, request.header(b"x-request-id")) == ("/v1/completions", b"warmup-1")
        assert request.header(b"content-type") == b"application/json"

    with_engine(body, EngineSpec(step_time=0.01))


def test_the_first_token_is_waited_for_and_not_the_head():
    async def body(engine, lane):
        timing = await do(lane)
        assert timing.first_token >= 0.2

    with_engine(body, EngineSpec(step_time=0.001, cold_start_penalty=0.2))


def test_a_connection_is_used_again_after_a_whole_answer():
    async def body(engine, lane):
        for _ in range(3):
            await do(lane)
        assert (lane.pool.open, lane.pool.idle, engine.open_connections) == (1, 1, 1)

    with_engine(body)


@pytest.mark.parametrize("kind", [Kind.EMBEDDINGS, Kind.POOLING])
def test_a_model_that_generates_nothing_is_timed_to_the_end_of_its_answer(kind):
    async def body(engine, lane):
        timing = await do(lane, kind)
        assert timing.first_token == timing.total > 0
        assert timing.tokens == 0
        assert lane.pool.idle == 1

    with_engine(body, instant_spec(tasks=frozenset({EMBED})))


class Told:
    """A sender whose answer brings the same bytes again and again, and then these."""

    def __init__(self, media: bytes, data: bytes, times: int, last: bytes) -> None:
        self.limits = UpstreamLimits()
        self.loop = asyncio.get_running_loop()
        self.released = 0
        self._answer = Answer(self, 200, [(b"content-type", media)])
        self._data, self._times, self._last = data, times, last

    def pause(self) -> None: ...

    def resume(self) -> None:
        self.loop.call_soon(self._play)

    def release(self, *, clean: bool) -> None:
        self.released += clean

    def _play(self) -> None:
        for _ in range(self._times):
            self._answer.feed(self._data)
        self._answer.feed(self._last)
        self._answer.end()

    async def send(self, *_: object, total: float | None) -> Answer:
        return self._answer


@pytest.mark.parametrize(
    ("kind", "media", "data", "last"),
    [
        (Kind.POOLING, b"application/json", b'{"data":[' + b"0.125," * 10_000, b"0]}"),
        (Kind.COMPLETIONS, b"text/event-stream", event() * 100, event("x", "stop") + DONE),
    ],
    ids=["vectors", "events"],
)
def test_a_long_answer_is_read_and_not_kept(kind, media, data, last):
    async def main() -> tuple[int, int]:
        sender = Told(media, data, 400, last)
        tracemalloc.start()
        try:
            await infer(sender, ask(kind), "warmup-1", PATIENCE, time.monotonic)
            return sender.released, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    released, most = asyncio.run(main())
    assert (released, most < 1 << 20) == (1, True), most


def test_a_stream_in_any_cut_is_the_same():
    stream = event() + b": keep-alive\n\n" + event("") + event("y", "length") + DONE
    pieces = [chunk(stream[place : place + 1]) for place in range(len(stream))]
    assert scripted(EVENTS, *pieces, END).tokens == 2


def test_comments_are_no_first_token():
    timing = scripted(EVENTS, chunk(b": keep-alive\n\n"), 0.1, chunk(event("x", "stop")), chunk(DONE), END)
    assert timing.first_token >= 0.1


def test_nothing_is_missing_behind_the_last_event():
    assert scripted(EVENTS, chunk(event("x", "stop") + DONE), Act.RESET).tokens == 1


# --- an engine that refuses


ERROR = b'{"error":{"message":"The model does not support Embeddings API","type":"BadRequestError","code":400}}'
FLAT = b'{"object":"error","message":"This model does not appear to be an embedding model by default.","code":400}'


@pytest.mark.parametrize(
    ("answer", "status", "other_kind"),
    [
        (refusing(b"404 No", b'{"detail":"Not Found"}'), 404, False),
        (refusing(b"400 No", b'{"error":{"message":"too long","code":400}}'), 400, False),
        (refusing(b"400 No", ERROR), 400, True),
        (refusing(b"400 No", FLAT), 400, True),
        (
            refusing(b"501 No", b'{"error":{"message":"This server does not support completions.","code":501}}'),
            501,
            True,
        ),
        (refusing(b"500 No", b"<html>"), 500, False),
        (refusing(b"401 No", b'{"error":"Unauthorized"}'), 401, False),
        (refusing(b"307 Go", b""), 307, False),
        (ok(ERROR, JSON), 400, True),
        (ok(FLAT, JSON), 400, True),
        (ok(b'{"error":{"code":404}}', JSON), 404, False),
    ],
)
@pytest.mark.parametrize("kind", [Kind.COMPLETIONS, Kind.EMBEDDINGS])
def test_a_refusal_carries_the_status_and_whether_the_kind_was_wrong(answer, status, other_kind, kind):
    with pytest.raises(InferenceRefused) as caught:
        scripted(answer, kind=kind)
    assert (caught.value.status, caught.value.other_kind) == (status, other_kind)
    assert "embedding" not in str(caught.value).lower() + caught.value.message.lower()


@pytest.mark.parametrize(
    ("message", "status", "wanted"),
    [
        ("The engine is currently busy and cannot accept new requests.", 503, EngineBusy),
        ("The request queue is full.", 503, EngineBusy),
        ("anything", 429, EngineBusy),
        ("cannot schedule new futures after shutdown", 500, EngineClosing),
        ("EngineCore encountered an issue. See stack trace", 500, EngineDead),
    ],
)
def test_what_an_engine_says_of_itself_is_raised_as_such(message, status, wanted):
    body = orjson.dumps({"error": {"message": message, "code": status}})
    with pytest.raises(wanted):
        scripted(refusing(b"%d No" % status, body))
    with pytest.raises(wanted):
        scripted(EVENTS, chunk(b"data: " + body + b"\n\n" + DONE), END)


def test_a_long_error_is_one_all_the_same():
    with pytest.raises(InferenceRefused):
        scripted(refusing(b"400 No", b'{"error":"' + b"x" * 5_000_000 + b'"}'))


# --- an engine that is not well


FAULTS = {
    "reset_mid_stream": EngineReset,
    "reset_before_response": EngineReset,
    "close_mid_stream": EngineReset,
    "truncate_chunk": EngineReset,
    "error_event_first": EngineDead,
    "error_event_mid": EngineDead,
    "status_burst": InferenceRefused,
    "draining": EngineClosing,
    "malformed_sse": EngineProtocolError,
    "invalid_utf8": EngineProtocolError,
    "huge_line": EngineFailure,
    "bad_status_line": EngineProtocolError,
    "both_lengths": EngineProtocolError,
    "giant_headers": EngineProtocolError,
    "informational_flood": EngineProtocolError,
    "wrong_content_type": EngineProtocolError,
    "accept_and_hang": EngineTimeout,
    "headers_then_hang": EngineTimeout,
    "stall_mid_stream": EngineTimeout,
    "health_ok_generation_hangs": EngineTimeout,
    "paused": EngineTimeout,
}


@pytest.mark.parametrize(("fault", "wanted"), FAULTS.items(), ids=FAULTS)
def test_each_fault_is_a_failure_and_leaves_no_connection(fault, wanted):
    async def body(engine, lane):
        engine.faults.set(fault)
        with pytest.raises(wanted):
            await infer(
                lane, ask(size=Size(16, 16)), "warmup-1", 0.3 if wanted is EngineTimeout else PATIENCE, time.monotonic
            )
        await until(lambda: lane.pool.open == lane.pool.idle)
        engine.faults.clear()
        await do(lane)

    with_engine(body)


HARMLESS = ("done_missing", "done_twice", "keepalive_comments", "crlf_events", "no_space_data", "merged_events")


@pytest.mark.parametrize("fault", [*HARMLESS, "wrong_model_name", "headers_late", "bytes_after_end", "split_events"])
def test_what_does_not_spoil_an_answer_is_none(fault):
    async def body(engine, lane):
        engine.faults.set(fault)
        assert (await do(lane)).tokens == SIZE.output

    with_engine(body)


@pytest.mark.parametrize(
    "answer",
    [
        ok(b"<html>", b"content-type: text/html"),
        ok(b"{}"),
        ok(b"{}", JSON),
        ok(b"nonsense", JSON),
        ok(b"[" * 100_000, JSON),
        ok(b'"' + b"x" * 100_000, JSON),
        ok(b"data: nonsense\n\n", b"content-type: text/event-stream"),
        ok(DONE, b"content-type: text/event-stream"),
        ok(event(), b"content-type: text/event-stream"),
        ok(b"", b"content-type: text/event-stream"),
        chunked(event("x", "stop"), DONE),
        b"nonsense\r\n\r\n",
    ],
)
def test_what_is_no_stream_is_no_answer_to_a_completion(answer):
    with pytest.raises(EngineProtocolError):
        scripted(answer)


@pytest.mark.parametrize(
    "answer",
    [ok(b"nonsense", JSON), ok(b"7", JSON), ok(b"x" * 100_000, JSON), ok(event(), b"content-type: text/event-stream")],
)
def test_what_is_no_json_is_no_answer_to_an_embedding(answer):
    with pytest.raises(EngineProtocolError):
        scripted(answer, kind=Kind.EMBEDDINGS)


def test_an_engine_that_is_not_there():
    async def main() -> None:
        async with ScriptedServer(lambda _: []) as server:
            port = server.port
        async with lane_to(port) as lane:
            with pytest.raises(EngineUnreachable):
                await do(lane)

    asyncio.run(main())


def test_an_answer_that_drips_ends_in_time():
    begun = time.monotonic()
    with pytest.raises(EngineTimeout):
        scripted(EVENTS, *[chunk(event()), 0.02] * 500, patience=0.2)
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("fault", ["accept_and_hang", "headers_then_hang", "stall_mid_stream"])
def test_cancelling_closes_the_connection_at_once(fault):
    async def body(engine, lane):
        engine.faults.set(fault)
        task = asyncio.ensure_future(do(lane))
        await until(lambda: engine.open_connections == 1 and len(engine.requests) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert lane.pool.open == 0
        await until(lambda: engine.open_connections == 0)

    with_engine(body)


def test_a_connection_that_the_pool_may_not_make_is_a_full_queue():
    async def main() -> None:
        async with running_engine() as engine, lane_to(engine.port) as lane:
            lane.pool.limits = UpstreamLimits(max_connections=0)
            with pytest.raises(EngineBusy):
                await do(lane)

    asyncio.run(main())
