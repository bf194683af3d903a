"""The gateway's own queue in front of real engines: what waits where, for how long, for whom, and what it is told."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from loadtests.engine.server import SimulatedEngine
from tests.conftest import COLD, RunningGateway, Site, wait_until
from tests.integration.conftest import held, of_users, replica_of

MODEL = "sim-model"
MESSAGES: Any = [{"role": "user", "content": "hi"}]
STEPS: dict[str, Any] = {"step_time": 0.01, "prefill_tokens_per_second": 0.0}
CLASSES = """
roles:
  calls: {aliases: ["*"]}
  urgent: {aliases: ["*"], priority: interactive}
  later: {aliases: ["*"], priority: bulk}
default_roles: [calls]
"""


def started(site: Site, engines: Sequence[SimulatedEngine], **admission: Any) -> RunningGateway:
    """A gateway with this section, all its engines ready and bounded."""
    folder = site.routing(warmup=COLD, admission=admission)
    (folder / "access.yaml").write_text(CLASSES)
    gateway = site.gateway(engines, policies=folder)
    gateway.wait_ready(MODEL, len(engines))
    limit = admission.get("in_flight")
    if limit is not None:
        replicas = [replica_of(gateway, engine.url) for engine in engines]
        wait_until(lambda: all(each.room == limit for each in replicas), "bounds")
    return gateway


def chat(tokens: int = 20, *, stream: bool = False) -> dict[str, Any]:
    return {
        "model": MODEL, "messages": MESSAGES, "max_tokens": tokens, "ignore_eos": True,
        "stream": stream,
    }  # fmt: skip


class Callers:
    """Many at once, each with a key."""

    def __init__(self, gateway: RunningGateway) -> None:
        self.gateway = gateway
        self.keys = {role: gateway.key(role, roles=(role,)) for role in ("calls", "urgent", "later")}

    def run(self, story: Any) -> Any:
        async def main() -> Any:
            async with httpx.AsyncClient(timeout=30, trust_env=False) as self.client:
                return await story()

        return asyncio.run(main())

    def ask(self, role: str = "calls", **wanted: Any) -> asyncio.Task[httpx.Response]:
        return asyncio.ensure_future(self.client.post(**self.request(role, **wanted)))

    def request(self, role: str = "calls", **wanted: Any) -> dict[str, Any]:
        """What a client is to send."""
        headers = {"authorization": f"Bearer {self.keys[role]}"}
        return {"url": f"{self.gateway.base_url}/chat/completions", "json": chat(**wanted), "headers": headers}

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.002)

    def waiting(self) -> int:
        return sum(self.gateway.gateway.core.gate.depths().values())


def test_engines_get_no_more_than_their_limit_and_all_are_answered(site):
    engines = [site.engine(**STEPS) for _ in range(2)]
    gateway = started(site, engines, in_flight=3)
    callers, most = Callers(gateway), [0]

    async def story() -> list[httpx.Response]:
        with held(site, *engines):
            asked = [callers.ask() for _ in range(24)]
            await callers.until(lambda: callers.waiting() == 18)
        while not all(each.done() for each in asked):
            most[0] = max(most[0], *(replica.in_flight for replica in gateway.gateway.core.registry.replicas))
            await asyncio.sleep(0.001)
        return list(await asyncio.gather(*asked))

    answers = callers.run(story)
    assert [answer.status_code for answer in answers] == [200] * 24
    assert most[0] == 3
    assert sum(len(of_users(engine)) for engine in engines) == 24
    waits = sorted(float(answer.headers["x-gateway-queue-ms"]) for answer in answers)
    assert waits[:6] == [0.0] * 6
    assert waits[6] > 0
    records = [gateway.records.last(request_id=answer.headers["x-request-id"]) for answer in answers]
    assert sorted(record["queue_ms"] for record in records)[-1] == pytest.approx(waits[-1], abs=0.01)
    # An answer takes the engine 200 ms. The quickest tells of the gateway, the others of what else the host does.
    assert min(record["overhead_ms"] - record["queue_ms"] for record in records) < 50
    counted = re.search(
        r'gateway_queue_wait_seconds_count{outcome="dispatched",priority="standard"} (\S+)', gateway.metrics()
    )
    assert counted is not None
    assert float(counted[1]) == 18
    assert gateway.in_flight() == 0


def test_the_learned_limit_keeps_the_queue_in_the_gateway(site):
    """Nothing is configured: once an engine's batch was seen full, what it cannot take at once waits here."""
    engine = site.engine(max_num_seqs=4, **STEPS)
    gateway = started(site, [engine])
    callers, replica = Callers(gateway), replica_of(gateway, engine.url)

    async def story() -> None:
        asked: list[asyncio.Task[httpx.Response]] = []
        while replica.room > 5:
            asked += [callers.ask(tokens=8) for _ in range(12 - len([each for each in asked if not each.done()]))]
            await asyncio.sleep(0.01)
        assert replica.room == 5  # one more than the batch holds, so that the next one is at hand
        asked += [callers.ask(tokens=50) for _ in range(20)]
        await callers.until(lambda: callers.waiting() >= 10)
        assert replica.in_flight <= 12
        answers = await asyncio.gather(*asked)
        assert {answer.status_code for answer in answers} == {200}

    callers.run(story)


