"""How the gateway looks after an engine: found, warmed up, watched while it works, given up, taken back."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.fleet.engines.vllm import VLLM
from gateway.fleet.life import State
from gateway.fleet.link import EngineLink
from gateway.fleet.progress import Progress
from gateway.fleet.signals import Signal
from gateway.policy.fleet import Health
from tests.conftest import COLD, UNBOUNDED

ALIAS, SERVED = "internal-general", "internal-general-v3"
SLOTS, LONG, CONTEXT, BLOCK = 4, 1500, 2048, 128
SHAPES = ((32, 16), (512, 32), (math.floor(0.9 * CONTEXT), 4))
"""Tokens in and out of the product's own warmup, for this context."""
COPIES = 2
CHECK_PROMPT, CHECK_OUTPUT = 16, 2
"""Of the one request before the rounds; at most so many tokens in, and just so many out."""
STEADY = 4
"""A ratio at which first tokens count as settled though others use the host."""
QUICK = {"shapes": [{"prompt": 32, "output": 4}], "ratio": STEADY, "slow_start": 0}
NO_CANARY = {"canary_interval": 0}
HANG, NOTICED = 3, 3.0
"""Seconds: what policy says, and how much longer it may take on a host that is busy with other things."""
READY_SECONDS = 100.0


class Front:
    """A gateway with the alias and a key for it, and what its replicas have gone through since it started."""

    def __init__(self, gateway):
        self.gateway = gateway
        self.url, self.records, self.core = gateway.url, gateway.records, gateway.gateway.core
        self.steps = []
        self.core.registry.on_transition(lambda step: self.steps.append((time.monotonic(), step)))
        gateway.alias(ALIAS, SERVED)
        self.bearer = {"authorization": f"Bearer {gateway.key('app', aliases=(ALIAS,))}"}

    def ready(self):
        return len(self.core.registry.ready(SERVED))

    def replica(self, url):
        return next(replica for replica in self.core.registry.replicas if replica.spec.url == url)

    def states(self, url):
        """The states that a replica came into."""
        return [step.after.state.value for _, step in list(self.steps) if step.replica.spec.url == url]

    def since(self, url, state):
        """When a replica last came into a state."""
        return max(at for at, step in self.steps if (step.replica.spec.url, step.after.state) == (url, state))

    def reason(self, url):
        return self.replica(url).life.reason


@pytest.fixture
def front(shared_site):
    """Makes gateways with these sections of a routing policy. They end with the test: each looks at its engines.

    All replicas get their turn: by estimate, the slower one of a pair gets nothing while the other one is idle.
    """
    made, in_turn = [], {"balancing": {"strategy": "round-robin"}, "admission": UNBOUNDED}

    def make(*engines, **sections):
        gateway = shared_site.gateway(engines, policies=shared_site.routing(**in_turn, **sections))
        made.append(gateway.gateway)
        return Front(gateway)

    yield make
    for gateway in made:
        shared_site.run(gateway.close())


@pytest.fixture
def sent(monkeypatch):
    """What gateways send to engines: request ids and bodies."""
    seen, send = [], EngineLink.send

    def spy(link, path, content_type, body, request_id, *, total):
        seen.append((request_id, json.loads(body)))
        return send(link, path, content_type, body, request_id, total=total)

    monkeypatch.setattr(EngineLink, "send", spy)
    return seen


def ours(ids, mark="warmup-"):
    return [each for each in ids if each.startswith(mark)]


def test_a_warm_engine_is_found_and_warmed_up_before_it_is_asked(
    talk, target, front, sent, wait_until, record_testsuite_property
):
    """By the product's own policy, but for the ratio: on a busy host, times vary more than it takes."""
    before, received = target.signals(), len(target.received())
    begun = time.monotonic()
    gateway = front(target.url, warmup={"ratio": STEADY})
    wait_until(gateway.ready, "a replica that is ready", READY_SECONDS)
    ready_after = time.monotonic() - begun
    warm, ids = target.signals(), target.received()[received:]

    replica = gateway.replica(target.url)
    read_at = replica.read_at
    wait_until(lambda: replica.read_at > read_at, "signals read since")
    assert (replica.seen.models, replica.seen.max_model_len) == ((SERVED,), CONTEXT)
    assert (replica.seen.version, replica.adapter.name) == ("0.32.0", "vllm")
    assert replica.reading.missing == frozenset()
    assert "gateway_engine_signal_missing{" not in gateway.gateway.metrics()
    assert (replica.reading.values[Signal.KV_TOKENS], replica.reading.values[Signal.BLOCK_SIZE]) == (64 * 128, BLOCK)

    # The engine's own counters: rounds of every shape, each prompt as long as it was to be, and one check before.
    rounds = (len(ids) - 1) // (COPIES * len(SHAPES))
    in_round = [COPIES * sum(shape[side] for shape in SHAPES) for side in (0, 1)]
    assert rounds >= 3
    assert len(ours(ids)) == len(ids) == 1 + rounds * COPIES * len(SHAPES)
    assert 1 <= warm[Signal.PROMPT_TOKENS] - before[Signal.PROMPT_TOKENS] - rounds * in_round[0] <= CHECK_PROMPT
    assert warm[Signal.GENERATION_TOKENS] - before[Signal.GENERATION_TOKENS] == rounds * in_round[1] + CHECK_OUTPUT
    assert warm[Signal.CACHE_HITS] == before[Signal.CACHE_HITS]
    lengths = [(len(body["prompt"]), body["max_tokens"]) for _, body in sent[1:]]
    assert sorted(lengths) == sorted(SHAPES * COPIES * rounds)
    assert len({body["cache_salt"] for _, body in sent}) == 1

    assert "in the last 3 rounds" in gateway.reason(target.url)
    assert "limit" not in gateway.reason(target.url)
    assert gateway.records.lines == []
    counted = [line for line in gateway.gateway.metrics().splitlines() if not line.startswith("#")]
    assert not [line for line in counted if line.startswith(("gateway_requests_total{", "gen_ai_"))]

    answer = talk(gateway, lambda caller: caller.chat().task)
    assert (answer.status, len(target.received()) - received) == (200, len(ids) + 1)
    assert gateway.records.last(request_id=answer.request_id) == gateway.records.lines[0]
    record_testsuite_property(f"seconds to a warm replica, {target.kind}", ready_after)


