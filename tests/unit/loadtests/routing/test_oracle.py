import asyncio
import json
import math
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

import pytest

from loadtests.engine.exchange import ReceivedRequest
from loadtests.engine.harness import running_engine, until
from loadtests.engine.protocol import Connection
from loadtests.engine.scheduler import Job
from loadtests.engine.server import SimulatedEngine
from loadtests.engine.spec import EngineSpec
from loadtests.engine.wireclient import WireClient, ask, get, post
from loadtests.routing.oracle import Oracle, job_of, soonest

JOB = Job(10, 1)
FAST = EngineSpec(step_time=0.001, prefill_tokens_per_second=100_000.0)
CHAT = "/v1/chat/completions"


@dataclass
class Fake:
    """An engine of which it is known how long it would take."""

    seconds: float
    cached_blocks: int = 0
    spec: EngineSpec = field(default_factory=EngineSpec)

    def foresee(self, job: Job) -> float:
        return self.seconds

    def handle(self, request: ReceivedRequest, connection: Connection, persistent: bool) -> None:
        raise AssertionError("nothing is sent")

    def date_line(self) -> bytes:
        return b""

    def wall_time(self) -> float:
        return 0.0


def test_the_soonest_is_taken_and_of_equal_ones_the_emptiest_cache() -> None:
    assert soonest([Fake(0.3), Fake(0.1, 900), Fake(0.2)], JOB) == 1
    assert soonest([Fake(0.1001, 7), Fake(0.1, 9), Fake(0.2, 0)], JOB) == 0
    assert soonest([Fake(math.inf, 7), Fake(math.inf, 3)], JOB) == 1


def body(text: str = "hello world", **changes: object) -> bytes:
    fields = {"messages": [{"role": "user", "content": text}], "max_tokens": 8, "ignore_eos": True}
    return json.dumps({**fields, **changes}).encode()


def received(data: bytes, path: str = CHAT, kind: bytes = b"application/json") -> ReceivedRequest:
    return ReceivedRequest("POST", path, path.encode(), [(b"content-type", kind)], data, 0.0)


def test_a_chat_is_a_sequence_and_what_an_engine_would_refuse_is_none() -> None:
    job = job_of(received(body("hello " * 100)), FAST)
    assert job is not None
    assert job.output_tokens == 8
    assert len(job.block_hashes) == job.prompt_tokens // FAST.block_size > 1
    for request in (
        received(b"{"),
        received(b"[]"),
        received(body(), kind=b"text/plain"),
        received(body(messages=[])),
        received(body("hello " * 20_000)),
        received(body(), path="/v1/models"),
    ):
        assert job_of(request, FAST) is None


async def _routed(specs: list[EngineSpec], requests: list[bytes]) -> tuple[list[int], list[bytes]]:
    """Sends one after the other; how many each engine got, and the answers."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(running_engine(spec)) for spec in specs]
        oracle = Oracle(engines)
        await oracle.start()
        try:
            answers = [await ask(oracle.port, request) for request in requests]
        finally:
            oracle.close()
            oracle.close()
        return [engine.requests_seen for engine in engines], [answer.body for answer in answers]


def test_it_finds_the_faster_engine_and_the_one_that_has_the_prompt() -> None:
    slow = replace(FAST, prefill_tokens_per_second=1000.0)
    seen, answers = asyncio.run(_routed([slow, FAST], [post(CHAT, body("hello " * 200))]))
    assert seen == [0, 1]
    assert b'"choices"' in answers[0]
    seen, _ = asyncio.run(_routed([FAST, FAST], [post(CHAT, body("hello world " * 500))] * 3))
    assert sorted(seen) == [0, 3]


def test_what_is_no_sequence_is_answered_all_the_same() -> None:
    seen, answers = asyncio.run(_routed([FAST, FAST], [get("/v1/models"), post(CHAT, b"{")]))
    assert seen == [2, 0]
    assert b"sim-model" in answers[0]
    assert b"error" in answers[1]


async def _left() -> SimulatedEngine:
    slow = replace(FAST, step_time=0.05)
    async with running_engine(slow) as engine:
        oracle = Oracle([engine])
        await oracle.start()
        try:
            async with WireClient(oracle.port) as client:
                client.send(post(CHAT, body(stream=True, max_tokens=2000)))
                await client.read_until(b"data:")
            await until(lambda: engine.requests_aborted == 1)
        finally:
            oracle.close()
        return engine


def test_a_client_that_leaves_is_the_engine_s_to_notice() -> None:
    engine = asyncio.run(_left())
    assert engine.running == 0
    assert pytest.approx(0.0) == engine.kv_usage
