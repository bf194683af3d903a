"""What is run: who sends how much when, in shares of a capacity that each run measures first. Pure.

The engines are small, so that their capacity is known and a flood of requests fits on two cores: 4 with 8 slots, about
27 answers a second of the usual length together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from loadtests.bench.named import named
from loadtests.engine.spec import EngineSpec
from loadtests.routing.traffic import Length

MODEL = "overload-model"
REPLICAS = 4

ENGINE = EngineSpec(
    model=MODEL,
    max_model_len=8192,
    max_num_seqs=8,
    max_num_batched_tokens=4096,
    kv_blocks=2561,
    prefill_tokens_per_second=20_000.0,
    step_time=0.03,
    step_time_per_sequence=0.001,
)
"""8 slots, and a KV cache that holds 8 of the longest requests here: what is scarce is slots and steps."""

TARGET = 2.0
"""Seconds to the first token in which an answer counts as one in time."""

PATIENCE = 8.0
"""Seconds without a first token after which a client leaves."""

USUAL = Length(30, 0.3, 80)
"""Of an answer, in tokens."""

CLOSED_LOOP = 64
"""Requests that are open at once while capacity is measured: twice the slots."""


class UnknownScenario(ValueError):
    """A name that is not in the table."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a key of its own, its tenant with a weight, and a role with a priority if it has one."""

    tenant: str
    weight: float = 1.0
    priority: str = ""


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests of one caller at random moments: ``load`` times the capacity, in requests. Lengths are in tokens."""

    caller: str
    load: float
    prompt: int = 150
    output: Length = USUAL


@dataclass(frozen=True, slots=True)
class Phase:
    """A time with some streams, in seconds. ``settle``: before it the engines have become idle."""

    name: str
    seconds: float
    streams: tuple[Stream, ...]
    settle: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """Phases on all replicas, after a measurement of their capacity by the first caller, with requests as usual.

    ``reference`` is a phase that runs afterwards on half of the replicas, behind a target of its own.
    ``admission`` are options of that section in ``routing.yaml`` that differ from the gateway's defaults.
    """

    name: str
    summary: str
    callers: Mapping[str, Caller]
    phases: tuple[Phase, ...]
    reference: Phase | None = None
    admission: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


def _pair(one: Caller, other: Caller) -> Mapping[str, Caller]:
    return MappingProxyType({"a": one, "b": other})


SHORT_WAIT = MappingProxyType({"wait": {"interactive": 1.5, "standard": 1.5, "bulk": 1.5}})
"""Of the 2 seconds to a first token in time, what the queue may take."""

LONG_WAIT = MappingProxyType({"wait": {"interactive": 6, "standard": 6, "bulk": 6}})
"""Of clients' patience, what the queue may take: it is never empty for those who send too much."""

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "overload",
        "0.7 of capacity for 10 s, 3 times capacity for 30 s, 0.7 for 20 s; in time is a first token within 2 s",
        MappingProxyType({"all": Caller("everybody")}),
        (
            Phase("before", 10.0, (Stream("all", 0.7),), settle=True),
            Phase("overload", 30.0, (Stream("all", 3.0),)),
            Phase("after", 20.0, (Stream("all", 0.7),)),
        ),
        admission=SHORT_WAIT,
    ),
    Scenario(
        "tenants",
        "twice the capacity, nine tenths of it from tenant a, the rest from b, which has the same weight",
        _pair(Caller("tenant-a"), Caller("tenant-b")),
        (Phase("both", 30.0, (Stream("a", 1.8), Stream("b", 0.2)), settle=True),),
        reference=Phase("b alone, half the replicas", 30.0, (Stream("b", 0.2),)),
        admission=LONG_WAIT,
    ),
    Scenario(
        "weights",
        "twice the capacity, half of it from each tenant; b has three times the weight of a",
        _pair(Caller("tenant-a"), Caller("tenant-b", weight=3.0)),
        (Phase("both", 40.0, (Stream("a", 1.0), Stream("b", 1.0)), settle=True),),
        admission=LONG_WAIT,
    ),
    Scenario(
        "classes",
        "interactive requests at 0.3 of capacity, alone and then with bulk requests at twice the capacity",
        MappingProxyType(
            {
                "interactive": Caller("people", priority="interactive"),
                "bulk": Caller("machines", priority="bulk"),
            }
        ),
        (
            Phase("alone", 30.0, (Stream("interactive", 0.3),), settle=True),
            Phase("with bulk", 40.0, (Stream("interactive", 0.3), Stream("bulk", 2.0)), settle=True),
        ),
        admission=LONG_WAIT,
    ),
    Scenario(
        "long-prompts",
        "as many requests of tenant a, 4,000 tokens each, as of b, 100 each: 1.2 times the capacity in those of b",
        _pair(Caller("tenant-a"), Caller("tenant-b")),
        (Phase("both", 40.0, (Stream("a", 1.2, prompt=4000), Stream("b", 1.2, prompt=100)), settle=True),),
        admission=LONG_WAIT,
    ),
)


def by_name(name: str) -> Scenario:
    """Raises `UnknownScenario`."""
    return named(SCENARIOS, [name], "scenario", UnknownScenario)[0]


def select(names: Sequence[str]) -> tuple[Scenario, ...]:
    """The named ones in the table's order; all without names. Raises `UnknownScenario`."""
    return named(SCENARIOS, names, "scenario", UnknownScenario) if names else SCENARIOS
