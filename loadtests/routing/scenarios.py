"""What is run: kinds of traffic, each with four replicas that are sized so that it matters where a request goes.

Rates are such that the replicas are busy and a good choice keeps them far from overload, and that gateway, engines and
load together need less than two cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadtests.bench.named import named
from loadtests.engine.spec import EngineSpec
from loadtests.routing.traffic import Chat, Length, Retrieval, Traffic, Unshared

MODEL = "routing-model"
REPLICAS = 4

USUAL = EngineSpec(
    model=MODEL,
    max_model_len=8192,
    max_num_seqs=16,
    max_num_batched_tokens=2048,
    kv_blocks=1025,
    prefill_tokens_per_second=10_000.0,
    step_time=0.015,
    step_time_per_sequence=0.0005,
)
"""16,384 tokens of KV cache, about 60 tokens a second for each stream."""

CROWDED = replace(USUAL, max_num_seqs=8, kv_blocks=801, prefill_tokens_per_second=6_000.0)
"""Few slots: a long answer holds one that others wait for."""

HALF = replace(USUAL, prefill_tokens_per_second=5_000.0, step_time=0.03, step_time_per_sequence=0.001)
"""Half as fast as the usual one."""


class UnknownScenario(ValueError):
    """A name that is not in the table."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Traffic, the replicas that it goes to, and how many instances of a target stand in front of them.

    ``limit`` is the longest time to a first token, in seconds, of a request that counts as goodput.
    """

    name: str
    summary: str
    traffic: Traffic
    replicas: tuple[EngineSpec, ...]
    limit: float = 1.0
    instances: int = 1


CONVERSATIONS = Chat(
    rate=2.2,
    more=5.0,
    pause=1.0,
    think=1.5,
    system=300,
    opening=Length(1000, 0.5, 3000),
    question=Length(80, 0.6, 400),
    answer=Length(45, 0.5, 200),
)


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "retrieval",
        "questions about 12 documents of 4,000 tokens; the cache of a replica holds about 4 of them",
        Retrieval(
            rate=10.0, documents=12, document=4000, skew=0.7, question=Length(30, 0.4, 200), output=Length(35, 0.4, 120)
        ),
        (USUAL,) * REPLICAS,
    ),
    Scenario(
        "chat",
        "conversations of about 6 turns that grow from 1,500 tokens; together they need more cache than there is",
        CONVERSATIONS,
        (USUAL,) * REPLICAS,
        limit=0.5,
    ),
    Scenario(
        "mixed",
        "prompts of 1 to 6,000 tokens and answers of 1 to 400, nothing shared, few slots",
        Unshared(rate=13.0, prompt=Length(400, 1.2, 6000), output=Length(30, 0.9, 400)),
        (CROWDED,) * REPLICAS,
    ),
    Scenario(
        "slow-replica",
        "nothing shared; one replica is half as fast as the others",
        Unshared(rate=15.0, prompt=Length(800, 0.6, 4000), output=Length(35, 0.5, 150)),
        (USUAL,) * (REPLICAS - 1) + (HALF,),
    ),
    Scenario(
        "bursts",
        "4 requests a second, and 24 more within 0.3 s each 5 s, nothing shared",
        Unshared(rate=4.0, prompt=Length(1000, 0.6, 4000), output=Length(35, 0.5, 150), burst=24),
        (USUAL,) * REPLICAS,
    ),
    Scenario(
        "two-instances",
        "chat, each request sent to one of two instances by chance: turns of a conversation do not stay with one",
        CONVERSATIONS,
        (USUAL,) * REPLICAS,
        limit=0.5,
        instances=2,
    ),
)


def by_name(name: str) -> Scenario:
    """Raises `UnknownScenario`."""
    return named(SCENARIOS, [name], "scenario", UnknownScenario)[0]


def select(names: Sequence[str]) -> tuple[Scenario, ...]:
    """The named ones in the table's order; all without names. Raises `UnknownScenario`."""
    return named(SCENARIOS, names, "scenario", UnknownScenario) if names else SCENARIOS