def test_a_full_queue_is_a_rate_limit_to_a_client_with_a_time_to_come_back(site):
    engine = site.engine(**STEPS)
    gateway = started(site, [engine], in_flight=1, queue=1)
    callers = Callers(gateway)

    async def story() -> None:
        key = callers.keys["calls"]
        with held(site, engine):
            asked = [callers.ask(tokens=1) for _ in range(2)]
            await callers.until(lambda: callers.waiting() == 1)
            async with openai.AsyncOpenAI(base_url=gateway.base_url, api_key=key, max_retries=0) as client:
                with pytest.raises(openai.RateLimitError) as refused:
                    await client.chat.completions.create(model=MODEL, messages=MESSAGES)
        assert refused.value.code == "queue_full"
        assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60
        assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200, 200]

    callers.run(story)


def test_a_wait_beyond_its_limit_ends_with_503(site):
    engine = site.engine(**STEPS)
    gateway = started(site, [engine], in_flight=1, wait={"standard": 0.1})
    callers = Callers(gateway)

    async def story() -> None:
        with held(site, engine):
            running = callers.ask(tokens=1)
            await callers.until(lambda: gateway.in_flight() == 1)
            answer = await callers.ask()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_timeout")
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert (await running).status_code == 200

    callers.run(story)
    assert len(of_users(engine)) == 1


def test_who_is_urgent_goes_first_and_bulk_last(site):
    engine = site.engine(**STEPS)
    gateway = started(site, [engine], in_flight=1)
    callers = Callers(gateway)

    async def story() -> list[httpx.Response]:
        asked = []
        with held(site, engine):
            running = callers.ask(tokens=1)
            await callers.until(lambda: gateway.in_flight() == 1)
            for role in ("later", "calls", "urgent"):
                asked.append(callers.ask(role, tokens=2))
                await callers.until(lambda: callers.waiting() == len(asked))
        return list(await asyncio.gather(running, *asked))

    answers = callers.run(story)
    assert {answer.status_code for answer in answers} == {200}
    served = [gateway.records.last(request_id=each.headers["x-request-id"]) for each in answers]
    in_turn = sorted(served, key=gateway.records.lines.index)
    assert [record["priority"] for record in in_turn] == ["standard", "interactive", "standard", "bulk"]
    assert gateway.records.last(priority="bulk")["queue_ms"] > gateway.records.last(priority="interactive")["queue_ms"]


