"""Two instances in front of one fleet send a conversation's turns to where its beginning is, as one alone does.

Engines are simulated: each computes prompts one after the other and remembers all of them. Time is that of the events.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

import pytest

from gateway.fleet.balance.balancer import Balancer
from gateway.fleet.balance.prompt import prompt_seed, reach, read_prompt
from gateway.fleet.balance.shared import Heard, SharedLoad, pack
from gateway.fleet.life import Sign
from gateway.fleet.look import Seen
from gateway.fleet.replica import Replica
from gateway.fleet.signals import Reading, Signal
from gateway.model import BodyKind, Endpoint, EngineSpec, InferenceRequest, Route, Usage
from gateway.policy.balancing import Balancing
from gateway.policy.fleet import FleetPolicy
from gateway.telemetry.trace import Trace

CHAT = Route("POST", "/v1/chat/completions", Endpoint.CHAT, BodyKind.JSON)
MODEL, KEY = "served-7b", b"k" * 32
ENGINES, RATE, BYTES = 4, 8_000.0, 4.0  # prompt tokens a second, bytes of each
SCRAPE, SHARE = 0.25, 0.1


class Engine:
    """What one engine has computed, and until when it is busy."""

    def __init__(self) -> None:
        self.blocks: set[int] = set()
        self.free_at = 0.0
        self.waiting = self.running = self.answered = 0
        self.asked = self.hits = 0.0

    def take(self, prompt: Any, now: float) -> tuple[int, float]:
        """Bytes of the prompt that were there, and when its first token comes."""
        chain = prompt.chain
        held = reach(next((place for place, block in enumerate(chain) if block not in self.blocks), len(chain)))
        self.blocks.update(prompt.chain)
        self.asked += prompt.size / BYTES
        self.hits += held / BYTES
        self.free_at = max(self.free_at, now) + (prompt.size - held) / BYTES / RATE + 0.02
        self.waiting += 1
        return held, self.free_at

    def reading(self) -> Reading:
        values = {
            Signal.RUNNING: self.running,
            Signal.WAITING: self.waiting,
            Signal.KV_USE: 0.3,
            Signal.CACHE_QUERIES: self.asked,
            Signal.CACHE_HITS: self.hits,
            Signal.PROMPT_TOKENS: self.asked,
            Signal.TTFT_COUNT: self.answered,
        }
        return Reading(values, frozenset())


class Instance:
    """One gateway's balancer and replicas."""

    def __init__(self, now: Callable[[], float], number: int) -> None:
        self.balancer = Balancer(
            Balancing, key=KEY, now=now, random=Random(number).random, compared=lambda strategy, choice: None
        )
        self.replicas = [self._replica(place, now) for place in range(ENGINES)]
        self.load = SharedLoad()

    def _replica(self, place: int, now: Callable[[], float]) -> Replica:
        replica = Replica(
            EngineSpec(f"http://127.0.0.1:{8001 + place}"),
            lambda lost: None,  # type: ignore[arg-type, return-value]
            FleetPolicy,
            self.balancer.on_transition,
            lambda replica: True,
            origin="configuration",
            now=now,
            random=lambda: 0.5,
        )
        replica.seen = Seen(models=(MODEL,))
        replica.take(Sign.HEALTHY)
        replica.take(Sign.WARM)
        return replica


class Play:
    """Conversations that begin at random and whose turns go to an instance at random."""

    def __init__(self, instances: int, *, hints: bool, rate: float, seed: int) -> None:
        self.now = 1_000.0
        self.random = Random(seed)
        self.engines = [Engine() for _ in range(ENGINES)]
        self.instances = [Instance(lambda: self.now, number) for number in range(instances)]
        self.reports: dict[Instance, bytes] = {}
        self.hints = hints
        self.size = self.held = 0
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        for number, instance in enumerate(self.instances):
            for place in range(ENGINES):
                self.after(SCRAPE * (number + place / ENGINES) / instances, self.scrape, instance, place)
            self.after(SHARE * (number + 0.5) / instances, self.share, instance)
        begin = 0.0
        self.left = 200
        for number in range(self.left):
            begin += self.random.expovariate(rate)
            opening = {"role": "system", "content": Random(number % 4).randbytes(1_000).hex()}
            self.after(begin, self.turn, [opening], self.random.randint(3, 7))

    def after(self, seconds: float, step: Callable[..., None], *values: Any) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), step, values))

    def hit_rate(self) -> float:
        while self.left:
            self.now, _, step, values = heapq.heappop(self._events)
            step(*values)
        return self.held / self.size

    def turn(self, said: list[dict[str, str]], turns: int) -> None:
        instance = self.random.choice(self.instances)
        said = [*said, {"role": "user", "content": self.random.randbytes(self.random.randint(400, 3_000)).hex()}]
        request = InferenceRequest(CHAT, "general", {"messages": said}, stream=True)
        choice = instance.balancer.consider(request, "general", MODEL, None, request_id="req_0")
        replica = choice.among(instance.replicas)
        assert replica is not None
        lane = choice.lane(replica)
        lane.enter()
        prompt = read_prompt(request, prompt_seed(KEY, MODEL, None))
        engine = self.engines[instance.replicas.index(replica)]
        held, answer_at = engine.take(prompt, self.now)
        self.size += prompt.size
        self.held += held

        def answered() -> None:
            engine.waiting -= 1
            engine.running += 1
            engine.answered += 1
            lane.answered()
            self.after(self.random.uniform(0.5, 3.0), ended)

        def ended() -> None:
            engine.running -= 1
            lane.leave()
            trace = Trace("req_0", 0.0, 0.0)
            trace.usage = Usage(prompt=round(prompt.size / BYTES))
            choice.learn(trace)
            if turns > 1:
                answer = {"role": "assistant", "content": self.random.randbytes(300).hex()}
                self.after(self.random.expovariate(0.25), self.turn, [*said, answer], turns - 1)
            else:
                self.left -= 1

        self.after(answer_at - self.now, answered)

    def scrape(self, instance: Instance, place: int) -> None:
        replica, reading = instance.replicas[place], self.engines[place].reading()
        replica.reading, replica.read_at = reading, self.now
        replica.work.scraped(reading, self.now)
        self.after(SCRAPE, self.scrape, instance, place)

    def share(self, instance: Instance) -> None:
        replicas, others = instance.replicas, [each for each in self.instances if each is not instance]
        self.reports[instance] = pack({each.point: (each.in_flight, each.work.pending) for each in replicas})
        heard = [Heard(self.reports[each], 0.05) for each in others if self.reports.get(each)]
        instance.load.hear(heard, self.now)
        totals = instance.load.totals(self.now)
        for replica in replicas:
            replica.work.heard_of_others(*totals.get(replica.point, (0, 0)))
        instance.balancer.hints.shared = self.hints
        if told := instance.balancer.hints.take():
            for other in others:
                assert other.balancer.hints.learn(told, {each.point: each.id for each in other.replicas})
        self.after(SHARE, self.share, instance)


@pytest.mark.parametrize(("rate", "most"), [(2.0, 0.03), (6.0, 0.07)])
def test_two_instances_keep_conversations_together_nearly_as_one_does(rate, most):
    alone = Play(1, hints=True, rate=rate, seed=1).hit_rate()
    assert alone > 0.6
    assert Play(2, hints=True, rate=rate, seed=1).hit_rate() >= alone - most


def test_without_hints_they_would_split_them():
    assert Play(2, hints=False, rate=2.0, seed=1).hit_rate() < Play(2, hints=True, rate=2.0, seed=1).hit_rate() - 0.08
