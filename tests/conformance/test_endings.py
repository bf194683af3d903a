"""An engine that dies, and one that is told to go: what had begun, what had not, what comes after."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.conftest import UNBOUNDED

SLOTS = 4
LONG = 1500
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def test_killed_engine(talk, doomed, spare, new_gateway):
    """What had begun ends with an error event; what waited in the dead engine's queue is answered by another.

    When only what computes is killed, its server says so to all, and one of them may be the cause: see ``test_fleet``.
    """
    spare.switch(False)
    gateway = new_gateway(doomed.url, spare.url)

    async def use(caller):
        running = [caller.chat(tokens=LONG, stream=True) for _ in range(SLOTS)]
        await caller.until(lambda: all(call.lines for call in running), "4 streams to begin")
        queued = [caller.chat(stream=stream) for stream in (True, False)]
        await caller.gauges(doomed, SLOTS, 2)
        spare.switch(True)
        await asyncio.to_thread(gateway.wait_ready, "internal-general-v3", 2)
        doomed.kill_all()
        await asyncio.gather(*(call.task for call in running + queued))
        return running, queued, [await caller.chat().task for _ in range(4)]

    running, queued, after = talk(gateway, use)
    for call in running:
        error = json.loads(call.lines[-1].removeprefix("data: "))["error"]
        assert (call.status, error["code"]) == (200, "engine_error")
        assert "data: [DONE]" not in call.lines
        assert "EngineCore" not in "".join(call.lines)
    assert [call.status for call in queued + after] == [200] * 6
    assert queued[0].lines[-1] == "data: [DONE]"
    assert [gateway.records.last(request_id=call.request_id)["attempts"] for call in queued] == [2, 2]


@pytest.fixture
def hasty(shared_site):
    """Flags of gateways that ask an idle engine nothing, and one that is out soon whether it is well again."""
    sections = {"warmup": {"shapes": [], "slow_start": 0}, "health": {"canary_interval": 0}, "breaker": {"eject": 0.5}}
    # By estimate, the slower one of a pair gets nothing while the other one is idle.
    return {"policies": shared_site.routing(balancing={"strategy": "round-robin"}, admission=UNBOUNDED, **sections)}


def test_drained_engine(talk, doomed, spare, new_gateway, hasty):
    """SIGTERM with a drain time: /health stays 200, what runs finishes, each new request is refused at once (captured,
    0.32.0). So the first one that is goes elsewhere, or fails where there is no elsewhere, and is the last one there.

    What is refused is text. A prompt of token ids needs no tokenizer and gets a 200 without a token, its end "abort" or
    none in a stream (seen, 0.32.0); a canary, which is one, must not take that for an answer.
    """
    alone, pair = new_gateway(doomed.url, **hasty), new_gateway(doomed.url, spare.url, ready=2, **hasty)
    states = {gateway: followed(gateway, doomed.url) for gateway in (alone, pair)}

    async def until(calls, last):
        made = [calls.chat()]
        while not last(await made[-1].task):
            made.append(calls.chat())
        return made

    async def eight(calls):
        return await asyncio.gather(*(calls.chat().task for _ in range(8)))

    async def use(caller):
        begun = caller.chat(tokens=1200, stream=True)
        await caller.until(lambda: begun.lines, "a first event")
        with doomed.slowed():
            doomed.drain()
            refused = (await until(caller, lambda call: call.status != 200))[-1]
            further = await asyncio.gather(*(caller.chat().task for _ in range(4)))
            counted = [await asyncio.to_thread(doomed.answered, CHAT, "5xx")]
            elsewhere = await asyncio.to_thread(talk, pair, lambda other: until(other, moved))
            others = await asyncio.to_thread(talk, pair, eight)
            await caller.until(lambda: any(doomed.answered(COMPLETIONS, kind) for kind in ("2xx", "5xx")), "a canary")
            others += await asyncio.to_thread(talk, pair, eight)
            counted.append(await asyncio.to_thread(doomed.answered, CHAT, "5xx"))
            assert await asyncio.to_thread(lambda: doomed.healthy)
            assert not begun.task.done()
        await begun.task
        await caller.until(lambda: not doomed.healthy, "the end of the engine")
        return begun, refused, further, elsewhere, others, counted

    def moved(call):
        return pair.records.last(request_id=call.request_id)["attempts"] == 2

    begun, refused, further, elsewhere, others, counted = talk(alone, use)
    assert (begun.status, begun.lines[-1]) == (200, "data: [DONE]")
    assert '"finish_reason":"length"' in begun.lines[-2]
    for call in (refused, *further):
        assert (call.status, json.loads(call.lines[0])["error"]["code"]) == (503, "no_ready_replica")
        assert int(call.retry_after) >= 1
    assert [call.status for call in elsewhere + others] == [200] * (len(elsewhere) + 16)
    assert pair.records.last(request_id=elsewhere[-1].request_id)["reason"] == "closing"
    assert [pair.records.last(request_id=call.request_id)["attempts"] for call in others] == [1] * 16
    assert counted == [1, 2]
    assert states == {alone: ["ejected"], pair: ["ejected"]}


def followed(gateway, url):
    """The states that a replica comes into from here on."""
    states = []

    def note(step):
        if step.replica.spec.url == url:
            states.append(step.after.state.value)

    gateway.gateway.core.registry.on_transition(note)
    return states