def test_a_client_that_leaves_while_it_waits_never_reaches_an_engine(site):
    engine = site.engine(**STEPS)
    gateway = started(site, [engine], in_flight=1)
    callers = Callers(gateway)

    async def story() -> None:
        with held(site, engine):
            running = callers.ask(tokens=1)
            await callers.until(lambda: gateway.in_flight() == 1)
            leavers = [callers.ask() for _ in range(5)]
            await callers.until(lambda: callers.waiting() == 5)
            for leaver in leavers:
                leaver.cancel()
            await callers.until(lambda: callers.waiting() == 0)
        assert (await running).status_code == 200

    callers.run(story)
    assert len(of_users(engine)) == 1
    assert gateway.records.last(status=499)["error"] == "client_gone"


def test_a_stream_that_waits_may_be_told_so(site):
    engine = site.engine(**STEPS)
    gateway = started(site, [engine], in_flight=1, comments=1)
    callers = Callers(gateway)

    async def story() -> None:
        with ExitStack() as until_told:
            until_told.enter_context(held(site, engine))
            running = callers.ask(tokens=1)
            await callers.until(lambda: gateway.in_flight() == 1)
            async with callers.client.stream("POST", **callers.request(tokens=3, stream=True)) as answer:
                text = ""
                async for piece in answer.aiter_text():
                    text += piece
                    until_told.close()
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert text.startswith(": waiting\n\n")
        assert text.endswith("data: [DONE]\n\n")
        assert answer.headers["x-gateway-alias"] == f"{MODEL}@1"
        assert (await running).status_code == 200
        key = callers.keys["calls"]
        running = callers.ask(tokens=150)
        await callers.until(lambda: gateway.in_flight() == 1)
        async with openai.AsyncOpenAI(base_url=gateway.base_url, api_key=key, max_retries=0) as client:
            stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=3, stream=True)
            assert len([event async for event in stream]) >= 3
        await running

    callers.run(story)


def test_another_limit_holds_from_the_next_moment_on(site):
    engine = site.engine(**STEPS)
    gateway = started(site, [engine], in_flight=1)
    callers, replica = Callers(gateway), replica_of(gateway, engine.url)

    async def story() -> None:
        with held(site, engine):
            asked = [callers.ask(tokens=1) for _ in range(4)]
            await callers.until(lambda: callers.waiting() == 3)
            routing = Path(gateway.gateway.settings.policies) / "routing.yaml"
            routing.write_text(json.dumps({"warmup": COLD, "admission": {"in_flight": 4}}))
            await callers.until(lambda: callers.waiting() == 0)
            assert (replica.in_flight, replica.room) == (4, 4)
        assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}

    callers.run(story)


def test_whatever_leaves_whenever_nothing_is_left_behind(site):
    """Hundreds that leave while they wait, are granted a place, or are served."""
    engines = [site.engine(step_time=0.002, prefill_tokens_per_second=0.0) for _ in range(2)]
    gateway = started(site, engines, in_flight=2, queue=100)
    callers, dice = Callers(gateway), random.Random(7)

    async def story() -> None:
        asked: list[asyncio.Task[httpx.Response]] = []
        for _ in range(400):
            asked.append(callers.ask(dice.choice(("calls", "urgent", "later")), stream=dice.random() < 0.5))
            if dice.random() < 0.6:
                dice.choice(asked).cancel()
            if dice.random() < 0.3:
                await asyncio.sleep(0)
            while len([each for each in asked if not each.done()]) > 60:
                await asyncio.sleep(0.001)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        statuses = [answer.status_code for answer in answers if isinstance(answer, httpx.Response)]
        assert set(statuses) <= {200, 429}
        assert statuses.count(200) > 50
        await callers.until(lambda: callers.waiting() == 0 and gateway.in_flight() == 0)
        assert not gateway.gateway.core.gate.waits(MODEL)
        assert [(await callers.ask()).status_code for _ in range(4)] == [200] * 4

    callers.run(story)
    wait_until(lambda: gateway.in_flight() == 0, "nothing in flight")
