import asyncio
import json

import pytest

from loadtests.routing.engines import Counted, Counters, Fleet, Stalls, Told, said, since, watch
from loadtests.routing.scenarios import USUAL


def test_what_was_added_is_counted_for_each_engine_by_itself() -> None:
    before = [Counters(100, 40, 1), Counters(10, 0, 0)]
    after = [Counters(150, 60, 4), Counters(10, 0, 0)]
    assert since(after, before) == [Counters(50, 20, 3), Counters(0, 0, 0)]
    with pytest.raises(ValueError, match="shorter"):
        since(after, before[:1])


def test_an_answer_of_the_process_is_read_into_counters() -> None:
    line = json.dumps(
        {
            "engines": [{"queries": 7, "hits": 3, "preemptions": 1}, {"queries": 0, "hits": 0, "preemptions": 0}],
            "stall": 0.25,
        }
    )
    assert said(line) == Told([Counters(7, 3, 1), Counters(0, 0, 0)], 0.25)


class _Process:
    """Stands in for the process of the engines."""

    pid = 77

    def __init__(self) -> None:
        self.told: list[str] = []

    def tell(self, line: str) -> None:
        self.told.append(line)

    def hear(self) -> str:
        first = {"ports": [4001, 4002], "oracle": 4711}
        later = {"engines": [{"queries": len(self.told), "hits": 0, "preemptions": 0}], "stall": 0.0}
        return json.dumps(later if self.told else first)


def test_a_fleet_knows_where_its_engines_and_their_oracle_listen() -> None:
    fleet = Fleet(_Process())  # type: ignore[arg-type]
    assert fleet.urls == ["http://127.0.0.1:4001", "http://127.0.0.1:4002"]
    assert (fleet.oracle, fleet.pid) == (4711, 77)
    assert fleet.ask().engines == [Counters(1)]


def test_the_longest_stall_is_told_once() -> None:
    stalls = Stalls()
    for seconds in (0.1, 0.4, 0.2):
        stalls.note(seconds)
    assert stalls.take() == 0.4
    assert stalls.take() == 0.0
    stalls.note(-0.001)
    assert stalls.take() == 0.0


async def _watched(overshoots: list[float]) -> float:
    stalls, now = Stalls(), [50.0]
    left = iter(overshoots)

    async def sleep(seconds: float) -> None:
        now[0] += seconds + next(left)

    with pytest.raises(RuntimeError):  # what a coroutine makes of a StopIteration: nothing is left
        await watch(stalls, lambda: now[0], sleep)
    return stalls.take()


def test_a_sleep_that_took_too_long_is_a_stall() -> None:
    assert asyncio.run(_watched([0.0, 0.3, 0.001])) == pytest.approx(0.3)
    assert asyncio.run(_watched([0.0, 0.0])) == pytest.approx(0.0)


async def _counters() -> Counters:
    engine = Counted(USUAL)
    engine._scheduler.totals.prefix_queries, engine._scheduler.totals.prefix_hits = 90, 30
    engine._scheduler.totals.preemptions = 2
    return engine.counters


def test_the_counters_are_the_scheduler_s() -> None:
    assert asyncio.run(_counters()) == Counters(90, 30, 2)