def test_what_a_warmup_leaves_in_the_prefix_cache_is_nobodys(talk, target, front, sent, wait_until):
    gateway = front(target.url, warmup={**QUICK, "shapes": [{"prompt": 512, "output": 4}]}, health=NO_CANARY)
    wait_until(gateway.ready, "a replica that is ready", READY_SECONDS)
    salted = {**sent[-1][1], "stream": False}  # now that it has settled, so that nothing is sent meanwhile
    unsalted = {name: value for name, value in salted.items() if name != "cache_salt"}

    def hits(body):
        before = target.signals()[Signal.CACHE_HITS]
        answer = talk(gateway, lambda caller: caller.at(target.url, "/v1/completions", body))
        assert answer.status_code == 200
        return target.signals()[Signal.CACHE_HITS] - before

    assert (len(salted["prompt"]), hits(unsalted), hits({**unsalted, "cache_salt": "tenant"})) == (512, 0, 0)
    assert hits(salted) == 3 * BLOCK  # what the last block holds is always computed anew


def test_first_request_after_a_start_without_a_warmup(talk, target, front, record_testsuite_property):
    begun = time.monotonic()
    gateway = front(target.url, warmup=COLD)
    answer = talk(gateway, lambda caller: caller.chat().task)
    seconds = time.monotonic() - begun
    record_testsuite_property(f"seconds to a first answer, {target.kind}", seconds)
    assert answer.status == 200
    assert seconds < 5


def test_a_long_prefill_in_chunks_shows_progress(talk, target, front):
    """Steps without a token are not counted, so that only the use of the KV cache moves until the first one: without
    it, a prefill of two ``hang`` would be taken for a hang."""
    prompt = {"model": SERVED, "prompt": [300] * 1900, "max_tokens": 2, "ignore_eos": True}

    async def use(caller):
        looks, values, received = [], await asyncio.to_thread(target.signals), len(target.received())
        before, moved = values, True
        with target.stepped() as step:
            body = {**prompt, "cache_salt": secrets.token_hex(8)}
            asked = asyncio.create_task(caller.at(target.url, "/v1/completions", body))
            await caller.until(lambda: len(target.received()) > received, "the engine's server to have it")
            while not asked.done():
                await asyncio.to_thread(step, moved)
                last, values = values, await asyncio.to_thread(target.signals)
                if values[Signal.GENERATION_TOKENS] > before[Signal.GENERATION_TOKENS]:
                    break
                if values[Signal.RUNNING]:
                    looks.append((time.monotonic(), values))
                moved = values != last
        assert (await asked).status_code == 200
        return before, looks, await asyncio.to_thread(target.signals)

    before, looks, after = talk(front(target.url, warmup=COLD, health=NO_CANARY), use)
    counters = [signal for signal in VLLM.progress if signal is not Signal.KV_USE]
    assert len(counters) < len(VLLM.progress)
    assert len({values[Signal.KV_USE] for _, values in looks}) >= 4
    assert {tuple(values[signal] for signal in counters) for _, values in looks} == {
        tuple(before[signal] for signal in counters)
    }
    assert after[Signal.STEPS] - before[Signal.STEPS] == 2  # of some fifteen that were computed
    hang = (looks[-1][0] - looks[0][0]) / 2
    assert not hung(looks, VLLM.progress, hang)
    assert hung(looks, counters, hang)


def hung(looks, signals, hang):
    """Whether at some look the engine would have been taken to hang, by these signals."""
    progress, found = Progress(looks[0][0]), False
    for at, values in looks:
        counters = tuple(values[signal] for signal in signals)
        progress.note(now=at, pending=True, counters=counters, heard=-math.inf)
        found = found or progress.hung(at, Health(hang=hang))
    return found


