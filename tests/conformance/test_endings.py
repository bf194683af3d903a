"""An engine that dies, and one that is told to go: what had begun, what had not, what comes after."""

from __future__ import annotations

import asyncio
import json

SLOTS = 4
LONG = 1500


def test_killed_engine(talk, doomed, spare, new_gateway):
    """What had begun ends with an error event; what waited in the dead engine's queue is answered by another."""
    spare.switch(False)
    gateway = new_gateway(doomed.url, spare.url)

    async def use(caller):
        running = [caller.chat(tokens=LONG, stream=True) for _ in range(SLOTS)]
        await caller.until(lambda: all(call.lines for call in running), "4 streams to begin")
        queued = [caller.chat(stream=stream) for stream in (True, False)]
        await caller.gauges(doomed, SLOTS, 2)
        spare.switch(True)
        await asyncio.to_thread(gateway.wait_ready, "internal-general-v3", 2)
        doomed.kill()
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


def test_drained_engine(talk, doomed, spare, new_gateway):
    """SIGTERM with a drain time: /health stays 200, what runs finishes, each new request is refused at once (captured,
    0.32.0) and so goes elsewhere, or fails where there is no elsewhere."""
    alone, pair = new_gateway(doomed.url), new_gateway(doomed.url, spare.url, ready=2)

    async def use(caller):
        begun = caller.chat(tokens=800, stream=True)
        await caller.until(lambda: begun.lines, "a first event")
        with doomed.slowed():
            doomed.drain()
            refused = caller.chat()
            while (await refused.task).status == 200:
                refused = caller.chat()
            others = await asyncio.to_thread(
                talk, pair, lambda other: asyncio.gather(*(other.chat().task for _ in range(8)))
            )
            assert not begun.task.done()
        return await begun.task, refused, others

    begun, refused, others = talk(alone, use)
    assert (begun.status, begun.lines[-1]) == (200, "data: [DONE]")
    assert '"finish_reason":"length"' in begun.lines[-2]
    assert (refused.status, json.loads(refused.lines[0])["error"]["code"]) == (502, "engine_error")
    assert [call.status for call in others] == [200] * 8
