import asyncio
import json

import pytest

from loadtests.routing.engines import Counted, Counters, said, since
from loadtests.routing.scenarios import USUAL


def test_what_was_added_is_counted_for_each_engine_by_itself() -> None:
    before = [Counters(100, 40, 1), Counters(10, 0, 0)]
    after = [Counters(150, 60, 4), Counters(10, 0, 0)]
    assert since(after, before) == [Counters(50, 20, 3), Counters(0, 0, 0)]
    with pytest.raises(ValueError, match="shorter"):
        since(after, before[:1])


def test_an_answer_of_the_process_is_read_into_counters() -> None:
    line = json.dumps(
        {"engines": [{"queries": 7, "hits": 3, "preemptions": 1}, {"queries": 0, "hits": 0, "preemptions": 0}]}
    )
    assert said(line) == [Counters(7, 3, 1), Counters(0, 0, 0)]


async def _counters() -> Counters:
    engine = Counted(USUAL)
    engine._scheduler.totals.prefix_queries, engine._scheduler.totals.prefix_hits = 90, 30
    engine._scheduler.totals.preemptions = 2
    return engine.counters


def test_the_counters_are_the_scheduler_s() -> None:
    assert asyncio.run(_counters()) == Counters(90, 30, 2)
