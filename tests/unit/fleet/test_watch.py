"""What a watch does, state by state, with an engine that is made up and a clock that stands still unless told."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import Any

import orjson
import pytest

from gateway.errors import (
    EngineBusy,
    EngineClosing,
    EngineDead,
    EngineFailure,
    EngineHung,
    EngineProtocolError,
    EngineReset,
    EngineTimeout,
    EngineUnreachable,
)
from gateway.fleet.engines.vllm import VLLM
from gateway.fleet.life import Sign, State
from gateway.fleet.look import Seen
from gateway.fleet.replica import Replica, Transition
from gateway.fleet.signals import Signal
from gateway.fleet.surroundings import Surroundings
from gateway.fleet.watch import Watch
from gateway.model import EngineSpec
from gateway.policy.engines import Floor
from gateway.policy.fleet import Breaker, FleetPolicy, Health, Shape, Warmup

REFUSED, SLOW = EngineUnreachable(), EngineUnreachable(slow=True)
STREAM = b'data: {"choices":[{"index":0,"text":"a","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
POLICY = FleetPolicy(
    warmup=Warmup(shapes=(Shape(prompt=4, output=1),), concurrency=1, rounds=1, slow_start=0.0),
    health=Health(misses=3, hang=30.0, blind_hang=120.0, canary_interval=30.0, canary_limit=0.05),
    breaker=Breaker(consecutive=3, eject=10.0, eject_most=60.0, probation=2),
)
EXPECTED = {source.names[0] for signal, source in VLLM.signals.items() if signal in VLLM.expected}


class FakeEngine:
    """An engine as its link shows it. What it says may be changed, or be a failure that is raised."""

    def __init__(self, fakes: Any) -> None:
        self._fakes = fakes
        self.health: int | EngineFailure = 200
        self.models: list[Any] | EngineFailure | int = ["m"]
        self.owner = "vllm"
        self.version: str | EngineFailure = "0.32.0"
        self.page: dict[str, float] | EngineFailure | int = {"process_start_time_seconds": 5_000.0}
        self.left_out: set[str] = set()
        self.inference: EngineFailure | str = "answers"
        self.asked: list[str] = []
        self.fresh: list[str] = []
        self.sent: list[str] = []
        self.given_up: list[EngineFailure] = []
        self.hold: asyncio.Event | None = None
        self.during: Callable[[str], None] = lambda path: None
        self.last_heard = 0.0
        self.open_connections = 0
        self.closed = False

    async def get(self, path: str, patience: float, *, fresh: bool = False) -> tuple[int, bytes]:
        self.asked.append(path)
        await asyncio.sleep(0)
        if fresh:
            self.fresh.append(path)
        self.during(path)
        said = {"/health": self.health, "/v1/models": self.models, "/version": self.version, "/metrics": self.page}[
            path
        ]
        if isinstance(said, EngineFailure):
            raise said
        if isinstance(said, int):
            return said, b""
        if isinstance(said, list):
            rows = [{"id": name, "owned_by": self.owner, "max_model_len": 4096} for name in said]
            return 200, orjson.dumps({"data": rows})
        if isinstance(said, str):
            return 200, orjson.dumps({"version": said})
        values = {**dict.fromkeys(EXPECTED - self.left_out, 0.0), **said}
        return 200, "".join(f"{name} {value}\n" for name, value in values.items()).encode()

    async def send(self, path: str, content_type: bytes, body: bytes, request_id: str, *, total: float | None) -> Any:
        self.sent.append(request_id.partition("-")[0])
        self.during(path)
        if self.hold is not None:
            await self.hold.wait()
        if isinstance(self.inference, EngineFailure):
            raise self.inference
        if self.inference != "answers":
            return self._fakes.answer(b"{}", int(self.inference))[0]
        self.last_heard += 1.0
        return self._fakes.answer(STREAM, content_type="text/event-stream")[0]

    def heard(self) -> float:
        return self.last_heard

    def give_up(self, failure: Callable[[], EngineFailure]) -> None:
        self.given_up.append(failure())

    def close(self) -> None:
        self.closed = True


class Bench:
    """A watch over one replica."""

    def __init__(self, fakes: Any, *, interval: float = 1.0, now: Callable[[], float] | None = None) -> None:
        self.clock = 1_000.0
        self.engine = FakeEngine(fakes)
        self.policy = POLICY
        self.floors: dict[str, Floor] = {}
        self.said: list[str] = []
        self.told: list[Transition] = []
        self.changes = 0
        self.outside: tuple[str, ...] = ()
        self.exposure_looks = 0
        clock = now or (lambda: self.clock)
        self.replica = Replica(
            EngineSpec("http://127.0.0.1:8001"),
            lambda _: self.engine,  # type: ignore[arg-type, return-value]
            lambda: self.policy,
            self.told.append,
            lambda _: True,
            origin="configuration",
            now=clock,
            random=lambda: 0.5,
        )
        self.around = Surroundings(
            policy=lambda: self.policy,
            floors=lambda: self.floors,
            now=clock,
            random=Random(1),
            new_id=lambda: "id",
            interval=interval,
            looks=asyncio.Semaphore(4),
            warmups=asyncio.Semaphore(1),
            report=self.said.append,
            changed=self._changed,
            exposure=self._exposure,
        )
        self.watch = Watch(self.replica, self.around)

    def _changed(self) -> None:
        self.changes += 1

    async def _exposure(self, spec: EngineSpec, seen: Seen) -> tuple[str, ...]:
        self.exposure_looks += 1
        return self.outside

    @property
    def state(self) -> State:
        return self.replica.life.state

    @property
    def states(self) -> list[State]:
        """Every state that it came to, in order."""
        return [step.after.state for step in self.told]

    async def steps(self, count: int = 1, seconds: float = 1.0) -> None:
        for _ in range(count):
            self.clock += seconds
            await self.watch.step()

    async def to(self, state: State) -> None:
        """Bring it there as it would come there."""
        await self.steps()
        assert self.state is State.READY
        if state in (State.EJECTED, State.PROBATION):
            self.replica.take(Sign.FAILING, "it errs")
        if state is State.PROBATION:
            self.replica.take(Sign.RESTED)
        assert self.state is state
        self.told.clear()
        self.engine.asked.clear()
        self.engine.sent.clear()


@pytest.fixture
def run(fakes: Any) -> Callable[[Callable[[Bench], Awaitable[None]]], None]:
    """Runs a body with a bench, on a loop of its own."""

    def go(body: Callable[[Bench], Awaitable[None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(20):
                await body(Bench(fakes))

        asyncio.run(main())

    return go


# --- found, starting: nothing before it is well, listed, fit and warm


def test_an_engine_that_is_well_is_met_warmed_and_ready_in_one_step(run):
    async def body(bench):
        await bench.steps()
        assert bench.states == [State.WARMING, State.READY]
        assert bench.told[0].after.reason == "serves m"
        assert (bench.replica.seen, bench.replica.adapter) == (Seen(("m",), 4096, "0.32.0", "vllm"), VLLM)
        assert set(bench.engine.sent) == {"warmup"}
        assert bench.engine.fresh == ["/health"]
        assert bench.replica.reading.values[Signal.STARTED_AT] == 5_000.0
        assert (bench.replica.read_at, bench.changes) == (bench.clock, 1)

    run(body)


# what is said, state after it, remark
NOT_YET = [
    ({"health": REFUSED}, State.FOUND, "it takes no connection"),
    ({"health": SLOW}, State.STARTING, "it takes no connection"),
    ({"health": EngineTimeout()}, State.STARTING, "its health check does not answer"),
    ({"health": EngineReset()}, State.STARTING, "its health check breaks off"),
    ({"health": EngineProtocolError()}, State.STARTING, "its health check breaks off"),
    ({"health": 503}, State.STARTING, "its health check says 503"),
    ({"models": 404}, State.STARTING, "it lists no models"),
    ({"models": []}, State.STARTING, "it lists no models"),
    ({"models": EngineReset()}, State.STARTING, "it lists no models"),
    ({"page": REFUSED}, State.FOUND, "it takes no connection"),
]


@pytest.mark.parametrize(("said", "state", "remark"), NOT_YET)
def test_what_is_not_well_yet_is_looked_at_again_and_told_once(run, said, state, remark):
    async def body(bench):
        for name, value in said.items():
            setattr(bench.engine, name, value)
        await bench.steps(5)
        assert (bench.state, bench.replica.remark) == (state, remark)
        assert len(bench.told) <= 1
        assert bench.said == []
        assert bench.engine.sent == []
        for name, value in {"health": 200, "models": ["m"], "page": {}}.items():
            setattr(bench.engine, name, value)
        await bench.steps()
        assert bench.state is State.READY

    run(body)


def test_an_engine_that_dies_between_two_looks_is_only_refused(run):
    async def body(bench):
        def dies(path):
            if path == "/version":
                bench.engine.page = REFUSED

        bench.engine.during = dies
        await bench.steps(3)
        assert bench.state is State.FOUND

    run(body)


def test_an_engine_without_metrics_version_or_age_is_served_all_the_same(run):
    async def body(bench):
        bench.engine.owner, bench.engine.page, bench.engine.version = "someone", 404, EngineReset()
        await bench.steps()
        assert (bench.state, bench.replica.adapter.name) == (State.READY, "generic")
        assert bench.said == []

    run(body)


def test_what_the_operator_declared_wins_over_what_the_engine_says(run):
    async def body(bench):
        bench.replica.spec = EngineSpec("http://127.0.0.1:8001", {"engine": "sglang"})
        await bench.steps()
        assert bench.replica.adapter.name == "sglang"

    run(body)


def test_an_unfit_version_is_told_once_and_looked_at_again(run):
    async def body(bench):
        bench.floors = {"vllm": Floor("0.40.0", refuse=True)}
        await bench.steps(5)
        assert (bench.state, bench.replica.verdict in bench.said[0], len(bench.said)) == (State.STARTING, True, 1)
        assert "older than 0.40.0" in bench.replica.remark
        assert bench.engine.sent == []
        bench.engine.version = "0.41.0"
        await bench.steps()
        assert (bench.state, bench.replica.verdict) == (State.READY, "")

    run(body)


def test_a_floor_that_is_raised_is_followed_by_what_serves_and_lifted_again(run):
    async def body(bench):
        await bench.to(State.READY)
        bench.floors = {"vllm": Floor("0.40.0", refuse=True)}
        await bench.steps(20)
        assert (bench.states, len(bench.said)) == ([State.EJECTED], 1)
        assert "older than 0.40.0" in bench.replica.life.reason
        bench.floors = {}
        bench.clock += 60.0
        await bench.steps(5)
        assert bench.states == [State.EJECTED, State.PROBATION, State.READY]

    run(body)


def test_a_floor_that_only_warns_is_told_once(run):
    async def body(bench):
        bench.floors = {"vllm": Floor("0.40.0", refuse=False)}
        await bench.steps(25)
        assert (bench.state, len(bench.said)) == (State.READY, 1)

    run(body)


def test_an_engine_that_answers_elsewhere_too_is_told_once_and_not_asked_each_step(run):
    async def body(bench):
        bench.outside = ("192.0.2.1:8001",)
        await bench.steps()
        assert bench.replica.exposed == bench.outside
        assert "also answers at 192.0.2.1:8001, around the gateway" in bench.said[0]
        bench.replica.take(Sign.FAILING)
        await bench.steps(5)
        assert (bench.exposure_looks, len(bench.said)) == (1, 1)
        bench.replica.take(Sign.RESTARTED)
        bench.outside = ()
        await bench.steps()
        assert (bench.exposure_looks, bench.replica.exposed, len(bench.said)) == (2, (), 1)

    run(body)


def test_a_line_of_the_log_is_not_as_long_as_an_engine_likes(run):
    async def body(bench):
        bench.engine.models = [f"{number}-" + "x" * 200 for number in range(200)]
        await bench.steps()
        assert bench.told[0].after.reason.endswith(" and 192 more")
        assert len(bench.told[0].after.reason) < 2_000

    run(body)


# --- warming


def test_without_shapes_it_is_ready_at_once(run):
    async def body(bench):
        bench.policy = replace(POLICY, warmup=Warmup(shapes=()))
        await bench.steps()
        assert (bench.state, bench.engine.sent) == (State.READY, [])

    run(body)


@pytest.mark.parametrize(
    ("failure", "after"),
    [
        (EngineReset(), State.STARTING),
        (EngineDead(), State.STARTING),
        (EngineBusy(), State.STARTING),
        (EngineClosing(), State.STARTING),
        (SLOW, State.STARTING),
        (REFUSED, State.FOUND),
        ("500", State.STARTING),
        ("401", State.STARTING),
    ],
    ids=str,
)
def test_an_engine_that_fails_its_warmup_is_not_warmed_again_each_step_for_ever(run, failure, after):
    async def body(bench):
        bench.engine.inference = failure
        await bench.steps()
        assert bench.states == [State.WARMING, after]
        assert "a warmup request failed" in bench.replica.life.reason
        if failure is REFUSED:
            bench.engine.health = REFUSED  # as it would be
        await bench.steps(60)
        assert len(bench.told) <= 2 * (1 + 3)  # after 10, 20 and 40 seconds
        bench.engine.inference, bench.engine.health = "answers", 200
        await bench.steps(80)
        assert bench.state is State.READY

    run(body)


def test_another_process_need_not_wait_for_what_the_one_before_did(run):
    async def body(bench):
        bench.engine.inference = EngineReset()
        await bench.steps()
        bench.engine.inference = "answers"
        await bench.steps()
        assert bench.state is State.STARTING
        assert bench.replica.remark.startswith("the next warmup begins in ")
        bench.engine.page = {"process_start_time_seconds": 6_000.0}
        await bench.steps()
        assert bench.state is State.READY

    run(body)


def test_one_that_was_refused_in_between_need_not_wait_either(run):
    async def body(bench):
        bench.engine.page = {}
        bench.engine.inference = EngineReset()
        await bench.steps()
        bench.engine.health = REFUSED
        await bench.steps()
        bench.engine.inference, bench.engine.health = "answers", 200
        await bench.steps()
        assert bench.state is State.READY

    run(body)


@pytest.mark.parametrize(("unsettled", "state"), [("serve", State.READY), ("hold", State.STARTING)])
def test_what_does_not_settle_serves_or_is_held_as_policy_says(run, unsettled, state):
    async def body(bench):
        # First tokens after 1 s and 9 s in turn; the limit is by the loop's own clock.
        bench.engine.during = lambda path: setattr(bench, "clock", bench.clock + (1.0, 9.0)[len(bench.engine.sent) % 2])
        warmup = Warmup(
            shapes=(Shape(prompt=4, output=1),), concurrency=1, rounds=3, ratio=1.05, limit=0.3, unsettled=unsettled
        )
        bench.policy = replace(POLICY, warmup=warmup)
        await bench.steps()
        assert bench.state is state
        assert "the limit of 0.3 s passed" in bench.replica.warmth
        assert bench.replica.life.reason == bench.replica.warmth

    run(body)


def test_an_engine_that_answers_nothing_by_the_limit_is_nobodys_to_serve(run):
    async def body(bench):
        bench.engine.hold = asyncio.Event()
        bench.policy = replace(POLICY, warmup=replace(POLICY.warmup, limit=0.05, unsettled="serve"))
        await bench.steps()
        assert bench.states == [State.WARMING, State.STARTING]

    run(body)


@pytest.mark.parametrize(
    ("signs", "after"),
    [([Sign.DRAIN], State.DRAINING), ([Sign.DRAIN, Sign.UNDRAIN], State.FOUND), ([Sign.LOST], State.FOUND)],
)
def test_a_warmup_is_cut_short_when_it_is_to_be_warmed_no_longer(run, signs, after):
    async def body(bench):
        bench.engine.hold = asyncio.Event()
        step = asyncio.ensure_future(bench.steps())
        while not bench.engine.sent:
            await asyncio.sleep(0)
        bench.replica.nudge()  # for another reason
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not step.done()
        for sign in signs:
            bench.replica.take(sign)
            bench.replica.nudge()
        await asyncio.wait_for(step, 1.0)
        assert bench.state is after
        assert bench.around.warmups._value == 1
        bench.replica.nudge()

    run(body)


def test_a_turn_at_warming_is_not_waited_for_by_what_is_to_go(run):
    async def body(bench):
        await bench.around.warmups.acquire()
        step = asyncio.ensure_future(bench.steps())
        while bench.state is not State.WARMING:
            await asyncio.sleep(0)
        bench.replica.take(Sign.DRAIN)
        bench.replica.nudge()
        await asyncio.wait_for(step, 1.0)
        assert bench.engine.sent == []
        bench.around.warmups.release()

    run(body)


def test_a_supervisor_that_ends_a_warmup_ends_it(run):
    async def body(bench):
        bench.engine.hold = asyncio.Event()
        step = asyncio.ensure_future(bench.steps())
        while not bench.engine.sent:
            await asyncio.sleep(0)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        assert bench.state is State.WARMING

    run(body)


def test_slow_start_grows_from_a_tenth_to_all_by_the_policy_in_force(run):
    async def body(bench):
        bench.policy = replace(POLICY, warmup=replace(POLICY.warmup, slow_start=20.0))
        await bench.steps()
        assert bench.replica.share == pytest.approx(0.1)
        await bench.steps(10)
        assert bench.replica.share == pytest.approx(0.5)
        bench.policy = replace(POLICY, warmup=replace(POLICY.warmup, slow_start=12.0))
        await bench.steps(1)
        assert bench.replica.share == pytest.approx(11 / 12)
        await bench.steps(1)
        assert bench.replica.share == 1.0

    run(body)


# --- ready: restarts, sleep, other models


def test_another_process_at_the_same_port_is_warmed_once(run):
    async def body(bench):
        await bench.to(State.READY)
        bench.engine.page = {"process_start_time_seconds": 6_000.0}
        await bench.steps(5)
        assert bench.states == [State.STARTING, State.WARMING, State.READY]
        assert bench.told[0].after.reason == "another process has taken its place"

    run(body)


def test_counters_that_go_back_tell_a_restart_where_no_start_is_given(run):
    async def body(bench):
        bench.engine.page = {"vllm:generation_tokens_total": 900.0}
        await bench.to(State.READY)
        bench.engine.page = {"vllm:generation_tokens_total": 950.0}
        await bench.steps(2)
        assert bench.told == []
        bench.engine.page = {"vllm:generation_tokens_total": 2.0}
        await bench.steps(5)
        assert bench.states == [State.STARTING, State.WARMING, State.READY]

    run(body)


def test_a_page_without_a_word_does_not_make_it_forget_who_it_was(run):
    async def body(bench):
        await bench.to(State.READY)
        bench.engine.page = 502
        await bench.steps(2)
        assert bench.state is State.READY
        bench.engine.page = {"process_start_time_seconds": 6_000.0}
        await bench.steps(3)
        assert bench.states == [State.STARTING, State.WARMING, State.READY]

    run(body)


@pytest.mark.parametrize("start", [None, 6_000.0, 5_000.0])
def test_an_engine_that_was_refused_is_warm_only_if_it_says_that_it_is_the_same_process(run, start):
    async def body(bench):
        if start is None:
            bench.engine.page = {}
        await bench.to(State.READY)
        bench.engine.page = REFUSED
        await bench.steps()
        assert (bench.states, bench.replica.lost) == ([State.EJECTED], True)
        bench.engine.page = {} if start is None else {"process_start_time_seconds": start}
        await bench.steps(15)
        if start == 5_000.0:
            assert bench.states == [State.EJECTED, State.PROBATION, State.READY]
            assert set(bench.engine.sent) == {"canary"}
        else:
            assert bench.states == [State.EJECTED, State.STARTING, State.WARMING, State.READY]
        assert not bench.replica.lost

    run(body)


def test_what_a_request_found_refused_counts_as_well(run):
    async def body(bench):
        bench.engine.page = {}
        await bench.to(State.READY)
        bench.replica.note_failure(EngineUnreachable())
        await bench.steps()
        assert bench.states == [State.EJECTED, State.STARTING, State.WARMING, State.READY]

    run(body)


def test_an_ejection_for_errors_is_not_taken_for_a_restart(run):
    async def body(bench):
        bench.engine.page = {}
        await bench.to(State.EJECTED)
        await bench.steps(15)
        assert bench.states == [State.PROBATION, State.READY]

    run(body)


def test_one_that_was_replaced_while_it_was_drained_is_warmed_once(run):
    async def body(bench):
        await bench.to(State.READY)
        bench.replica.take(Sign.DRAIN)
        await bench.steps()
        assert bench.state is State.GONE
        bench.engine.page = {"process_start_time_seconds": 6_000.0}
        bench.replica.take(Sign.UNDRAIN)
        bench.told.clear()
        await bench.steps(5)
        assert bench.states == [State.WARMING, State.READY]

    run(body)


def test_sleep_takes_it_out_and_a_wake_warms_it_again(run):
    async def body(bench):
        awake = {"process_start_time_seconds": 5_000.0}
        bench.engine.page = awake
        await bench.to(State.READY)
        bench.engine.page = {**awake, 'vllm:engine_sleep_state{sleep_state="weights_offloaded"}': 1.0}
        await bench.steps(10)
        assert bench.states == [State.STARTING]
        assert (bench.told[0].after.reason, bench.replica.remark) == ("it sleeps", "it sleeps")
        assert bench.engine.sent == []
        bench.engine.page = awake
        await bench.steps()
        assert bench.states == [State.STARTING, State.WARMING, State.READY]

    run(body)


def test_another_model_is_warmed_first(run):
    async def body(bench):
        await bench.to(State.READY)
        bench.engine.models = ["other"]
        await bench.steps(20)
        assert bench.states == [State.STARTING, State.WARMING, State.READY]
        assert (bench.told[0].after.reason, bench.replica.seen.models) == ("it serves another model", ("other",))

    run(body)


def test_another_model_behind_an_ejection_is_warmed_first(run):
    async def body(bench):
        await bench.to(State.EJECTED)
        bench.engine.models = ["other"]
        await bench.steps()
        assert bench.states == [State.STARTING, State.WARMING, State.READY]

    run(body)


def test_adapters_come_and_go_without_a_warmup(run):
    async def body(bench):
        await bench.to(State.READY)
        before = bench.changes
        for models in (["m", "lora"], ["m"]):
            bench.engine.models = models
            await bench.steps(10)
            assert bench.replica.seen == Seen(tuple(models), 4096, "0.32.0", "vllm")
        assert (bench.told, bench.changes - before) == ([], 2)
        bench.engine.models = EngineTimeout()
        await bench.steps(10)
        assert bench.replica.seen.models == ("m",)

    run(body)


def test_an_operators_word_warms_it_again(run):
    async def body(bench):
        await bench.to(State.READY)
        bench.replica.take(Sign.RESTARTED, "asked by ops")
        await bench.steps()
        assert bench.states == [State.STARTING, State.WARMING, State.READY]

    run(body)


# --- ready: probes that fail, signals that are missing


def test_an_idle_engine_that_is_silent_is_lost_after_so_many_looks(run):
    async def body(bench):
        bench.policy = replace(POLICY, health=replace(POLICY.health, canary_interval=0.0))
        await bench.to(State.READY)
        await bench.steps(20)
        bench.engine.page = bench.engine.health = EngineTimeout()
        await bench.steps(2)
        assert bench.state is State.READY
        await bench.steps()
        assert bench.state is State.EJECTED
        assert bench.replica.life.reason == "its health check does not answer, 3 times in a row"
        assert [type(error) for error in bench.engine.given_up] == [EngineHung]
        assert bench.replica.lost

    run(body)


@pytest.mark.parametrize("answer", [EngineTimeout(), SLOW, EngineReset()], ids=str)
@pytest.mark.parametrize("scraped", [True, False])
def test_a_busy_engine_that_moves_is_never_taken_out_for_slow_looks(run, answer, scraped):
    async def body(bench):
        await bench.to(State.READY)
        bench.replica.enter()
        bench.engine.health = answer
        for number in range(40):
            bench.engine.page = {"vllm:generation_tokens_total": float(number)} if scraped else EngineTimeout()
            # A look that is waited for in vain takes its time, all of it after the scrape.
            bench.engine.during = lambda path: setattr(bench, "clock", bench.clock + 3.5 * (path == "/health"))
            if not scraped:
                bench.engine.last_heard = bench.clock
            await bench.steps()
        assert bench.told == []

    run(body)


@pytest.mark.parametrize(("in_flight", "most"), [(0, 2), (1, 4)])
def test_a_health_check_is_on_a_new_connection_each_time_only_while_requests_may_need_one(run, in_flight, most):
    async def body(bench):
        await bench.to(State.READY)
        bench.replica.in_flight = in_flight
        asked, fresh = bench.engine.asked.count("/health"), len(bench.engine.fresh)
        await bench.steps(20)
        assert bench.engine.asked.count("/health") - asked == 4
        assert len(bench.engine.fresh) - fresh == most

    run(body)


@pytest.mark.parametrize("broken", ["page", "health"])
def test_after_a_miss_each_health_check_is_on_a_new_connection(run, broken):
    async def body(bench):
        await bench.to(State.READY)
        while bench.watch._steps % 10:
            await bench.steps()
        bench.policy = replace(POLICY, health=replace(POLICY.health, misses=100))
        setattr(bench.engine, broken, EngineTimeout())
        await bench.steps(5 if broken == "health" else 1)  # until the first miss
        asked, fresh = bench.engine.asked.count("/health"), len(bench.engine.fresh)
        await bench.steps(4)
        assert bench.engine.asked.count("/health") - asked == len(bench.engine.fresh) - fresh == 4

    run(body)


def test_misses_must_be_in_a_row(run):
    async def body(bench):
        bench.policy = replace(POLICY, health=replace(POLICY.health, canary_interval=0.0))
        await bench.to(State.READY)
        await bench.steps(20)
        for _ in range(5):
            bench.engine.page = bench.engine.health = EngineTimeout()
            await bench.steps(2)
            bench.engine.page, bench.engine.health = {}, 200
            await bench.steps()
        assert bench.told == []

    run(body)


def test_misses_before_an_ejection_do_not_count_behind_it(run):
    async def body(bench):
        bench.policy = replace(POLICY, health=replace(POLICY.health, canary_interval=0.0))
        await bench.to(State.READY)
        await bench.steps(20)
        bench.engine.health = EngineTimeout()
        await bench.steps(8)
        assert bench.state is State.EJECTED
        bench.engine.health = 200
        bench.clock += 20.0
        await bench.steps()
        assert bench.state is State.PROBATION
        bench.engine.health = EngineTimeout()
        bench.engine.hold = asyncio.Event()  # no canary proves it
        bench.replica.enter()
        await bench.steps(2)
        assert bench.state is State.PROBATION

    run(body)


@pytest.mark.parametrize("health", [503, 500, REFUSED], ids=str)
def test_a_health_check_that_says_no_takes_it_out(run, health):
    async def body(bench):
        await bench.to(State.READY)
        bench.engine.health = health
        await bench.steps(5)
        assert bench.states == [State.EJECTED]

    run(body)


def test_while_scrapes_succeed_its_health_is_asked_now_and_then(run):
    async def body(bench):
        await bench.to(State.READY)
        await bench.steps(20)
        assert bench.engine.asked.count("/metrics") == 20
        assert bench.engine.asked.count("/health") == 4
        assert bench.engine.asked.count("/v1/models") == 2

    run(body)


def test_signals_that_are_missing_are_told_when_that_begins_and_when_it_ends(run):
    async def body(bench):
        bench.engine.left_out = {"vllm:num_preemptions_total", "vllm:num_requests_waiting"}
        await bench.steps()
        assert bench.said == []  # before its first request some engines lack some
        assert bench.replica.reading.missing == frozenset()
        await bench.steps(5)
        assert bench.said == ["replica 127.0.0.1:8001: its vllm engine does not give preemptions, waiting"]
        assert bench.replica.reading.missing == {Signal.PREEMPTIONS, Signal.WAITING}
        bench.engine.page = EngineTimeout()
        await bench.steps(2)
        assert len(bench.said) == 1
        bench.engine.page, bench.engine.left_out = {}, set()
        await bench.steps(5)
        assert bench.said[1:] == ["replica 127.0.0.1:8001: all its signals are there"]

    run(body)


# --- ready: hangs and canaries


def test_an_engine_that_stands_still_with_work_is_hung_within_t_and_one_step(run):
    async def body(bench):
        await bench.to(State.READY)
        bench.replica.enter()
        bench.engine.page = {"process_start_time_seconds": 5_000.0, "vllm:generation_tokens_total": 7.0}
        await bench.steps()
        moved = bench.clock
        while bench.state is State.READY and bench.clock < moved + 100.0:
            await bench.steps()
        assert bench.state is State.EJECTED
        assert POLICY.health.hang <= bench.clock - moved <= POLICY.health.hang + 1.0
        assert bench.replica.life.reason.startswith("it has work and has not moved for 30 s")
        assert [type(error) for error in bench.engine.given_up] == [EngineHung]

    run(body)


def test_work_of_others_counts_as_work(run):
    async def body(bench):
        await bench.to(State.READY)
        bench.engine.page = {"process_start_time_seconds": 5_000.0, "vllm:num_requests_running": 1.0}
        await bench.steps(35)
        assert bench.states[0] is State.EJECTED
        assert bench.told[0].sign is Sign.HUNG

    run(body)


def test_without_counters_it_takes_longer(run):
    async def body(bench):
        bench.engine.owner, bench.engine.page = "someone", 404
        await bench.to(State.READY)
        bench.replica.enter()
        await bench.steps()
        began = bench.clock
        while bench.state is State.READY and bench.clock < began + 200.0:
            await bench.steps()
        assert 120.0 <= bench.clock - began <= 121.0

    run(body)


def test_an_engine_that_moves_is_never_hung(run):
    async def body(bench):
        await bench.to(State.READY)
        bench.replica.enter()
        for number in range(20):
            bench.engine.page = {"vllm:iteration_tokens_total_count": float(number)}
            await bench.steps(5, seconds=5.0)
        assert bench.told == []

    run(body)


def test_an_idle_engine_gets_a_canary_each_interval_and_no_more(run):
    async def body(bench):
        await bench.to(State.READY)
        await bench.steps(29)
        assert bench.engine.sent == []
        await bench.steps(65)
        assert bench.engine.sent == ["canary"] * 3
        assert bench.told == []
        assert bench.replica.in_flight == 0

    run(body)


def test_a_canary_can_be_switched_off_while_it_runs(run):
    async def body(bench):
        await bench.to(State.READY)
        bench.policy = replace(POLICY, health=replace(POLICY.health, canary_interval=0.0))
        await bench.steps(100)
        assert bench.engine.sent == []

    run(body)


def test_a_canary_without_an_answer_is_a_hang(run):
    async def body(bench):
        await bench.to(State.READY)
        bench.engine.hold = asyncio.Event()
        await bench.steps(31)
        assert bench.told[0].sign is Sign.HUNG
        assert bench.replica.life.reason == "a canary had no answer in 0.05 s"

    run(body)


# --- out, on probation


def test_out_for_its_time_then_one_canary_then_probation_then_ready(run):
    async def body(bench):
        await bench.to(State.EJECTED)
        await bench.steps(9)
        assert bench.engine.sent == []
        await bench.steps()
        assert (bench.states, bench.engine.sent) == ([State.PROBATION], ["canary"])
        await bench.steps(2)
        assert bench.states == [State.PROBATION, State.READY]
        assert bench.engine.sent == ["canary"] * 3

    run(body)


def test_good_service_for_long_is_forgiven(run):
    async def body(bench):
        await bench.to(State.EJECTED)
        await bench.steps(15)
        assert (bench.state, bench.replica.life.ejections) == (State.READY, 1)
        await bench.steps(70)
        assert bench.replica.life.ejections == 0

    run(body)


def test_an_engine_that_vanishes_at_its_canary_is_warmed_when_it_is_back(run):
    async def body(bench):
        bench.engine.page = {}
        await bench.to(State.EJECTED)
        bench.engine.inference = REFUSED
        await bench.steps(10)
        assert (bench.state, bench.replica.lost) == (State.EJECTED, True)
        bench.engine.inference = "answers"
        await bench.steps()
        assert bench.states == [State.STARTING, State.WARMING, State.READY]

    run(body)


# --- leaving


def test_a_drain_waits_for_what_is_in_flight_and_no_longer(run):
    async def body(bench):
        await bench.to(State.READY)
        bench.replica.enter()
        bench.replica.take(Sign.DRAIN, "drained by ops")
        await bench.steps(3)
        assert bench.state is State.DRAINING
        assert set(bench.engine.asked) == {"/metrics"}
        bench.replica.leave()
        await bench.steps()
        assert bench.state is State.GONE
        bench.engine.asked.clear()
        await bench.steps(3)
        assert bench.engine.asked == []
        assert bench.replica.reading is None

    run(body)


def test_what_waits_at_an_engine_that_hangs_while_it_drains_may_go_elsewhere(run):
    async def body(bench):
        await bench.to(State.READY)
        bench.replica.enter()
        bench.replica.take(Sign.DRAIN, "drained by ops")
        await bench.steps(40)
        assert bench.state is State.DRAINING
        assert type(bench.engine.given_up[0]) is EngineHung
        bench.engine.page = REFUSED
        await bench.steps(2)
        assert bench.state is State.DRAINING

    run(body)


PATHS = ("/health", "/v1/models", "/version", "/metrics", "/v1/completions")
TENDED = (State.READY, State.PROBATION)


@pytest.mark.parametrize(
    ("begin", "path"),
    [
        (begin, path)
        for begin in (State.FOUND, State.EJECTED, *TENDED)
        for path in PATHS
        if begin not in TENDED or path != "/version"  # a process does not change its version
    ],
)
def test_a_drain_at_any_moment_holds(run, begin, path):
    async def body(bench):
        if begin is not State.FOUND:
            await bench.to(begin)

        def drains(at):
            if at == path:
                bench.replica.take(Sign.DRAIN, "drained by ops")
                bench.replica.nudge()

        bench.engine.during = drains
        for _ in range(60):
            await bench.steps()
        assert bench.state is State.GONE
        assert bench.states[-2:] == [State.DRAINING, State.GONE]

    run(body)


# --- nothing that an engine does ends the watch

ANYTHING = [200, 500, REFUSED, SLOW, EngineTimeout(), EngineReset(), EngineProtocolError(), EngineBusy()]
INFERENCES = ["answers", "400", "401", "404", "429", "500", "503", "200", *ANYTHING[2:], EngineClosing(), EngineDead()]
PAGES = [{}, {"process_start_time_seconds": math.nan}, {"vllm:num_requests_running": -1.0}, 404, *ANYTHING[2:]]
MODELS = [["m"], ["m", "n"], ["other"], [], [""], ["a\nb"], [7], 404, *ANYTHING[2:]]


@pytest.mark.parametrize("seed", range(60))
def test_whatever_an_engine_does_no_step_raises_and_only_what_is_warm_is_ready(run, seed):
    async def body(bench):
        dice = Random(seed)
        warm = False
        for _ in range(120):
            engine = bench.engine
            steady = dice.random() < 0.5
            engine.health = 200 if steady else dice.choice(ANYTHING)
            engine.models = ["m"] if steady else dice.choice(MODELS)
            engine.version = "0.32.0" if steady else dice.choice(["0.1.0", "x", *ANYTHING[2:]])
            engine.page = {} if steady else dice.choice(PAGES)
            engine.inference = "answers" if steady else dice.choice(INFERENCES)
            if dice.random() < 0.1:
                bench.replica.take(dice.choice([Sign.DRAIN, Sign.UNDRAIN, Sign.RESTARTED]))
            if dice.random() < 0.2:
                bench.replica.note_failure(dice.choice([EngineReset(), EngineUnreachable(), EngineClosing()]))
            await bench.steps(seconds=dice.choice([0.1, 1.0, 30.0]))
        for step in bench.told:
            warm = (warm or step.sign is Sign.WARM) and step.sign not in (Sign.RESTARTED, Sign.UNDRAIN)
            assert warm or step.after.state not in (State.READY, State.PROBATION)
        bench.engine.health, bench.engine.models, bench.engine.version = 200, ["m"], "0.32.0"
        bench.engine.page, bench.engine.inference = {}, "answers"
        bench.replica.take(Sign.UNDRAIN)
        await bench.steps(30, seconds=30.0)
        assert bench.state is State.READY

    run(body)


# --- the loop


def test_the_loop_ends_only_when_the_replica_is_gone_and_listed_no_more(fakes):
    async def main():
        bench = Bench(fakes, interval=0.01, now=time.monotonic)
        running = asyncio.ensure_future(bench.watch.run())
        await asyncio.wait_for(bench.watch.greeted.wait(), 5)
        assert bench.state is State.READY
        bench.replica.take(Sign.DRAIN)
        bench.replica.nudge()
        while bench.state is not State.GONE:
            await asyncio.sleep(0.001)
        done, _ = await asyncio.wait({running}, timeout=0.1)
        assert not done
        bench.replica.removed = True
        bench.replica.nudge()
        await asyncio.wait_for(running, 5)

    asyncio.run(main())


def test_a_nudge_wakes_it(fakes):
    async def main():
        bench = Bench(fakes, interval=3_600.0, now=time.monotonic)
        running = asyncio.ensure_future(bench.watch.run())
        await bench.watch.greeted.wait()
        before = len(bench.engine.asked)
        bench.replica.nudge()
        async with asyncio.timeout(10):
            while len(bench.engine.asked) == before:
                await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait({running})

    asyncio.run(main())


def test_many_nudges_make_no_load(fakes):
    async def main():
        bench = Bench(fakes, interval=1.0, now=time.monotonic)
        running = asyncio.ensure_future(bench.watch.run())
        await bench.watch.greeted.wait()
        bench.engine.during = lambda path: bench.replica.nudge()  # each look is followed by the next
        before, begun = len(bench.engine.asked), time.monotonic()
        bench.replica.nudge()
        while len(bench.engine.asked) == before:
            await asyncio.sleep(0.001)
        await asyncio.wait({running}, timeout=0.5)
        assert len(bench.engine.asked) - before <= 40 * (time.monotonic() - begun)
        running.cancel()
        await asyncio.wait({running})

    asyncio.run(main())


def test_intervals_are_spread(fakes):
    async def main():
        bench = Bench(fakes, interval=1.0)
        waits = set()
        for _ in range(20):
            bench.watch._next = before = asyncio.get_running_loop().time()
            pausing = asyncio.ensure_future(bench.watch._pause())
            await asyncio.sleep(0)
            waits.add(bench.watch._next - before)
            pausing.cancel()
            await asyncio.wait({pausing})
        assert len(waits) > 10
        assert all(0.8 <= seconds <= 1.1 for seconds in waits)

    asyncio.run(main())
