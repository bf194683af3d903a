"""What a waiting client hears: nothing at first, then comments, then its answer, at the pace at which it reads."""

from __future__ import annotations

import asyncio

import pytest

from gateway.steps.hold import Hold, LateFlow
from gateway.telemetry.trace import Trace

LINES = b"content-type: text/event-stream\r\n"


class Flow:
    """An answer that can be told to wait."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def pause(self) -> None:
        self.said.append("pause")

    def resume(self) -> None:
        self.said.append("resume")


def held(fakes, every, use):
    """Run ``use(hold, exchange, trace)`` on a loop."""

    async def run():
        exchange, trace = fakes.Exchange("POST", "/v1/chat/completions"), Trace("req_1", 5.0, 0.0)
        hold = Hold(exchange, trace, LINES, every)
        try:
            async with asyncio.timeout(5):
                await use(hold, exchange, trace)
        finally:
            hold.close()
            hold.close()

    asyncio.run(run())


async def until(condition):
    while not condition():
        await asyncio.sleep(0)


def test_nothing_is_sent_to_one_that_does_not_wait_for_long(fakes):
    async def use(hold, exchange, trace):
        await asyncio.sleep(0)
        assert (exchange.started, hold.flow, trace.status) == (False, None, 0)

    held(fakes, 60.0, use)


def test_a_comment_at_a_time_behind_one_status_line(fakes):
    async def use(hold, exchange, trace):
        await until(lambda: exchange.sent.count(b": waiting\n\n") >= 3)
        assert exchange.sent.replace(b": waiting\n\n", b"") == b""
        assert (exchange.status, trace.status) == (200, 200)
        assert exchange.sent_headers[b"content-type"] == b"text/event-stream"

    held(fakes, 0.001, use)


def test_no_comment_comes_after_the_end(fakes):
    async def use(hold, exchange, trace):
        await until(lambda: exchange.started)
        hold.close()
        sent, loop = len(exchange.sent), asyncio.get_running_loop()
        later = loop.create_future()
        loop.call_later(0.02, later.set_result, None)
        await later
        assert len(exchange.sent) == sent

    held(fakes, 0.001, use)


@pytest.mark.parametrize(
    ("told", "heard"),
    [((), []), (("pause",), ["pause"]), (("pause", "resume"), []), (("pause", "resume", "pause"), ["pause"])],
)
def test_an_answer_that_comes_late_is_told_what_it_missed(told, heard):
    late, flow = LateFlow(), Flow()
    for each in told:
        getattr(late, each)()
    late.join(flow)
    assert flow.said == heard


def test_once_joined_all_is_passed_on():
    late, flow = LateFlow(), Flow()
    late.join(flow)
    late.pause()
    late.resume()
    assert flow.said == ["pause", "resume"]
