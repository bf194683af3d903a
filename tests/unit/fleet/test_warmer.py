"""Whole warmups and canaries against simulated engines: cold, full, of another kind, and failing."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
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
from gateway.fleet.engines.adapter import GENERIC
from gateway.fleet.inference import InferenceRefused
from gateway.fleet.warmer import NoRoute, Warmth, canary, warm_up
from gateway.fleet.warmup import Kind
from gateway.policy.fleet import Shape, Warmup
from gateway.wire.answer import Answer, UpstreamLimits
from gateway.wire.deadline import Sweeper
from gateway.wire.upstream import UpstreamPool
from loadtests.engine.harness import running_engine, until
from loadtests.engine.server import SimulatedEngine
from loadtests.engine.spec import CLASSIFY, EMBED, GENERATE, SCORE, TRANSCRIBE, EngineSpec, instant_spec
from loadtests.scripted import ScriptedServer, ok

SALTED = replace(GENERIC, cache_salt=True)
POLICY = Warmup(
    shapes=(Shape(prompt=32, output=4), Shape(prompt=128, output=8), Shape(context=0.9, output=2)),
    concurrency=2,
    ratio=1.3,
    rounds=2,
    limit=20.0,
)
CONTEXT = 1024
MODEL = "sim-model"


class Lane:
    """A pool as a replica would use it. ``before`` is told the number of each request, from 0, before it goes out."""

    def __init__(self, pool: UpstreamPool) -> None:
        self.pool = pool
        self.sent = 0
        self.before: Callable[[int], None] = lambda _: None

    def send(
        self, path: str, content_type: bytes, body: bytes, request_id: str, *, total: float | None
    ) -> Awaitable[Answer]:
        self.before(self.sent)
        self.sent += 1
        lines = f"POST {path} HTTP/1.1\r\nhost: e\r\ncontent-length: {len(body)}\r\nx-request-id: {request_id}\r\n"
        return self.pool.request(lines.encode() + b"content-type: %b\r\n\r\n" % content_type, body, total=total)


@contextlib.asynccontextmanager
async def lane_to(port: int) -> AsyncIterator[Lane]:
    loop = asyncio.get_running_loop()
    sweeper = Sweeper(loop, 0.01)
    pool = UpstreamPool(loop, sweeper, "127.0.0.1", port, UpstreamLimits(connect=5.0))
    try:
        yield Lane(pool)
        await until(lambda: pool.open == pool.idle)
    finally:
        pool.close()
        sweeper.close()


def with_engine(body: Callable[[SimulatedEngine, Lane], Awaitable[None]], spec: EngineSpec | None = None) -> None:
    """Run the body, after which no connection may be in use."""

    async def main() -> None:
        async with running_engine(spec or instant_spec(max_model_len=CONTEXT)) as engine, lane_to(engine.port) as lane:
            await body(engine, lane)

    asyncio.run(main())


def still() -> float:
    """A clock by which everything takes equally long, on a busy machine too."""
    return 0.0


async def warm(
    lane: Lane, policy: Warmup = POLICY, *, models=(MODEL,), context=CONTEXT, adapter=SALTED, clock=still
) -> Warmth:
    return await warm_up(lane, models, context, adapter, policy, clock=clock, random=Random(1))


async def look(lane: Lane, limit: float = 5.0, kind: Kind | None = None):
    return await canary(lane, MODEL, SALTED, limit, clock=time.monotonic, random=Random(1), kind=kind)


def bodies(engine: SimulatedEngine) -> list[dict]:
    return [orjson.loads(request.body) for request in engine.requests]


# --- warm and cold


def test_a_warm_engine_needs_a_check_and_as_many_rounds_as_have_to_agree():
    async def body(engine, lane):
        warmth = await warm(lane)
        assert (warmth.settled, warmth.rounds, warmth.kind) == (True, 3, Kind.COMPLETIONS)
        assert lane.sent == 1 + 3 * 6
        assert [len(said["prompt"]) for said in bodies(engine)[:1]] == [16]
        rounds = [sorted(len(said["prompt"]) for said in bodies(engine)[start : start + 6]) for start in (1, 7, 13)]
        assert rounds == [[32, 32, 128, 128, 921, 921]] * 3

    with_engine(body)


def test_a_cold_engine_is_warm_afterwards():
    async def body(engine, lane):
        warmth = await warm(lane, replace(POLICY, ratio=3.0), clock=time.monotonic)
        assert warmth.settled
        assert warmth.rounds > 3
        assert not warmth.words.startswith("first answer after 0.0 s")
        assert warmth.seconds > 0.2
        assert (await look(lane)).first_token < 0.1

    cold = EngineSpec(
        max_model_len=CONTEXT, step_time=0.002, prefill_tokens_per_second=0.0, cold_factor=60.0, cold_requests=8
    )
    with_engine(body, cold)


def test_the_shapes_go_out_at_once_and_no_more_than_they_are():
    async def body(engine, lane):
        await warm(lane)
        assert lane.pool.open == 6

    with_engine(body, EngineSpec(max_model_len=CONTEXT, step_time=0.002))


def test_it_is_marked_salted_and_never_answered_by_a_cache():
    async def body(engine, lane):
        await warm(lane)
        ids = [request.header(b"x-request-id") for request in engine.requests]
        assert all(each.startswith(b"warmup-") for each in ids)
        assert len(set(ids)) == len(ids)
        salts = {said["cache_salt"] for said in bodies(engine)}
        assert len(salts) == 1
        lines = engine.metrics_text().decode().splitlines()
        hits = [line for line in lines if line.startswith("vllm:prefix_cache_hits_total")]
        queries = [line for line in lines if line.startswith("vllm:prefix_cache_queries_total")]
        assert float(hits[0].split()[-1]) == 0.0
        assert float(queries[0].split()[-1]) > 0.0

    with_engine(body)


def test_ids_may_come_from_outside_and_a_salt_goes_only_where_it_is_taken():
    async def body(engine, lane):
        numbers = itertools.count()
        await warm_up(
            lane,
            [MODEL],
            CONTEXT,
            GENERIC,
            POLICY,
            clock=still,
            random=Random(1),
            new_id=lambda: f"n{next(numbers)}",
        )
        assert engine.requests[0].header(b"x-request-id") == b"warmup-n0"
        assert not any("cache_salt" in said for said in bodies(engine))

    with_engine(body)


def test_without_shapes_nothing_is_sent():
    async def body(engine, lane):
        warmth = await warm(lane, replace(POLICY, shapes=()))
        assert (warmth.settled, warmth.rounds, lane.sent) == (True, 0, 0)

    with_engine(body)


def test_sglang_is_warmed_up_too():
    async def body(engine, lane):
        warmth = await warm(lane)
        assert (warmth.settled, warmth.rounds, warmth.kind) == (True, 3, Kind.COMPLETIONS)

    with_engine(body, instant_spec(persona="sglang", max_model_len=CONTEXT))


# --- what does not fit


def test_a_shape_that_is_refused_is_left_out_with_a_word():
    async def body(engine, lane):
        warmth = await warm(lane, context=CONTEXT * 4)
        assert warmth.settled
        assert "; shape 3 left out: refused with 400" in warmth.words
        assert warmth.words.count("left out") == 1
        assert lane.sent == 1 + 6 + 2 * 4

    with_engine(body)


def test_a_shape_by_context_needs_to_know_it():
    async def body(engine, lane):
        warmth = await warm(lane, context=None)
        assert warmth.settled
        assert "shape 3 left out" in warmth.words
        assert lane.sent == 1 + 3 * 4

    with_engine(body)


@pytest.mark.parametrize(("shapes", "context"), [((Shape(context=0.5),), None), ((Shape(context=1.0),), CONTEXT * 4)])
def test_without_a_shape_left_nothing_has_settled(shapes, context):
    async def body(engine, lane):
        warmth = await warm(lane, replace(POLICY, shapes=shapes), context=context)
        assert not warmth.settled
        assert "no first token was seen; shape 1 left out" in warmth.words

    with_engine(body)


# --- kinds


@pytest.mark.parametrize(
    ("task", "kind", "tried"),
    [
        (GENERATE, Kind.COMPLETIONS, 1),
        (EMBED, Kind.EMBEDDINGS, 2),
        (CLASSIFY, Kind.CLASSIFICATION, 4),
        (SCORE, Kind.SCORES, 5),
    ],
)
def test_what_a_model_answers_is_found_out(task, kind, tried):
    async def body(engine, lane):
        warmth = await warm(lane)
        assert (warmth.settled, warmth.kind, lane.sent) == (True, kind, tried + 18)
        await look(lane)
        await look(lane, kind=kind)
        assert lane.sent == tried + 18 + tried + 1

    with_engine(body, instant_spec(tasks=frozenset({task}), max_model_len=CONTEXT))


def test_a_model_that_answers_nothing_known_cannot_be_warmed():
    async def body(engine, lane):
        warmth = await warm(lane)
        assert (warmth.settled, warmth.rounds, warmth.answered, warmth.kind) == (False, 0, True, None)
        assert warmth.words == (
            "the model answers no route that can be warmed (completions 404, embeddings 404, pooling 404, "
            "classification 404, scores 404)"
        )
        with pytest.raises(NoRoute):
            await look(lane)

    with_engine(body, instant_spec(tasks=frozenset({TRANSCRIBE})))


def served_by(answers: dict[bytes, bytes]) -> Warmth:
    async def main() -> Warmth:
        def script(asked):
            yield answers[asked.head.split(b" ")[1]]

        async with ScriptedServer(script) as server, lane_to(server.port) as lane:
            return await warm(lane)

    return asyncio.run(main())


JSON = b"content-type: application/json"
OLD = b'{"error":{"message":"The model does not support Completions API","code":400}}'
BROKEN = ok(b"{}", JSON).replace(b"200 OK", b"500 No")


@pytest.mark.parametrize("completions", [ok(OLD, JSON), ok(OLD, JSON).replace(b"200 OK", b"400 No"), BROKEN])
def test_another_route_may_answer_where_the_first_refuses_or_fails(completions):
    vector = ok(b'{"data":[{"embedding":[0.5]}]}', JSON)
    warmth = served_by({b"/v1/completions": completions, b"/v1/embeddings": vector})
    assert (warmth.settled, warmth.kind) == (True, Kind.EMBEDDINGS)


def test_an_error_is_raised_when_no_other_route_answers():
    routes = (b"/v1/embeddings", b"/pooling", b"/classify", b"/v1/score")
    missing = ok(b"{}", JSON).replace(b"200 OK", b"404 No")
    with pytest.raises(InferenceRefused) as caught:
        served_by({b"/v1/completions": BROKEN, **dict.fromkeys(routes, missing)})
    assert caught.value.status == 500


# --- names


def test_further_names_get_one_short_request_each_and_eight_at_most():
    names = tuple(f"adapter-{number}" for number in range(10))

    async def body(engine, lane):
        warmth = await warm(lane, models=(MODEL, *names))
        assert warmth.settled
        assert warmth.words.endswith("; 2 of 10 further names not warmed")
        asked = [(said["model"], len(said["prompt"])) for said in bodies(engine)]
        assert {model for model, _ in asked[:19]} == {MODEL}
        assert sorted(asked[19:]) == [(name, 32) for name in names[:8]]
        assert lane.pool.open <= 6

    with_engine(body, instant_spec(max_model_len=CONTEXT, more_models=names))


def test_a_name_that_is_no_longer_served_is_no_failure():
    async def body(engine, lane):
        warmth = await warm(lane, models=(MODEL, "gone", "there"))
        assert warmth.settled
        assert warmth.words.endswith("; 1 of 2 further names not warmed")

    with_engine(body, instant_spec(max_model_len=CONTEXT, more_models=("there",)))


def test_an_engine_that_dies_over_a_further_name_has_failed():
    async def body(engine, lane):
        lane.before = lambda number: number == 19 and engine.faults.set("reset_before_response")
        with pytest.raises(EngineReset):
            await warm(lane, models=(MODEL, "there"))

    with_engine(body, instant_spec(max_model_len=CONTEXT, more_models=("there",)))


def test_a_limit_that_passes_over_further_names_leaves_the_first_settled():
    async def body(engine, lane):
        lane.before = lambda number: number == 19 and engine.faults.set("accept_and_hang")
        warmth = await warm(lane, replace(POLICY, limit=1.5), models=(MODEL, "there"))
        assert warmth.settled
        assert warmth.words.endswith("; the limit of 1.5 s passed")

    with_engine(body, instant_spec(max_model_len=CONTEXT, more_models=("there",)))


# --- the limit


@pytest.mark.parametrize("fault", ["accept_and_hang", "health_ok_generation_hangs"])
def test_an_engine_that_answers_nothing_by_the_limit_is_told_apart(fault):
    async def body(engine, lane):
        engine.faults.set(fault)
        warmth = await warm(lane, replace(POLICY, limit=0.2))
        assert warmth[:2] == (False, 0)
        assert (warmth.words, warmth.answered, warmth.kind) == ("no answer in 0.2 s", False, None)
        await until(lambda: engine.open_connections == lane.pool.open == 0)

    with_engine(body)


@pytest.mark.parametrize("fault", ["accept_and_hang", "health_ok_generation_hangs"])
def test_one_hanging_request_is_bounded_by_the_limit(fault):
    async def body(engine, lane):
        lane.before = lambda number: number == 7 and engine.faults.set(fault)
        begun = time.monotonic()
        warmth = await warm(lane, replace(POLICY, limit=1.5))
        assert time.monotonic() - begun < 5
        assert (warmth.settled, warmth.rounds, warmth.answered) == (False, 1, True)
        assert "in the last round (shape" in warmth.words
        assert warmth.words.endswith("; the limit of 1.5 s passed")
        await until(lambda: engine.open_connections == lane.pool.open)

    with_engine(body)


def test_times_that_keep_changing_never_settle():
    random, now = Random(1), 0.0

    def clock() -> float:
        nonlocal now
        now += 10 ** random.uniform(0, 6)
        return now

    async def body(engine, lane):
        warmth = await warm(lane, replace(POLICY, limit=1.0), clock=clock)
        assert (warmth.settled, warmth.kind) == (False, Kind.COMPLETIONS)
        assert " to " in warmth.words or warmth.rounds < 2

    with_engine(body)


@pytest.mark.parametrize("after", [0, 1, 9])
def test_cancelling_closes_every_connection_in_use(after):
    async def body(engine, lane):
        lane.before = lambda number: number == after and engine.faults.set("headers_then_hang")
        task = asyncio.ensure_future(warm(lane))
        await until(lambda: lane.sent > after)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: lane.pool.open == lane.pool.idle == engine.open_connections)

    with_engine(body)


# --- engines that fail or are full


FAULTS = {
    "reset_mid_stream": EngineReset,
    "reset_before_response": EngineReset,
    "error_event_first": EngineDead,
    "status_burst": InferenceRefused,
    "draining": EngineClosing,
    "malformed_sse": EngineProtocolError,
    "bad_status_line": EngineProtocolError,
    "refuse": EngineUnreachable,
}


@pytest.mark.parametrize("after", [0, 1, 10])
@pytest.mark.parametrize(("fault", "wanted"), FAULTS.items(), ids=FAULTS)
def test_an_engine_that_fails_meanwhile_is_a_failure(fault, wanted, after):
    async def body(engine, lane):
        def fail(number):
            if number == after:
                engine.faults.set(fault, **({"after_events": 1} if fault.endswith(("stream", "sse")) else {}))
                if fault == "refuse":
                    lane.pool.limits = UpstreamLimits(connect=5.0, keep_alive=0.0)
                    for connection in tuple(lane.pool._idle):
                        connection.abort()

        lane.before = fail
        with pytest.raises(wanted):
            await warm(lane)

    with_engine(body)


def test_the_first_failure_ends_the_requests_beside_it():
    async def body(engine, lane):
        def fail(number):
            if number == 1:
                engine.faults.set("accept_and_hang", count=5)
            if number == 6:
                engine.faults.set("status_burst", count=1)

        lane.before = fail
        begun = time.monotonic()
        with pytest.raises(EngineFailure):
            await warm(lane)
        assert time.monotonic() - begun < POLICY.limit / 2

    with_engine(body)


def test_requests_that_meet_a_full_queue_go_out_again_one_by_one():
    async def body(engine, lane):
        warmth = await warm(lane)
        assert (warmth.settled, warmth.kind) == (True, Kind.COMPLETIONS)
        assert lane.sent > 1 + 6 * warmth.rounds
        assert "turned" not in warmth.words

    spec = EngineSpec(max_model_len=CONTEXT, step_time=0.002, max_num_queued_requests=2)
    with_engine(body, spec)


BUSY = {"status": 503, "message": "The engine is currently busy and cannot accept new requests."}


def test_a_queue_that_turns_some_away_for_good_is_told():
    async def body(engine, lane):
        # One is turned away in the first round, and again when it alone is left.
        lane.before = lambda number: number in (6, 7) and engine.faults.set("status_burst", count=1, **BUSY)
        warmth = await warm(lane)
        assert warmth.settled
        assert "; a full queue turned 1 requests away" in warmth.words

    with_engine(body)


@pytest.mark.parametrize("after", [0, 1])
def test_an_engine_that_is_full_all_the_time_is_busy(after):
    async def body(engine, lane):
        lane.before = lambda number: number == after and engine.faults.set("status_burst", **BUSY)
        with pytest.raises(EngineBusy):
            await warm(lane)

    with_engine(body)


# --- canaries


def test_a_canary_is_small_and_marked():
    async def body(engine, lane):
        timing = await look(lane)
        assert timing.tokens == 2
        (said,) = bodies(engine)
        assert (len(said["prompt"]), said["max_tokens"]) == (16, 2)
        assert said["cache_salt"].startswith("canary-")
        assert engine.requests[0].header(b"x-request-id").startswith(b"canary-")

    with_engine(body)


@pytest.mark.parametrize("kind", [None, Kind.COMPLETIONS])
@pytest.mark.parametrize("fault", ["accept_and_hang", "health_ok_generation_hangs", "stall_mid_stream", "paused"])
def test_a_canary_of_a_hanging_engine_ends_in_time(fault, kind):
    async def body(engine, lane):
        engine.faults.set(fault, **({"after_events": 1} if fault == "stall_mid_stream" else {}))
        begun = time.monotonic()
        with pytest.raises(EngineTimeout):
            await look(lane, 0.2, kind)
        assert time.monotonic() - begun < 3

    with_engine(body)


@pytest.mark.parametrize(("fault", "wanted"), FAULTS.items(), ids=FAULTS)
def test_a_canary_of_a_failing_engine_fails(fault, wanted):
    async def body(engine, lane):
        engine.faults.set(fault, **({"after_events": 1} if fault.endswith(("stream", "sse")) else {}))
        with pytest.raises(wanted):
            await look(lane)

    with_engine(body)
