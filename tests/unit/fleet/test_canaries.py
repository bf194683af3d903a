"""What becomes of a replica by what its engine says to a canary: idle, on probation, out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.errors import (
    EngineBusy,
    EngineClosing,
    EngineDead,
    EngineFailure,
    EngineHung,
    EngineReset,
    EngineTimeout,
    EngineUnreachable,
)
from gateway.fleet.canaries import Canaries
from gateway.fleet.life import Sign, State
from gateway.fleet.look import Seen
from gateway.fleet.replica import Replica
from gateway.fleet.warmup import Kind
from gateway.model import EngineSpec
from gateway.policy.fleet import Breaker, FleetPolicy, Health

STREAM = b'data: {"choices":[{"index":0,"text":"a","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
POLICY = FleetPolicy(
    health=Health(canary_interval=30.0, canary_limit=0.05), breaker=Breaker(consecutive=2, eject=10.0, probation=2)
)
REFUSED, SLOW = EngineUnreachable(), EngineUnreachable(slow=True)
SIGNS = {
    State.READY: (),
    State.EJECTED: (Sign.HUNG,),
    State.PROBATION: (Sign.HUNG, Sign.RESTED),
}


class Bench:
    """A replica that has been warmed, and what its engine says to an inference."""

    def __init__(self, fakes: Any, state: State, says: EngineFailure | int | str, kind: Kind | None) -> None:
        self.fakes = fakes
        self.says = says
        self.clock = 1_000.0
        self.paths: list[str] = []
        self.given_up: list[EngineFailure] = []
        link = SimpleNamespace(send=self._send, give_up=lambda failure: self.given_up.append(failure()))
        self.replica = Replica(
            EngineSpec("http://127.0.0.1:8001"),
            lambda _: link,  # type: ignore[arg-type, return-value]
            lambda: POLICY,
            lambda _: None,
            lambda _: True,
            origin="configuration",
            now=lambda: self.clock,
            random=lambda: 0.5,
        )
        self.replica.seen = Seen(("m",))
        for sign in (Sign.HEALTHY, Sign.WARM, *SIGNS[state]):
            assert self.replica.take(sign)
        self.nudged = 0
        self.replica.nudge = self._nudge
        around: Any = SimpleNamespace(
            policy=lambda: POLICY, now=lambda: self.clock, random=Random(1), new_id=lambda: "id"
        )
        self.canaries = Canaries(self.replica, around)
        self.canaries.kind = kind

    def _nudge(self) -> None:
        self.nudged += 1

    async def _send(self, path: str, content_type: bytes, body: bytes, request_id: str, *, total: float | None) -> Any:
        self.paths.append(path)
        if isinstance(self.says, EngineFailure):
            raise self.says
        if self.says == "hangs":
            await asyncio.Event().wait()
        if isinstance(self.says, int):
            return self.fakes.answer(b"", self.says)[0]
        return self.fakes.answer(STREAM, content_type="text/event-stream")[0]

    @property
    def state(self) -> State:
        return self.replica.life.state


Play = Callable[[State, "EngineFailure | int | str", Callable[[Bench], Awaitable[None]]], None]


@pytest.fixture(params=[None, Kind.COMPLETIONS], ids=["unknown", "known"])
def play(fakes: Any, request: pytest.FixtureRequest) -> Play:
    """Runs a body with a replica in a state whose engine says something; with and without a known kind."""

    def go(state: State, says: EngineFailure | int | str, body: Callable[[Bench], Awaitable[None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(10):
                await body(Bench(fakes, state, says, request.param))

        asyncio.run(main())

    return go


# what the engine says, state after it when it idles, on probation, and out
ANSWERS = [
    ("answers", State.READY, State.PROBATION, State.PROBATION),
    ("hangs", State.EJECTED, State.EJECTED, State.EJECTED),
    (EngineTimeout(), State.EJECTED, State.EJECTED, State.EJECTED),
    (REFUSED, State.EJECTED, State.EJECTED, State.EJECTED),
    (SLOW, State.READY, State.EJECTED, State.EJECTED),
    (EngineReset(), State.READY, State.EJECTED, State.EJECTED),
    (EngineClosing(), State.EJECTED, State.EJECTED, State.EJECTED),
    (EngineDead(), State.EJECTED, State.EJECTED, State.EJECTED),
    (500, State.READY, State.EJECTED, State.EJECTED),
    (401, State.READY, State.EJECTED, State.EJECTED),
    # These say nothing of the engine: a full queue, and a model of no kind that can be asked.
    (EngineBusy(), State.READY, State.PROBATION, State.EJECTED),
    (429, State.READY, State.PROBATION, State.EJECTED),
    (404, State.READY, State.PROBATION, State.PROBATION),
]
NAMES = [str(says) if not isinstance(says, EngineFailure) else type(says).__name__ for says, *_ in ANSWERS]


@pytest.mark.parametrize(("says", "after"), [(says, idle) for says, idle, _, _ in ANSWERS], ids=NAMES)
def test_an_idle_engine(play, says, after):
    async def body(bench):
        bench.clock += 29.0
        await bench.canaries.rouse()
        assert bench.paths == []
        bench.clock += 1.0
        await bench.canaries.rouse()
        assert bench.paths
        assert bench.state is after

    play(State.READY, says, body)


@pytest.mark.parametrize(("says", "after"), [(says, proof) for says, _, proof, _ in ANSWERS], ids=NAMES)
def test_one_on_probation(play, says, after):
    async def body(bench):
        await bench.canaries.prove()
        assert bench.state is after
        assert not bench.replica.life.for_errors or says != "hangs"

    play(State.PROBATION, says, body)


@pytest.mark.parametrize(("says", "after"), [(says, out) for says, _, _, out in ANSWERS], ids=NAMES)
def test_one_that_is_out(play, says, after):
    async def body(bench):
        bench.clock = bench.replica.life.until - 0.1
        await bench.canaries.retry()
        assert bench.paths == []
        bench.clock = bench.replica.life.until
        await bench.canaries.retry()
        assert bench.state is after
        busy = isinstance(says, EngineBusy) or says == 429
        assert (bench.replica.life.until > bench.clock) is (after is State.EJECTED and not busy)
        assert bench.replica.lost is (says is REFUSED)

    play(State.EJECTED, says, body)


def test_the_failures_of_an_idle_engine_add_up(play):
    async def body(bench):
        bench.clock += 30.0
        await bench.canaries.rouse()
        await bench.canaries.rouse()
        assert (bench.state, bench.replica.life.reason) == (State.EJECTED, "2 failures in a row")

    play(State.READY, EngineReset(), body)


def test_a_hang_gives_up_what_waits_there(play):
    async def body(bench):
        bench.clock += 30.0
        await bench.canaries.rouse()
        assert [type(error) for error in bench.given_up] == [EngineHung]
        assert bench.replica.life.reason == "a canary had no answer in 0.05 s"

    play(State.READY, "hangs", body)


def test_an_engine_that_no_canary_can_ask_is_asked_no_more_often_than_others(play):
    async def body(bench):
        for _ in range(100):
            bench.clock += 1.0
            await bench.canaries.rouse()
        assert 3 * 1 <= len(bench.paths) <= 3 * len(Kind)
        assert bench.state is State.READY

    play(State.READY, 404, body)


def test_probation_ends_though_an_old_stream_goes_on_for_ever(play):
    async def body(bench):
        bench.replica.enter()
        bench.replica.take(Sign.HUNG)
        bench.replica.take(Sign.RESTED)
        await bench.canaries.prove()
        await bench.canaries.prove()
        assert (bench.state, bench.replica.in_flight) == (State.READY, 1)

    play(State.PROBATION, "answers", body)


def test_while_a_request_proves_it_no_canary_does(play):
    async def body(bench):
        bench.replica.enter()
        await bench.canaries.prove()
        assert bench.paths == []
        bench.replica.leave()
        await bench.canaries.prove()
        assert bench.paths

    play(State.PROBATION, "answers", body)


def test_one_that_came_while_an_old_one_ended_is_let_alone_from_the_next_look_on(play):
    async def body(bench):
        bench.replica.enter()
        bench.replica.take(Sign.HUNG)
        bench.replica.take(Sign.RESTED)
        bench.replica.leave()
        bench.says = EngineBusy()
        await bench.canaries.prove()
        asked = len(bench.paths)
        bench.replica.enter()
        await bench.canaries.prove()
        assert len(bench.paths) == asked

    play(State.PROBATION, "answers", body)


def test_good_answers_in_a_row_make_it_ready(play):
    async def body(bench):
        await bench.canaries.prove()
        await bench.canaries.prove()
        assert bench.state is State.READY

    play(State.PROBATION, "answers", body)
