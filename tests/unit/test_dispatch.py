"""From an order to an answer: who waits for a place, in which order they get it, and what is never left behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.admission.gate import Claim, Gate
from gateway.dispatch import Dispatch
from gateway.errors import EngineBusy, EngineRefused, EngineReset, GatewayError
from gateway.model import Priority
from gateway.policy.live import load_policy
from gateway.routes import ROUTES
from gateway.steps.accept import accept
from gateway.steps.forward import Order
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.trace import Trace

SHIPPED = load_policy(Path(str(files("policies"))))
ROUTE = ROUTES["POST", "/v1/chat/completions"]
MODEL = "served-7b"
WHOLE = b'{"model":"served-7b","choices":[{"finish_reason":"stop"}]}'
EVENTS = (
    b'data: {"model":"served-7b","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
    b"data: [DONE]\n\n"
)


class Site:
    """A dispatch over lanes. ``answers`` holds what each lane waits for before it answers."""

    def __init__(self, fakes, *lanes, admission=None, attempts=2) -> None:
        loop = asyncio.get_running_loop()
        self.fakes = fakes
        self.lanes = list(lanes)
        self.outcomes: list[tuple[str, str]] = []
        self.order: list[str] = []
        self.policy = SimpleNamespace(
            routing=replace(SHIPPED.routing, admission=replace(SHIPPED.routing.admission, **(admission or {})))
        )
        self.metrics = Metrics()
        self.gate = Gate(
            loop,
            lambda: self.policy.routing.admission,
            self.ready,
            on_outcome=lambda priority, outcome, _: self.outcomes.append((priority, outcome)),
        )
        self.dispatch = Dispatch(self, self.gate, self, self.metrics, loop.time, attempts=attempts)

    def ready(self, model):
        return self.lanes if model == MODEL else ()

    def back_in(self, model):
        return 17

    def among(self, candidates):
        return next((lane for lane in candidates if lane.in_flight < lane.room), None)

    def lane(self, replica):
        return replica

    def learn(self, trace):
        self.order.append(trace.request_id)

    def ask(self, name="req_1", *, stream=False, tenant="acme", priority=Priority.STANDARD, model=MODEL):
        body = b'{"model":"general","messages":[{"role":"user","content":"hi"}],"stream":%b}' % (
            b"true" if stream else b"false"
        )
        request = accept(ROUTE, b"application/json", body, SHIPPED.guards)
        exchange, trace = self.fakes.Exchange("POST", ROUTE.path), Trace(name, 5.0, 0.0)
        trace.priority, trace.stream = priority, stream
        order = Order(request, model, b"", b"application/json", body, 60.0, 1 << 20)
        claim = Claim(
            model=model, alias="general", tenant=tenant, priority=priority, weight=1.0, tokens=10, size=len(body),
            entered=asyncio.get_running_loop().time(),
        )  # fmt: skip
        task = asyncio.ensure_future(self.dispatch.serve(exchange, order, trace, self, lambda: claim))
        return SimpleNamespace(exchange=exchange, trace=trace, task=task)


class Held:
    """A turn of a lane that answers when it is let go."""

    def __init__(self, turn) -> None:
        self.turn = turn
        self.waiting: list[asyncio.Future] = []

    async def __call__(self):
        go = asyncio.get_running_loop().create_future()
        self.waiting.append(go)
        await go
        return await self.turn()

    def let(self, count=1):
        for _ in range(count):
            self.waiting.pop(0).set_result(None)


def run(use):
    async def bounded():
        async with asyncio.timeout(5):
            await use()

    asyncio.run(bounded())


async def until(condition):
    while not condition():
        await asyncio.sleep(0)


def idle(site):
    """Nothing is in flight, waits or is granted, and nothing is counted as active."""
    return (
        not any(lane.in_flight for lane in site.lanes)
        and not any(site.gate.depths().values())
        and not site.gate.waits(MODEL)
        and (site.dispatch.budget.active, site.dispatch.budget.retrying) == (0, 0)
    )


def test_one_that_finds_room_does_not_wait(fakes):
    async def use():
        site = Site(fakes, fakes.Lane(fakes.says(WHOLE)))
        asked = site.ask()
        await asked.task
        assert (asked.exchange.status, asked.trace.queued, site.outcomes) == (200, 0.0, [])
        assert idle(site)

    run(use)


def test_those_that_find_none_are_served_in_the_order_of_their_coming(fakes):
    async def use():
        held = Held(fakes.says(WHOLE))
        lane = fakes.Lane(held)
        lane.room = 2
        site = Site(fakes, lane)
        asked = [site.ask(f"req_{number}") for number in range(6)]
        for number in range(6):
            await until(lambda number=number: len(held.waiting) == min(2, 6 - number))
            held.let()
            await until(lambda number=number: len(site.order) > number)
        await asyncio.gather(*(each.task for each in asked))
        assert site.order == [f"req_{number}" for number in range(6)]
        assert lane.most_in_flight == 2
        assert [bool(each.trace.queued) for each in asked] == [False, False, True, True, True, True]
        assert site.outcomes == [("standard", "dispatched")] * 4
        assert idle(site)

    run(use)


def test_nobody_slips_past_those_who_wait(fakes):
    async def use():
        held = Held(fakes.says(WHOLE))
        lane = fakes.Lane(held)
        lane.room = 1
        site = Site(fakes, lane)
        first, second = site.ask("first"), site.ask("second")
        await until(lambda: held.waiting)
        held.let()
        await until(first.task.done)
        third = site.ask("third")  # the place is free, and granted to the second one
        for _ in range(2):
            await until(lambda: held.waiting)
            held.let()
        await asyncio.gather(second.task, third.task)
        assert site.order == ["first", "second", "third"]
        assert idle(site)

    run(use)


def test_an_interactive_one_goes_before_bulk_that_came_earlier(fakes):
    async def use():
        held = Held(fakes.says(WHOLE))
        lane = fakes.Lane(held)
        lane.room = 1
        site = Site(fakes, lane)
        asked = [site.ask("running"), site.ask("bulk", priority=Priority.BULK)]
        await until(lambda: any(site.gate.depths().values()))
        asked.append(site.ask("urgent", priority=Priority.INTERACTIVE))
        for _ in asked:
            await until(lambda: held.waiting)
            held.let()
            await asyncio.sleep(0)
        await asyncio.gather(*(each.task for each in asked))
        assert site.order == ["running", "urgent", "bulk"]

    run(use)


def test_bulk_leaves_the_places_that_are_held_back_for_others(fakes):
    async def use():
        held = Held(fakes.says(WHOLE))
        lane = fakes.Lane(held)
        lane.room = 5
        site = Site(fakes, lane)
        site.gate.mix.began(MODEL, Priority.INTERACTIVE)  # there usually is one
        for now in (0.0, 1_000.0):
            site.gate.mix.sample(now)
        bulk = [site.ask(f"bulk_{number}", priority=Priority.BULK) for number in range(8)]
        await until(lambda: lane.in_flight == 3)
        for _ in range(20):
            await asyncio.sleep(0)
        assert lane.in_flight == 3
        urgent = site.ask("urgent", priority=Priority.INTERACTIVE)
        await until(lambda: lane.in_flight == 4)
        assert site.outcomes == [("interactive", "dispatched")]
        while not all(each.task.done() for each in (*bulk, urgent)):
            if held.waiting:
                held.let()
            await asyncio.sleep(0)
        assert idle(site)

    run(use)


@pytest.mark.parametrize("when", ["waiting", "granted", "running"])
def test_one_whose_client_leaves_leaves_nothing_behind(fakes, when):
    async def use():
        held = Held(fakes.says(WHOLE))
        lane = fakes.Lane(held)
        lane.room = 1
        site = Site(fakes, lane)
        first, leaver, last = site.ask("first"), site.ask("leaver"), site.ask("last")
        await until(lambda: held.waiting)
        if when == "waiting":
            leaver.task.cancel()
        else:
            held.let()
            await until(first.task.done)
            if when == "running":
                await until(lambda: held.waiting)
            leaver.task.cancel()
        while not all(each.task.done() for each in (first, leaver, last)):
            if held.waiting and not held.waiting[0].done():
                held.let()
            elif held.waiting:
                held.waiting.pop(0)
            await asyncio.sleep(0)
        assert leaver.task.cancelled()
        assert site.order == ["first", "last"]
        assert idle(site)

    run(use)


def test_a_full_queue_refuses_and_says_when_to_come_back(fakes):
    async def use():
        held = Held(fakes.says(WHOLE))
        lane = fakes.Lane(held)
        lane.room = 1
        site = Site(fakes, lane, admission={"queue": 1})
        asked = [site.ask("running"), site.ask("waiting"), site.ask("refused")]
        with pytest.raises(GatewayError) as refused:
            await asked[2].task
        assert (refused.value.spec.code, refused.value.spec.status) == ("queue_full", 429)
        assert 1 <= refused.value.retry_after <= 60
        for _ in range(2):
            await until(lambda: held.waiting)
            held.let()
        await asyncio.gather(*(each.task for each in asked[:2]))
        assert site.outcomes == [("standard", "full"), ("standard", "dispatched")]
        assert idle(site)

    run(use)


def test_one_that_waits_too_long_is_told_so(fakes):
    async def use():
        lane = fakes.Lane(Held(fakes.says(WHOLE)))
        lane.room = 1
        wait = SHIPPED.routing.admission.wait._replace(standard=0.01)
        site = Site(fakes, lane, admission={"wait": wait})
        running, late = site.ask("running"), site.ask("late")
        with pytest.raises(GatewayError) as expired:
            await late.task
        assert (expired.value.spec.code, expired.value.spec.status) == ("queue_timeout", 503)
        assert late.trace.queued > 0
        running.task.cancel()
        await asyncio.wait([running.task])
        assert idle(site)

    run(use)


def test_a_model_that_nobody_serves_is_not_waited_for(fakes):
    async def use():
        site = Site(fakes, fakes.Lane(fakes.says(WHOLE)))
        with pytest.raises(GatewayError) as unserved:
            await site.ask(model="other").task
        assert (unserved.value.spec.code, unserved.value.retry_after) == ("no_ready_replica", 17)
        assert site.outcomes == []
        assert idle(site)

    run(use)


def test_those_that_wait_learn_that_the_last_replica_has_gone(fakes):
    async def use():
        lane = fakes.Lane(Held(fakes.says(WHOLE)))
        lane.room = 1
        wait = SHIPPED.routing.admission.wait._replace(standard=0.05)
        site = Site(fakes, lane, admission={"wait": wait})
        running, waiting = site.ask("running"), site.ask("waiting")
        await until(lambda: any(site.gate.depths().values()))
        site.lanes.clear()
        site.gate.pump()
        with pytest.raises(GatewayError) as lost:
            await waiting.task
        assert (lost.value.spec.code, lost.value.retry_after) == ("no_ready_replica", 17)
        running.task.cancel()
        await asyncio.wait([running.task])
        assert idle(site)

    run(use)


def test_one_that_an_engine_let_go_of_may_exceed_the_limit_of_another(fakes):
    async def use():
        held = Held(fakes.says(WHOLE))
        dying, full = fakes.Lane(fakes.fails(EngineReset())), fakes.Lane(held, name="127.0.0.1:8002")
        full.room = 1
        site = Site(fakes, full, dying)
        first = site.ask("first")
        await until(lambda: held.waiting)
        lost = site.ask("lost")
        await until(lambda: full.in_flight == 2)
        while held.waiting:
            held.let()
        await asyncio.gather(first.task, lost.task)
        assert lost.trace.attempts == 2
        assert idle(site)

    run(use)


@pytest.mark.parametrize("error", [EngineBusy, lambda: EngineRefused(elsewhere=True)])
def test_one_that_an_engine_may_be_at_work_on_may_not(fakes, error):
    async def use():
        held = Held(fakes.says(WHOLE))
        failing, full = fakes.Lane(fakes.fails(error())), fakes.Lane(held, name="127.0.0.1:8002")
        full.room = 1
        site = Site(fakes, full, failing)
        first = site.ask("first")
        await until(lambda: held.waiting)
        failed = site.ask("failed")
        with pytest.raises(GatewayError):
            await failed.task
        assert (failed.trace.attempts, full.in_flight) == (1, 1)
        held.let()
        await first.task
        assert idle(site)

    run(use)


def test_a_stream_that_waits_hears_comments_and_then_its_answer(fakes):
    async def use():
        held = Held(fakes.says(EVENTS, content_type="text/event-stream"))
        lane = fakes.Lane(held)
        lane.room = 1
        site = Site(fakes, lane, admission={"comments": 0.005})
        running, waiting, whole = site.ask("running", stream=True), site.ask("waits", stream=True), site.ask("whole")
        await until(lambda: waiting.exchange.sent.count(b": waiting\n\n") >= 2)
        assert not running.exchange.started
        assert not whole.exchange.started
        for _ in range(3):
            await until(lambda: held.waiting)
            held.let()
        await asyncio.gather(running.task, waiting.task, whole.task, return_exceptions=True)
        assert waiting.exchange.status == 200
        assert waiting.exchange.sent_headers[b"x-request-id"] == b"waits"
        assert b"x-gateway-queue-ms" not in waiting.exchange.sent_headers
        assert waiting.exchange.sent.replace(b": waiting\n\n", b"").startswith(b'data: {"model":"general"')
        assert idle(site)

    run(use)
