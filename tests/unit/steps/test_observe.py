"""One record and one observation for each request, in order, soon, and none lost at the end."""

from __future__ import annotations

import asyncio

import pytest

from gateway.steps.observe import Observer
from gateway.telemetry.trace import Trace


class Sink:
    """Records and observations, in the order in which they came."""

    def __init__(self) -> None:
        self.records: list[dict] = []
        self.observed: list[Trace] = []
        self.came = asyncio.Event()

    def write(self, record):
        self.records.append(record)
        self.came.set()

    def observe(self, trace):
        self.observed.append(trace)


def _with(body, fakes):
    async def run():
        sink, clock = Sink(), fakes.Clock()
        observer = Observer(asyncio.get_running_loop(), sink, sink, clock)
        try:
            async with asyncio.timeout(5):
                await body(observer, sink, clock)
        finally:
            observer.close()

    asyncio.run(run())


def _trace(number: int = 0) -> Trace:
    return Trace(f"req_{number}", 0.0, 1_000.0)


def test_a_record_is_written_soon_without_more_traffic(fakes):
    async def body(observer, sink, clock):
        observer.note(_trace())
        await sink.came.wait()
        assert [record["request_id"] for record in sink.records] == ["req_0"]
        assert len(sink.observed) == 1

    _with(body, fakes)


def test_a_second_quiet_moment_is_as_good_as_the_first(fakes):
    async def body(observer, sink, clock):
        for number in range(3):
            sink.came.clear()
            observer.note(_trace(number))
            await sink.came.wait()
        assert len(sink.records) == 3

    _with(body, fakes)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 1_000])
def test_each_leaves_one_record_in_the_order_of_their_ends(count, fakes):
    async def body(observer, sink, clock):
        for number in range(count):
            observer.note(_trace(number))
        observer.close()
        wanted = [f"req_{number}" for number in range(count)]
        assert [record["request_id"] for record in sink.records] == wanted
        assert [trace.request_id for trace in sink.observed] == wanted

    _with(body, fakes)


def test_a_burst_is_not_hoarded(fakes):
    async def body(observer, sink, clock):
        for number in range(1_000):
            observer.note(_trace(number))
        assert len(sink.records) > 900

    _with(body, fakes)


def test_the_duration_is_taken_when_the_request_ends_not_when_it_is_written(fakes):
    async def body(observer, sink, clock):
        clock.now = 1_000.25
        observer.note(_trace())
        clock.now = 1_900.0
        observer.flush()
        assert sink.records[0]["duration_ms"] == pytest.approx(250.0)

    _with(body, fakes)


def test_flush_writes_now_and_only_once(fakes):
    async def body(observer, sink, clock):
        observer.note(_trace())
        observer.flush()
        observer.flush()
        assert len(sink.records) == 1

    _with(body, fakes)


def test_close_writes_what_is_left_stops_the_timer_and_may_come_twice(fakes):
    async def body(observer, sink, clock):
        observer.note(_trace())
        observer.close()
        observer.close()
        assert len(sink.records) == 1
        sink.came.clear()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await sink.came.wait()

    _with(body, fakes)
