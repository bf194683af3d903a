"""One attempt at one replica: nothing is shown before the engine has answered, and nothing is left behind."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from gateway.errors import (
    EngineBusy,
    EngineFailure,
    EngineProtocolError,
    EngineRefused,
    EngineReset,
    EngineTimeout,
    EngineUnreachable,
)
from gateway.model import Endpoint, InferenceRequest
from gateway.routes import ROUTES
from gateway.steps.forward import Order, forward
from gateway.steps.observe import Observer
from gateway.telemetry.trace import Trace

ALIAS, MODEL = "internal-general", "served-7b"
EVENTS = "text/event-stream; charset=utf-8"


def _chunk(content: str | None = None, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content} if content else {}, "finish_reason": finish}
    return b"data: " + orjson.dumps({"id": "c-1", "model": MODEL, "choices": [choice]}) + b"\n\n"


USAGE = (
    b"data: "
    + orjson.dumps({"id": "c-1", "model": MODEL, "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
    + b"\n\n"
)
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error": {"message": "prompt: hunter2", "code": 500}}\n\n'
STREAM = _chunk("one") + _chunk("two", "stop") + USAGE + DONE
WHOLE = orjson.dumps(
    {
        "id": "c-1",
        "model": MODEL,
        "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
    }
)


class Case:
    """One call of ``forward``, what it did, and the record that it led to."""

    def __init__(self, fakes, *turns, path="/v1/chat/completions", stream=False, usage=False, limit=1 << 20) -> None:
        self.clock = fakes.Clock()
        self.exchange = fakes.Exchange("POST", path)
        self.lane = fakes.Lane(*turns)
        self.trace = Trace("req_1", 0.0, self.clock.now)
        self.trace.attempts = 1
        request = InferenceRequest(ROUTES["POST", path], ALIAS, {}, stream=stream, include_usage=usage)
        shown = b"x-gateway-alias: internal-general@1\r\n"
        self.order = Order(request, MODEL, shown, b"application/json", b'{"x":1}', 900.0, limit)

    async def go(self) -> None:
        observer = Observer(asyncio.get_running_loop(), self, self, self.clock)
        try:
            async with asyncio.timeout(5):
                await forward(self.exchange, self.order, self.lane, self.trace, self.clock)
        finally:
            observer.note(self.trace)
            observer.close()

    def observe(self, trace) -> None: ...

    def write(self, record) -> None:
        self.record = record


def _streamed(fakes, *steps, carriers=None, **fields):
    """A case whose engine answers 200 at once and then takes these steps, each in a turn of the loop of its own."""

    async def turn():
        answer, carrier = fakes.answer(b"", 200, EVENTS, complete=False)
        if carriers is not None:
            carriers.append(carrier)
        loop = asyncio.get_running_loop()

        def play(left):
            if left:
                left[0](answer)
                loop.call_soon(play, left[1:])

        loop.call_soon(play, steps)
        return answer

    return Case(fakes, turn, stream=True, **fields)


def _feed(data):
    return lambda answer: answer.feed(data)


def _end(answer):
    answer.end()


def _fail(error):
    return lambda answer: answer.fail(error)


def test_a_whole_answer_goes_out_under_the_callers_name(fakes):
    case = Case(fakes, fakes.says(WHOLE))
    asyncio.run(case.go())
    answer = orjson.loads(case.exchange.sent)
    assert answer == {**orjson.loads(WHOLE), "model": ALIAS}
    assert case.exchange.status == 200
    assert case.exchange.sent_headers[b"content-type"] == b"application/json"
    record = case.record
    assert (record["prompt_tokens"], record["completion_tokens"], record["cached_tokens"]) == (3, 2, 1)
    assert (record["status"], record["finish"], record["response_bytes"]) == (200, "stop", len(case.exchange.sent))


def test_the_headers_shown_are_ours_and_never_name_the_model_or_the_replica(fakes):
    for case in (Case(fakes, fakes.says(WHOLE)), Case(fakes, fakes.says(STREAM, 200, EVENTS), stream=True)):
        asyncio.run(case.go())
        assert set(case.exchange.sent_headers) <= {
            b"content-type",
            b"cache-control",
            b"x-accel-buffering",
            b"x-request-id",
            b"x-gateway-alias",
            b"x-gateway-overhead-ms",
            b"x-gateway-queue-ms",
        }
        assert case.exchange.sent_headers[b"x-request-id"] == b"req_1"
        assert case.exchange.sent_headers[b"x-gateway-alias"] == b"internal-general@1"
        assert MODEL.encode() not in case.exchange.sent + b"".join(case.exchange.sent_headers.values())


def test_what_the_engine_gets(fakes):
    case = Case(fakes, fakes.says(WHOLE))
    asyncio.run(case.go())
    assert case.lane.sent == [("/v1/chat/completions", b"application/json", b'{"x":1}', "req_1-1")]
    assert case.lane.totals == [900.0]


def test_a_stream_has_no_total_deadline(fakes):
    case = Case(fakes, fakes.says(STREAM, 200, EVENTS), stream=True)
    asyncio.run(case.go())
    assert case.lane.totals == [None]


def test_time_spent_by_the_engine_is_not_the_gateways(fakes):
    case = Case(fakes)
    case.clock.now += 0.002

    async def slow():
        case.clock.now += 3.0
        return fakes.answer(WHOLE)[0]

    case.lane = fakes.Lane(slow)
    asyncio.run(case.go())
    assert case.record["overhead_ms"] == pytest.approx(2.0, abs=0.01)
    assert float(case.exchange.sent_headers[b"x-gateway-overhead-ms"]) == pytest.approx(2.0, abs=0.01)


FAILURES = (EngineUnreachable(), EngineBusy(), EngineReset(), EngineTimeout(), EngineProtocolError(), EngineRefused())


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: error.reason)
def test_a_failure_to_send_shows_nothing_and_leaves_no_count(fakes, error):
    case = Case(fakes, fakes.fails(error))
    with pytest.raises(EngineFailure) as failed:
        asyncio.run(case.go())
    assert failed.value is error
    assert not case.exchange.started
    assert (case.lane.in_flight, case.lane.most_in_flight, case.lane.answers) == (0, 1, 0)


@pytest.mark.parametrize(
    ("status", "body", "code", "elsewhere"),
    [
        (500, b"", "engine_error", True),
        (503, b"", "no_ready_replica", True),
        (429, b"", "queue_full", True),
        (404, b'{"error": {"type": "NotFoundError"}}', "no_ready_replica", True),
        (404, b'{"detail": "Not Found"}', "unsupported_endpoint", False),
        (400, b'{"message": "hunter2"}', "invalid_request", False),
        (400, b"maximum context length is 8192 hunter2", "context_length_exceeded", False),
        (401, b"", "engine_error", False),
        (307, b"", "engine_error", False),
        (204, b"", "engine_error", False),
    ],
)
def test_an_answer_that_is_not_200_is_told_in_our_words(fakes, status, body, code, elsewhere):
    for stream in (False, True):
        case = Case(fakes, fakes.says(body, status), stream=stream)
        with pytest.raises(EngineFailure) as refused:
            asyncio.run(case.go())
        assert isinstance(refused.value, EngineBusy if code == "queue_full" else EngineRefused)
        assert (refused.value.spec.code, refused.value.elsewhere) == (code, elsewhere)
        assert "hunter2" not in refused.value.message
        assert not case.exchange.started


@pytest.mark.parametrize(
    ("path", "media", "passes"),
    [
        ("/v1/chat/completions", "application/json; charset=utf-8", True),
        ("/v1/chat/completions", "Application/JSON", True),
        ("/v1/chat/completions", "text/plain", False),
        ("/v1/chat/completions", "text/html", False),
        ("/v1/chat/completions", "text/event-stream", False),
        ("/v1/audio/transcriptions", "text/plain; charset=utf-8", True),
        ("/v1/audio/transcriptions", "text/vtt", True),
        ("/v1/audio/translations", "application/x-subrip", True),
        ("/v1/audio/transcriptions", "text/html", False),
    ],
)
def test_only_media_that_the_endpoint_may_answer_with_pass(fakes, path, media, passes):
    case = Case(fakes, fakes.says(WHOLE, 200, media), path=path)
    if passes:
        asyncio.run(case.go())
        assert case.exchange.sent_headers[b"content-type"] == media.partition(";")[0].lower().encode()
        return
    with pytest.raises(EngineProtocolError):
        asyncio.run(case.go())
    assert not case.exchange.started


def test_a_transcript_passes_as_it_is(fakes):
    case = Case(fakes, fakes.says(b"served-7b said", 200, "text/plain"), path="/v1/audio/transcriptions")
    asyncio.run(case.go())
    assert case.exchange.sent == b"served-7b said"
    assert case.order.request.route.endpoint is Endpoint.TRANSCRIPTIONS


@pytest.mark.parametrize("body", [b"", b"{", b"not json", b'{"a": NaN}'])
def test_a_body_that_is_not_json_is_the_engines_fault(fakes, body):
    case = Case(fakes, fakes.says(body))
    with pytest.raises(EngineProtocolError):
        asyncio.run(case.go())
    assert not case.exchange.started


def test_an_error_inside_a_200_is_an_error(fakes):
    case = Case(fakes, fakes.says(b'{"error": {"message": "hunter2", "code": 503}}'))
    with pytest.raises(EngineRefused) as refused:
        asyncio.run(case.go())
    assert refused.value.elsewhere
    assert "hunter2" not in refused.value.message


def test_an_answer_over_the_limit_is_the_engines_fault(fakes):
    case = Case(fakes, fakes.says(WHOLE), limit=len(WHOLE) - 1)
    with pytest.raises(EngineProtocolError):
        asyncio.run(case.go())
    exact = Case(fakes, fakes.says(WHOLE), limit=len(WHOLE))
    asyncio.run(exact.go())
    assert exact.exchange.status == 200


def test_a_large_answer_is_renamed_too(fakes):
    large = orjson.dumps({**orjson.loads(WHOLE), "text": "x" * 400_000})
    case = Case(fakes, fakes.says(large))
    asyncio.run(case.go())
    assert orjson.loads(case.exchange.sent) == {**orjson.loads(large), "model": ALIAS}


# --- streams


def test_a_stream_passes_event_by_event_under_the_callers_name(fakes):
    case = _streamed(
        fakes, _feed(_chunk("one")), _feed(_chunk("two", "stop")), _feed(USAGE), _feed(DONE), _end, usage=True
    )
    asyncio.run(case.go())
    assert case.exchange.sent == STREAM.replace(MODEL.encode(), ALIAS.encode())
    assert case.exchange.writes[0] == _chunk("one").replace(MODEL.encode(), ALIAS.encode())
    assert case.exchange.finished
    assert case.exchange.sent_headers[b"content-type"].startswith(b"text/event-stream")
    assert case.exchange.sent_headers[b"cache-control"] == b"no-cache"
    assert case.exchange.sent_headers[b"x-accel-buffering"] == b"no"
    record = case.record
    assert (record["status"], record["events"], record["finish"]) == (200, 3, "stop")
    assert (record["prompt_tokens"], record["completion_tokens"]) == (3, 2)
    assert record["response_bytes"] == len(case.exchange.sent)


def test_usage_that_the_client_did_not_ask_for_is_counted_and_hidden(fakes):
    case = _streamed(fakes, _feed(STREAM), _end)
    asyncio.run(case.go())
    assert b"usage" not in case.exchange.sent
    assert case.exchange.sent.endswith(DONE)
    assert case.record["completion_tokens"] == 2


@pytest.mark.parametrize("size", [1, 7, 64])
def test_how_the_bytes_are_cut_makes_no_difference(fakes, size):
    pieces = [_feed(STREAM[at : at + size]) for at in range(0, len(STREAM), size)]
    case = _streamed(fakes, *pieces, _end)
    asyncio.run(case.go())
    whole = _streamed(fakes, _feed(STREAM), _end)
    asyncio.run(whole.go())
    assert case.exchange.sent == whole.exchange.sent
    assert case.record["events"] == whole.record["events"]


def test_the_headers_are_held_until_the_first_event(fakes):
    held: list[bool] = []
    case = _streamed(
        fakes,
        lambda answer: answer.feed(b": waiting\n\n"),
        lambda answer: held.append(case.exchange.started),
        _feed(_chunk("one")),
        lambda answer: held.append(case.exchange.started),
        _feed(_chunk("two", "stop") + DONE),
        _end,
    )
    asyncio.run(case.go())
    assert held == [False, True]


@pytest.mark.parametrize("size", [1, 7, 64, len(STREAM)])
def test_the_lane_is_told_once_of_the_first_event_before_the_client_is(fakes, size):
    told: list[tuple[int, bool]] = []
    pieces = [_feed(STREAM[at : at + size]) for at in range(0, len(STREAM), size)]
    looks = _feed(b": waiting\n\n"), lambda _: told.append((case.lane.answers, case.exchange.started))
    case = _streamed(fakes, *looks, *pieces, _end)
    answered = case.lane.answered
    case.lane.answered = lambda: (told.append((case.lane.answers, case.exchange.started)), answered())
    asyncio.run(case.go())
    assert told == [(0, False), (0, False)]
    assert (case.lane.answers, case.exchange.started) == (1, True)


def test_a_whole_answer_has_no_first_event(fakes):
    case = Case(fakes, fakes.says(WHOLE))
    asyncio.run(case.go())
    assert case.lane.answers == 0


@pytest.mark.parametrize(
    ("steps", "kind", "elsewhere"),
    [
        ((_feed(ERROR + DONE), _end), EngineRefused, True),
        ((_feed(b'event: error\ndata: {"type": "error", "error": {}}\n\n'), _end), EngineRefused, True),
        ((_feed(b"data: {broken\n\n"), _end), EngineProtocolError, False),
        ((_feed(b"<html>\n\n"), _end), EngineProtocolError, False),
        ((_end,), EngineProtocolError, False),
        ((_fail(EngineReset()),), EngineReset, True),
        ((_fail(EngineTimeout()),), EngineTimeout, False),
        ((_feed(b": waiting\n\n"), _fail(EngineReset())), EngineReset, True),
        ((_feed(b": waiting\n\n"), _feed(ERROR), _end), EngineRefused, True),
    ],
    ids=range(9),
)
def test_a_failure_before_the_first_event_shows_nothing(fakes, steps, kind, elsewhere):
    case = _streamed(fakes, *steps)
    with pytest.raises(kind) as failed:
        asyncio.run(case.go())
    assert not case.exchange.started
    assert failed.value.elsewhere is elsewhere
    assert (case.lane.in_flight, case.lane.answers) == (0, 0)


@pytest.mark.parametrize(
    "steps",
    [
        (_feed(ERROR + DONE), _end),
        (_feed(b"data: {broken\n\n"),),
        (_fail(EngineReset()),),
        (_fail(EngineTimeout()),),
        (_end,),
        (_feed(DONE), _end),
    ],
    ids=range(6),
)
def test_a_failure_after_it_raises_with_the_stream_left_open(fakes, steps):
    """``[DONE]`` proves nothing: without a finish_reason the answer is cut. Who answers the error ends the stream."""
    case = _streamed(fakes, _feed(_chunk("one")), *steps)
    with pytest.raises(EngineFailure):
        asyncio.run(case.go())
    assert case.exchange.started
    assert not case.exchange.finished
    assert b"[DONE]" not in case.exchange.sent
    assert b"hunter2" not in case.exchange.sent
    assert case.record["status"] == 200
    assert case.record["events"] >= 1
    assert (case.lane.in_flight, case.lane.answers) == (0, 1)


def test_what_stood_before_a_fault_in_the_same_read_is_shown_if_the_stream_had_begun(fakes):
    case = _streamed(fakes, _feed(_chunk("one")), _feed(_chunk("two") + ERROR), _end)
    with pytest.raises(EngineRefused):
        asyncio.run(case.go())
    assert b"two" in case.exchange.sent
    fresh = _streamed(fakes, _feed(_chunk("one") + ERROR), _end)
    with pytest.raises(EngineRefused):
        asyncio.run(fresh.go())
    assert not fresh.exchange.started


def test_a_reset_after_the_last_event_is_no_failure(fakes):
    case = _streamed(fakes, _feed(STREAM), _fail(EngineReset()))
    asyncio.run(case.go())
    assert case.exchange.finished
    assert case.exchange.sent.endswith(DONE)


def test_an_engine_that_answers_a_stream_with_json_is_at_fault(fakes):
    case = Case(fakes, fakes.says(WHOLE), stream=True)
    with pytest.raises(EngineProtocolError):
        asyncio.run(case.go())
    assert not case.exchange.started


@pytest.mark.parametrize(
    ("steps", "clean"), [((_feed(STREAM), _end), True), ((_feed(_chunk("one")), _fail(EngineReset())), False)]
)
def test_the_connection_is_let_go_once_and_kept_only_after_a_clean_end(fakes, steps, clean):
    carriers: list = []
    case = _streamed(fakes, *steps, carriers=carriers)
    if clean:
        asyncio.run(case.go())
    else:
        with pytest.raises(EngineReset):
            asyncio.run(case.go())
    assert [carrier.released for carrier in carriers] == [[clean]]


@pytest.mark.parametrize("begun", [False, True])
def test_a_client_that_leaves_frees_the_engine_at_once(fakes, begun):
    carriers: list = []

    async def body():
        reached = asyncio.Event()
        first = _chunk("one") if begun else b": waiting\n\n"
        case = _streamed(fakes, _feed(first), lambda _: reached.set(), carriers=carriers)
        task = asyncio.create_task(case.go())
        await reached.wait()
        assert case.lane.in_flight == 1
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert case.lane.in_flight == 0
        assert case.exchange.started is begun

    asyncio.run(body())
    assert [carrier.released for carrier in carriers] == [[False]]


def test_what_comes_after_the_client_left_is_ignored(fakes):
    """The engine's bytes may already be in hand when the task is cancelled."""

    async def body():
        answers: list = []
        began = asyncio.Event()
        case = _streamed(fakes, answers.append, _feed(_chunk("one")), lambda _: began.set())
        task = asyncio.create_task(case.go())
        await began.wait()
        task.cancel()
        await asyncio.wait([task])
        answers[0].feed(_chunk("two", "stop") + DONE)
        answers[0].end()
        assert not case.exchange.finished

    asyncio.run(body())
