"""Models that share replicas, as adapters of one engine do: no place is left while somebody waits for it, none is given
twice, and nobody has to wait for more than a turn of each other model."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import closing

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, rule

from gateway.admission.gate import Claim, Gate
from gateway.errors import GatewayError
from gateway.model import Priority
from gateway.policy.admission import Admission, PerClass

MODELS = ("a", "b", "c")
POLICY = Admission(wait=PerClass(3_600, 3_600, 3_600), share=PerClass(1, 1, 1), starve=PerClass(0, 0, 0))
STEADY = settings(deadline=None, suppress_health_check=list(HealthCheck))
SERVED = st.lists(st.sampled_from(MODELS), min_size=1, max_size=3, unique=True)


class Replica:
    def __init__(self, models: list[str], room: int) -> None:
        self.models = models
        self.room = room
        self.in_flight = 0


class Site:
    """A gate over replicas of which each serves several models, and requests that use it as the dispatch does."""

    def __init__(self, replicas: list[Replica]) -> None:
        self.loop = asyncio.SelectorEventLoop()
        self.replicas = replicas
        self.in_vain = 0
        self.tasks: list[asyncio.Task[None]] = []
        self.gate = Gate(self.loop, lambda: POLICY, self.pool, on_outcome=lambda *_: None)

    def pool(self, model: str) -> list[Replica]:
        return [each for each in self.replicas if model in each.models]

    def pick(self, model: str) -> Replica | None:
        free = [each for each in self.pool(model) if each.in_flight < each.room]
        return min(free, key=lambda each: each.in_flight, default=None)

    def spin(self, steps: int) -> None:
        async def so_many() -> None:
            for _ in range(steps):
                await asyncio.sleep(0)

        self.loop.run_until_complete(so_many())

    def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        self.spin(20)
        self.loop.close()


class Request:
    """It gets a place at once or in its turn, and keeps it until it is told to end."""

    def __init__(self, site: Site, model: str, priority: Priority = Priority.STANDARD) -> None:
        self.site = site
        self.model = model
        self.priority = priority
        self.stage = "new"
        self.end = asyncio.Event()
        self.task = site.loop.create_task(self.live())
        site.tasks.append(self.task)

    async def live(self) -> None:
        try:
            replica = await self.placed()
            replica.in_flight += 1
            assert replica.in_flight <= replica.room
            self.stage = "in flight"
            try:
                await self.end.wait()
            finally:
                replica.in_flight -= 1
                self.site.gate.freed(*replica.models)
        except GatewayError:
            pass
        finally:
            self.stage = "ended"

    async def placed(self) -> Replica:
        site, model = self.site, self.model
        if not site.gate.waits(model) and (replica := site.pick(model)) is not None:
            return replica
        claim = Claim(model, model, f"tenant {model}", self.priority, 1.0, 100, 10, site.loop.time())
        self.stage = "waits"
        while True:
            place = await site.gate.turn(claim)
            replica = site.pick(model)
            if replica is not None:
                place.kept()
                return replica
            site.in_vain += 1
            place.done()


class SharedMachine(RuleBasedStateMachine):
    """Requests for three models come, end and are cancelled between any two steps of the loop."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.site = Site([Replica(["a", "b"], 1), Replica(["b", "c"], 2), Replica(["c"], 1)])
        self.all: list[Request] = []

    @rule(target=requests, model=st.sampled_from(MODELS), priority=st.sampled_from(tuple(Priority)))
    def arrive(self, model, priority):
        self.all.append(Request(self.site, model, priority))
        return self.all[-1]

    @rule(request=consumes(requests))
    def end(self, request):
        request.end.set()

    @rule(request=consumes(requests))
    def cancel(self, request):
        request.task.cancel()

    @rule(steps=st.integers(1, 3))
    def spin(self, steps):
        self.site.spin(steps)

    @rule(models=SERVED, room=st.integers(1, 3), which=st.integers(0, 2))
    def change_the_fleet(self, models, room, which):
        """Another process serves other models there; the old one ends what it has."""
        self.site.replicas[which] = Replica(models, room)
        self.site.gate.pump()

    @rule()
    def come_to_rest(self):
        """Without another word to the gate, nobody waits where a place is free."""
        self.site.spin(20)
        waiting = Counter(request.model for request in self.all if request.stage == "waits")
        for model in MODELS:
            assert not (waiting[model] and self.site.pick(model))
            assert self.site.gate.waits(model) is bool(waiting[model])
        assert sum(self.site.gate.depths().values()) == sum(waiting.values())
        ended = [request.task for request in self.all if request.task.done() and not request.task.cancelled()]
        assert [task.exception() for task in ended] == [None] * len(ended)

    def teardown(self):
        self.site.close()
        assert all(request.task.done() for request in self.all)
        assert not any(self.site.gate.depths().values())
        assert not any(map(self.site.gate.waits, MODELS))


TestShared = SharedMachine.TestCase
TestShared.settings = settings(STEADY, max_examples=80, stateful_step_count=50)


@STEADY
@given(
    listed=st.permutations(MODELS),
    room=st.integers(1, 4),
    waiting=st.lists(st.integers(1, 12), min_size=3, max_size=3),
    priorities=st.lists(st.sampled_from(tuple(Priority)), min_size=3, max_size=3),
    dice=st.randoms(use_true_random=False),
)
def test_places_go_around_among_the_models_of_a_replica(listed, room, waiting, priorities, dice):
    with closing(Site([Replica(list(listed), room)])) as site:
        running = [Request(site, "a") for _ in range(room)]
        site.spin(3)
        asked = [
            (model, priority)
            for model, count, priority in zip(MODELS, waiting, priorities, strict=True)
            for _ in range(count)
        ]
        dice.shuffle(asked)
        requests = [Request(site, *each) for each in asked]
        site.spin(3)
        order: list[str] = []
        left = Counter(request.model for request in requests)
        while left.total():
            running.pop(dice.randrange(room)).end.set()
            site.spin(8)
            (placed,) = [each for each in requests if each.stage == "in flight" and each not in running]
            running.append(placed)
            order.append(placed.model)
            left[placed.model] -= 1
            for model in MODELS:
                assert not left[model] or len(order) < len(MODELS) or model in order[-len(MODELS) :]
        assert site.in_vain == 0