def test_a_stalled_engine_loses_what_waits_and_comes_back_without_a_warmup(talk, target, spare, front, wait_until):
    """SIGSTOP of what computes: /health says 200 all the time (captured, 0.32.0)."""
    spare.switch(False)
    gateway = front(target.url, spare.url, warmup=COLD, health={**NO_CANARY, "hang": HANG}, breaker={"eject": 0.5})
    received = len(target.received())

    async def use(caller):
        with target.slowed():
            running = [caller.chat(tokens=LONG, stream=True) for _ in range(SLOTS)]
            await caller.until(lambda: all(call.lines for call in running), "4 streams to begin")
            waiting = [caller.chat(stream=stream) for stream in (True, False)]
            await caller.gauges(target, SLOTS, 2)
            spare.switch(True)
            await caller.until(lambda: gateway.ready() == 2, "two that are ready")
        target.stall()
        stalled = time.monotonic()
        try:
            assert await asyncio.to_thread(lambda: target.healthy)
            await asyncio.gather(*(call.task for call in waiting))
            others = await asyncio.gather(*(caller.chat().task for _ in range(4)))
            assert await asyncio.to_thread(lambda: target.healthy)
            assert not any(call.task.done() for call in running)
            assert gateway.states(target.url)[-1] == "ejected"
            assert "it has work and has not moved for" in gateway.reason(target.url)
        finally:
            target.resume()
        for call in running[1:]:
            await call.leave()
        await caller.until(lambda: gateway.states(target.url)[-1] == "ready", lambda: str(gateway.states(target.url)))
        return await running[0].task, waiting, others, stalled

    begun, waiting, others, stalled = talk(gateway, use)
    assert HANG - 1 <= gateway.since(target.url, State.EJECTED) - stalled <= HANG + NOTICED
    assert [call.status for call in waiting + others] == [200] * 6
    records = [gateway.records.last(request_id=call.request_id) for call in waiting]
    assert [(record["attempts"], record["reason"]) for record in records] == [(2, "hung")] * 2
    assert {record["replica"] for record in records} == {gateway.replica(spare.url).id}
    assert (begun.status, begun.lines[-1]) == (200, "data: [DONE]")
    assert gateway.states(target.url)[-3:] == ["ejected", "probation", "ready"]
    assert "warming" not in gateway.states(target.url)
    assert ours(target.received()[received:]) == []
    assert ours(target.received()[received:], "canary-")


def test_a_killed_engine_that_starts_again_is_warmed_up_before_users_reach_it(
    talk, returning, spare, front, wait_until
):
    """First what computes is killed: its server says so to all that wait, and any of them may be what killed it. Then
    the rest, and another process takes its port."""
    spare.switch(False)
    gateway = front(returning.url, spare.url, warmup=QUICK, health=NO_CANARY, breaker={"eject": 0.5})
    url, over = returning.url, threading.Event()

    async def kill(caller):
        await caller.until(gateway.ready, "one that is ready")
        with returning.slowed():
            running = [caller.chat(tokens=LONG, stream=True) for _ in range(SLOTS)]
            await caller.until(lambda: all(call.lines for call in running), "4 streams to begin")
            waiting = [caller.chat(stream=stream) for stream in (True, False)]
            await caller.gauges(returning, SLOTS, 2)
            spare.switch(True)
            await caller.until(lambda: gateway.ready() == 2, "two that are ready")
        returning.kill()
        await asyncio.gather(*(call.task for call in running + waiting))
        return running, waiting

    served = []

    async def users(caller):
        while not over.is_set():
            calls = await asyncio.gather(*(caller.chat().task for _ in range(2)))
            served.extend(call.status for call in calls)
            await asyncio.sleep(0.05)

    def reached():
        """Whether a user is there, and enough have asked meanwhile: on a fast host its return takes no time."""
        return len(returning.received()) > len(ours(returning.received())) and len(served) > 4

    running, waiting = talk(gateway, kill)
    wait_until(lambda: gateway.states(url)[-1] == "ejected", "its ejection")
    returning.kill_all()
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(talk, gateway, users)
        try:
            returning.revive()  # in this thread: a process is told to end when the thread that started it does
            wait_until(lambda: gateway.states(url)[-1] == "ready" and reached(), "a user there", READY_SECONDS)
        finally:
            over.set()
    asking.result()
    assert set(served) == {200}
    for call in running:
        assert json.loads(call.lines[-1].removeprefix("data: "))["error"]["code"] == "engine_error"
        assert "data: [DONE]" not in call.lines
    assert [call.status for call in waiting] == [200, 200]  # they were not alone there when it died
    reasons = [gateway.records.last(request_id=call.request_id)["reason"] for call in waiting]
    assert reasons == ["dead", "dead"]
    states = gateway.states(url)
    assert states[states.index("ejected") :] == ["ejected", "starting", "warming", "ready"]
    ids = returning.received()
    first_user = next(index for index, each in enumerate(ids) if not each.startswith("warmup-"))
    assert first_user == len(ours(ids)) >= 1 + 3 * COPIES
