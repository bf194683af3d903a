"""A balancer over replicas that no engine stands behind, and requests for it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from gateway.fleet.balance.balancer import Balancer
from gateway.fleet.balance.prompt import prompt_seed, read_prompt
from gateway.fleet.life import Sign
from gateway.fleet.look import Seen
from gateway.fleet.replica import Replica
from gateway.fleet.signals import Reading, Signal
from gateway.model import BodyKind, Endpoint, EngineSpec, InferenceRequest, Route, Usage
from gateway.policy.balancing import Balancing
from gateway.policy.fleet import FleetPolicy
from gateway.telemetry.trace import Trace

_CHAT = Route("POST", "/v1/chat/completions", Endpoint.CHAT, BodyKind.JSON)
_MODEL, _SALT = "served-7b", "s" * 64
_ROUNDS = 50
_SYSTEM = "You answer questions about the products of one shop, politely and in few words. " * 4

Run = Callable[[], object]


def _no_link(_: Callable[[], None]) -> Any:
    """Nothing is ever sent."""
    return None


class World:
    """``count`` replicas whose engines are a little busy, each as scraped just now."""

    def __init__(self, count: int) -> None:
        self.dice = random.Random(1)
        policy = Balancing(strategy="estimate")
        self.balancer = Balancer(
            lambda: policy,
            key=b"k" * 32,
            now=time.monotonic,
            random=self.dice.random,
            compared=lambda strategy, choice: None,
        )
        self.replicas = tuple(self._replica(number) for number in range(count))

    def _replica(self, number: int) -> Replica:
        replica = Replica(
            EngineSpec(f"http://10.0.{number // 200}.{number % 200 + 1}:8000"),
            _no_link,
            FleetPolicy,
            self.balancer.on_transition,
            lambda _: True,
            origin="configuration",
            now=time.monotonic,
            random=self.dice.random,
        )
        replica.seen = Seen(models=(_MODEL,))
        replica.take(Sign.HEALTHY)
        replica.take(Sign.WARM)
        values = {Signal.RUNNING: 8.0 + number % 3, Signal.WAITING: 0.0, Signal.KV_USE: 0.4}
        replica.work.scraped(Reading(values, frozenset()), time.monotonic())
        return replica

    def choice(self, request: InferenceRequest) -> Any:
        """The choice for a request."""
        return self.balancer.consider(request, "general", _MODEL, _SALT, request_id=f"req_{0:024x}")

    def send(self, request: InferenceRequest, replica: Replica) -> None:
        """One that goes to this replica, and is answered at once."""
        choice = self.choice(request)
        lane = choice.lane(choice.among([replica]))
        lane.enter()
        lane.answered()
        lane.leave()


def chat(size: int, seed: int) -> InferenceRequest:
    """A conversation of four messages whose prompt has about so many bytes."""
    dice = random.Random(seed)
    left = max(size - len(_SYSTEM) - 150, 30)
    said = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz ", k=left // 3)) for _ in range(3)]
    roles = ("system", "user", "assistant", "user")
    messages = [{"role": role, "content": text} for role, text in zip(roles, (_SYSTEM, *said), strict=True)]
    return InferenceRequest(_CHAT, "general", {"model": "general", "messages": messages}, stream=True)


def decisions(replicas: int, *, void: int, held: int) -> tuple[Run, int]:
    """Choices alone. Before each, ``void`` quotes are made void; ``held`` replicas hold how the prompts begin."""
    world = World(replicas)
    for replica in world.replicas[:held]:
        world.send(chat(700, 0), replica)
    choices = [world.choice(chat(700, number)) for number in range(_ROUNDS)]
    quotes = [[replica.quote for replica in world.dice.sample(world.replicas, void)] for _ in choices]

    def run() -> None:
        for choice, changed in zip(choices, quotes, strict=True):
            for quote in changed:
                quote.void()
            choice.among(world.replicas)

    return run, len(choices)


def requests(replicas: int) -> tuple[Run, int]:
    """All that is done for a request: its prompt read, a replica chosen, and what that and its answer teach."""
    world, wanted, trace = World(replicas), [chat(700, number) for number in range(_ROUNDS)], Trace("req_1", 0.0, 0.0)
    trace.usage = Usage(prompt=170, completion=20)

    def run() -> None:
        for request in wanted:
            choice = world.choice(request)
            lane = choice.lane(choice.among(world.replicas))
            lane.enter()
            lane.answered()
            lane.leave()
            choice.learn(trace)

    return run, len(wanted)


def hashing(size: int) -> tuple[Run, int]:
    """A prompt of so many bytes from its parsed body to its chain."""
    request, seed, times = chat(size, 1), prompt_seed(b"k" * 32, _MODEL, _SALT), max(1, 200_000 // size)

    def run() -> None:
        for _ in range(times):
            read_prompt(request, seed)

    return run, times
