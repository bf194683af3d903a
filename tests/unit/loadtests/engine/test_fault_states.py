"""Faults of health, metrics and the engine itself: it says one thing and does another."""

import asyncio
import json
import time

import pytest

from loadtests.engine.harness import until, with_engine
from loadtests.engine.server import SimulatedEngine
from loadtests.engine.spec import EngineSpec, instant_spec
from loadtests.engine.wireclient import WireClient, ask, get, post

BODY = {"messages": [{"role": "user", "content": "hello world"}], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
STREAM = post("/v1/chat/completions", json.dumps({**BODY, "stream": True}).encode())
WHOLE = post("/v1/chat/completions", json.dumps(BODY).encode())
DONE = b"data: [DONE]\n\n"
QUIET = 0.15
"""Seconds without a byte that count as silence."""


def test_draining_refuses_generation_at_once_and_says_it_is_healthy() -> None:
    async def check(engine: SimulatedEngine) -> None:
        engine.faults.set("draining")
        answer = await ask(engine.port, STREAM)
        assert answer.status == 500
        assert b"cannot schedule new futures after shutdown" in answer.body
        assert answer.header("vary") is None
        assert (await ask(engine.port, get("/health"))).status == 200
        assert (await ask(engine.port, get("/v1/models"))).status == 200

    with_engine(check)


def test_health_slow() -> None:
    async def check(engine: SimulatedEngine) -> None:
        engine.faults.set("health_slow", seconds=0.1)
        began = time.monotonic()
        assert (await ask(engine.port, get("/health"))).status == 200
        assert time.monotonic() - began >= 0.1

    with_engine(check)


def test_health_503_while_it_serves() -> None:
    async def check(engine: SimulatedEngine) -> None:
        engine.faults.set("health_503")
        assert (await ask(engine.port, get("/health"))).status == 503
        assert (await ask(engine.port, WHOLE)).status == 200

    with_engine(check)


def test_metrics_slow() -> None:
    async def check(engine: SimulatedEngine) -> None:
        engine.faults.set("metrics_slow", seconds=0.1)
        began = time.monotonic()
        assert (await ask(engine.port, get("/metrics"))).status == 200
        assert time.monotonic() - began >= 0.1

    with_engine(check)


def test_metrics_garbage() -> None:
    async def check(engine: SimulatedEngine) -> None:
        engine.faults.set("metrics_garbage", text="no metrics")
        answer = await ask(engine.port, get("/metrics"))
        assert (answer.status, answer.body) == (200, b"no metrics")

    with_engine(check)


def test_metrics_stale() -> None:
    async def check(engine: SimulatedEngine) -> None:
        engine.faults.set("metrics_stale")
        before = await ask(engine.port, get("/metrics"))
        await ask(engine.port, WHOLE)
        assert (await ask(engine.port, get("/metrics"))).body == before.body
        engine.faults.clear()
        assert (await ask(engine.port, get("/metrics"))).body != before.body

    with_engine(check)


@pytest.mark.parametrize("name", ["health_ok_generation_hangs", "paused"])
def test_frozen_engine_looks_healthy_and_goes_on_later(name: str) -> None:
    running = b'vllm:num_requests_running{engine="0",model_name="sim-model"} '
    frozen = b"1.0" if name == "health_ok_generation_hangs" else b"0.0"

    async def check(engine: SimulatedEngine) -> None:
        async with WireClient(engine.port) as before, WireClient(engine.port) as during:
            before.send(STREAM)
            await before.read_until(b'"content":"gari"')
            await until(lambda: engine.running == 1)
            engine.faults.set(name)
            during.send(WHOLE)
            assert await during.read_some(QUIET) == b""
            assert (await ask(engine.port, get("/health"))).status == 200
            metrics = await ask(engine.port, get("/metrics"))
            assert running + frozen + b"\n" in metrics.body
            assert b'vllm:num_requests_waiting{engine="0",model_name="sim-model"} 0.0\n' in metrics.body
            engine.faults.clear()
            assert (await during.answer()).status == 200
            assert (await before.read_until(DONE)).count(DONE) == 1

    with_engine(check, EngineSpec(step_time=0.02))


def sleep_state(engine: SimulatedEngine) -> list[str]:
    """The states that vllm:engine_sleep_state says are true."""
    lines = engine.metrics_text().decode().splitlines()
    states = [line for line in lines if line.startswith("vllm:engine_sleep_state{") and line.endswith(" 1.0")]
    return [line.partition('sleep_state="')[2].partition('"')[0] for line in states]


@pytest.mark.parametrize(("level", "state"), [(1, "weights_offloaded"), (2, "discard_all")])
def test_asleep_it_hangs_healthy_with_empty_gauges_and_wakes_cold(level: int, state: str) -> None:
    """As a real 0.32.0 after POST /sleep and /wake_up."""

    async def check(engine: SimulatedEngine) -> None:
        await ask(engine.port, WHOLE)
        assert sleep_state(engine) == ["awake"]
        engine.faults.set("asleep", level=level)
        assert sleep_state(engine) == [state]
        async with WireClient(engine.port) as client:
            client.send(WHOLE)
            assert await client.read_some(QUIET) == b""
            assert (await ask(engine.port, get("/health"))).status == 200
            assert b'vllm:num_requests_waiting{engine="0",model_name="sim-model"} 0.0\n' in engine.metrics_text()
            assert engine.state()["pace"] == 1.0
            engine.faults.clear()
            assert engine.state()["pace"] == 20.0
            began = time.monotonic()
            assert (await client.answer()).status == 200
            assert time.monotonic() - began >= 8 * 0.02
        assert (sleep_state(engine), engine.state()["pace"]) == (["awake"], 1.0)

    with_engine(check, EngineSpec(step_time=0.001, cold_factor=20.0, cold_requests=1))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "ending"),
    [
        ("/v1/chat/completions", b'"finish_reason":"abort","stop_reason":null'),
        ("/v1/completions", b'"finish_reason":"abort","stop_reason":null'),
        ("/v1/messages", b'"stop_reason":null'),
        ("/v1/responses", b'"status":"cancelled"'),
    ],
)
def test_what_runs_when_it_falls_asleep_ends_with_abort(path: str, ending: bytes, stream: bool) -> None:
    body = {**BODY, "prompt": "hello", "input": "hello", "max_tokens": 2000, "max_output_tokens": 2000}
    request = post(path, json.dumps({**body, "stream": stream}).encode())

    async def check(engine: SimulatedEngine) -> None:
        async with WireClient(engine.port) as running, WireClient(engine.port) as queued:
            running.send(request)
            await until(lambda: engine.running == 1)
            queued.send(request)
            await until(lambda: engine.waiting == 1)
            engine.faults.set("asleep")
            for client in (running, queued):
                answer = await client.answer()
                assert (answer.status, answer.complete) == (200, True)
                assert ending in answer.body
            assert (engine.running, engine.waiting, engine.kv_usage, engine.state()["in_flight"]) == (0, 0, 0.0, 0)
        assert [each.state for each in engine.requests] == ["finished", "finished"]
        assert b'finished_reason="abort",model_name="sim-model"} 2.0\n' in engine.metrics_text()

    with_engine(check, EngineSpec(step_time=0.005, max_num_seqs=1))


