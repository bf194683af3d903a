"""Waiting for what an order leads to, on a clock of the test's own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.admin.fleetviews import ReplicaView
from gateway.cli.backend import CliFault, NotThere
from gateway.cli.fleetwait import (
    POLL,
    is_gone,
    is_ready,
    left_over,
    progress,
    settle,
    wait_until_gone,
    wait_until_ready,
)
from gateway.stores.interfaces import StoreUnavailable

BASE: dict[str, Any] = {
    "id": "127.0.0.1:8001",
    "url": "http://127.0.0.1:8001",
    "server_name": None,
    "origin": "orders",
    "labels": {},
    "since": 0.0,
    "reason": "",
    "remark": "",
    "prospect": "something",
    "engine": "vllm",
    "version": None,
    "verdict": "",
    "warmth": "",
    "models": [],
    "max_model_len": None,
    "room": None,
    "share": 1.0,
    "ejections": 0,
    "back_in": None,
    "exposed": [],
    "drain": None,
    "removed": False,
    "signals": {},
    "signals_age": None,
    "missing": [],
}


def view(state: str, in_flight: int = 0, **more: Any) -> ReplicaView:
    return ReplicaView(**{**BASE, "state": state, "in_flight": in_flight, **more})


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def settled(views: list[ReplicaView | None], done: Any, seconds: float) -> tuple[ReplicaView | None, list[str], float]:
    """What a wait ends with when the last view stays, what it told, and when it ended."""
    clock, told = Clock(), []

    async def ask() -> ReplicaView | None:
        return views.pop(0) if len(views) > 1 else views[0]

    one = asyncio.run(settle(ask, done, seconds, told.append, monotonic=clock.monotonic, sleep=clock.sleep))
    return one, told, clock.now


def test_a_wait_ends_with_what_it_waits_for_and_tells_each_step_once():
    steps = [view("draining", 2), view("draining", 2), view("draining", 1), view("gone")]
    one, told, now = settled([*steps], is_gone, 60)
    assert (one, now) == (steps[-1], 3 * POLL)
    assert told == [
        "127.0.0.1:8001: draining, 2 requests of this gateway are left",
        "127.0.0.1:8001: draining, 1 requests of this gateway are left",
    ]


def test_a_wait_ends_in_time_with_what_was_heard_last():
    one, told, now = settled([view("warming", reason="serves m")], is_ready, 1.2)
    assert (one, now) == (view("warming", reason="serves m"), pytest.approx(1.2))
    assert told == ["127.0.0.1:8001: warming, serves m"]
    assert settled([view("warming")], is_ready, 0)[2] == 0.0


def test_what_is_gone_and_what_is_ready():
    assert [is_gone(one) for one in (None, view("gone"), view("draining"), view("ready"))] == [True, True, False, False]
    assert [is_ready(one) for one in (None, view("probation"), view("ready"))] == [False, False, True]


def test_what_an_engine_still_runs_is_told_with_what_it_is_worth():
    signals = {"running": 5.0, "waiting": 1.0}
    assert left_over(view("draining", 2, signals=signals, signals_age=9.0)) == (
        "2 requests of this gateway are left; when last looked at, its engine ran 5 and 1 waited"
    )
    assert "its engine ran 5 and 0 waited" in left_over(view("draining", signals={"running": 5.0}, signals_age=1.0))
    assert progress(view("found")) == "127.0.0.1:8001: found"


class Backend:
    """Answers with one thing, or fails with it."""

    def __init__(self, answer: ReplicaView | Exception) -> None:
        self._answer = answer

    async def show_replica(self, reference: str) -> ReplicaView:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def test_a_drain_ends_when_the_replica_is_gone_or_not_there(capsys):
    for answer in (view("gone"), NotThere("no engine has that id")):
        asyncio.run(wait_until_gone(Backend(answer), "x", 0))
        assert "Gone" in capsys.readouterr().err


def test_a_wait_that_ends_in_vain_says_what_is_left():
    with pytest.raises(CliFault, match=r"The drain stands, but after 0 s it is not over: 2 requests .* Nothing is cut"):
        asyncio.run(wait_until_gone(Backend(view("draining", 2)), "x", 0))
    with pytest.raises(CliFault, match=r"after 0 s the replica is found: it takes no connection\. .*: something\."):
        asyncio.run(wait_until_ready(Backend(view("found", remark="it takes no connection")), "x", 0))
    with pytest.raises(CliFault, match="not among the replicas"):
        asyncio.run(wait_until_ready(Backend(NotThere("none")), "x", 0))


@pytest.mark.parametrize("fault", [CliFault("No gateway answers."), StoreUnavailable("No gateway answers.")])
def test_an_order_stands_though_its_gateway_is_gone(fault):
    with pytest.raises(CliFault, match=r"^The drain stands, but how it goes could not be asked: No gateway answers\."):
        asyncio.run(wait_until_gone(Backend(fault), "x", 5))
