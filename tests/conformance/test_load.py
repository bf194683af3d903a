"""More than fits, callers that leave, an engine that stops computing: what the gateway makes of an engine's ways."""

from __future__ import annotations

import asyncio
import json

import pytest

SLOTS = 4
LONG = 1500


def finish_reasons(call):
    chunks = [json.loads(line[6:]) for line in call.lines if line.startswith("data: {")]
    return [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]


def last_error(call):
    return json.loads(call.lines[-1].removeprefix("data: "))["error"]


def test_more_streams_than_slots_all_complete(talk, gateway, target, wait_until):
    async def use(caller):
        with target.slowed():
            calls = [caller.chat(tokens=200, stream=True) for _ in range(12)]
            await caller.gauges(target, SLOTS, 8)
            # Their headers are held until their first event, though the engine has sent its own at once.
            assert sum(call.status is not None for call in calls) <= SLOTS
        return await asyncio.gather(*(call.task for call in calls))

    for call in talk(gateway, use):
        assert call.status == 200
        assert finish_reasons(call) == ["length"]
        assert call.lines[-1] == "data: [DONE]"
    wait_until(lambda: sum(r["completion_tokens"] == 200 for r in gateway.records.lines) == 12, "12 records")


@pytest.mark.parametrize("stream", [True, False])
def test_caller_that_leaves_frees_its_slot(talk, gateway, target, stream):
    async def use(caller):
        call = caller.chat(tokens=LONG, stream=stream)
        await caller.gauges(target, 1, 0)
        if stream:
            await caller.until(lambda: call.lines, "a first event")
        await call.leave()
        await caller.gauges(target, 0, 0)

    with target.slowed():
        talk(gateway, use)
    record = gateway.records.last(status=499, stream=stream)
    assert record["error"] == "client_gone"


def test_caller_that_leaves_the_queue_is_gone_from_it(talk, gateway, target):
    async def use(caller):
        running = [caller.chat(tokens=LONG, stream=True) for _ in range(SLOTS)]
        await caller.gauges(target, SLOTS, 0)
        queued = [caller.chat(tokens=LONG, stream=stream) for stream in (True, False)]
        await caller.gauges(target, SLOTS, 2)
        for call in queued:
            await call.leave()
        await caller.gauges(target, SLOTS, 0)
        for call in running:
            await call.leave()
        await caller.gauges(target, 0, 0)
        return queued

    with target.slowed():
        queued = talk(gateway, use)
    assert [call.status for call in queued] == [None, None]


@pytest.fixture(scope="module")
def impatient(target, new_gateway):
    return new_gateway(target.url, timeouts_idle=1, timeouts_first_byte=1)


def test_stalled_engine_is_a_timeout_and_serves_again(talk, impatient, target):
    """A frozen engine still says 200 to /health (captured, 0.32.0)."""

    async def use(caller):
        begun = caller.chat(tokens=LONG, stream=True)
        await caller.until(lambda: begun.lines, "a first event")
        target.stall()
        try:
            new = [caller.chat(stream=stream) for stream in (True, False)]
            await asyncio.gather(begun.task, *(call.task for call in new))
        finally:
            target.resume()
        await caller.gauges(target, 0, 0)
        return begun, new, await caller.chat().task

    begun, new, after = talk(impatient, use)
    assert (begun.status, last_error(begun)["code"]) == (200, "engine_timeout")
    assert "data: [DONE]" not in begun.lines
    assert [call.status for call in new] == [504, 504]
    assert [json.loads(call.lines[0])["error"]["code"] for call in new] == ["engine_timeout"] * 2
    assert after.status == 200