def test_a_sleep_loses_the_prefix_cache() -> None:
    body = {**BODY, "messages": [{"role": "user", "content": "hello world " * 40}]}
    request = post("/v1/chat/completions", json.dumps(body).encode())

    async def cached(engine: SimulatedEngine) -> int:
        usage = json.loads((await ask(engine.port, request)).body)["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    async def check(engine: SimulatedEngine) -> None:
        assert [await cached(engine), await cached(engine) > 0] == [0, True]
        engine.faults.set("asleep")
        engine.faults.clear()
        assert await cached(engine) == 0

    with_engine(check, instant_spec(prompt_tokens_details=True))


def test_slow_death_makes_each_request_slower_up_to_a_cap() -> None:
    async def check(engine: SimulatedEngine) -> None:
        engine.faults.set("slow_death", factor=10.0, cap=40.0)
        seen = []
        for _ in range(4):
            seen.append(engine.state()["pace"])
            began = time.monotonic()
            await ask(engine.port, WHOLE)
            assert time.monotonic() - began >= 8 * 0.001 * float(str(seen[-1]))
        assert seen == [1.0, 10.0, 40.0, 40.0]
        engine.faults.clear("slow_death")
        assert engine.state()["pace"] == 1.0

    with_engine(check, EngineSpec(step_time=0.001))


async def reached(engine: SimulatedEngine) -> bool:
    """Whether the engine answers a new connection; one that waits unaccepted when the listener closes is reset."""
    try:
        return (await ask(engine.port, get("/health"))).complete
    except OSError:
        return False


async def turned(engine: SimulatedEngine, up: bool) -> None:
    deadline = time.monotonic() + 10
    while await reached(engine) != up:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_flapping_serves_and_refuses_by_turns_and_keeps_open_connections() -> None:
    async def check(engine: SimulatedEngine) -> None:
        async with WireClient(engine.port) as old:
            engine.faults.set("flapping", down=0.15, up=0.15)
            for up in (True, False, True, False):
                await turned(engine, up)
            old.send(get("/health"))
            assert (await old.answer()).status == 200
        engine.faults.set("refuse")
        engine.faults.clear("flapping")
        assert not await reached(engine)
        engine.faults.clear()
        assert await reached(engine)

    with_engine(check)


def test_flapping_begins_closed_also_when_it_is_on_from_the_start() -> None:
    async def body() -> None:
        engine = SimulatedEngine(instant_spec())
        engine.faults.set("flapping", down=60.0, up=60.0)
        await engine.start()
        with pytest.raises(ConnectionRefusedError):
            await ask(engine.port, get("/health"))
        await engine.close()

    asyncio.run(body())


def test_flapping_ends_with_the_engine() -> None:
    async def body() -> None:
        engine = SimulatedEngine(instant_spec())
        await engine.start()
        engine.faults.set("flapping", down=0.001, up=0.001)
        await turned(engine, up=True)
        await engine.close()
        assert [await reached(engine) for _ in range(50)] == [False] * 50

    asyncio.run(body())
