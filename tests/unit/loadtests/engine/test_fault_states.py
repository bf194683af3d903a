"""Faults of health, metrics and the engine itself: it says one thing and does another."""

import json
import time

import pytest

from loadtests.engine.harness import until, with_engine
from loadtests.engine.server import SimulatedEngine
from loadtests.engine.spec import EngineSpec
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
