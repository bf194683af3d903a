"""The life of a replica as a table, and the pure step from one state to the next.

    found ──healthy──► ready ◄──healthy── ejected
      │                  └────unhealthy──────▲
      └──unhealthy: stays found

Readiness never falls open: only ``ready`` gets traffic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from gateway.policy.engines import TAKEN, Verdict


class State(StrEnum):
    """Where a replica is in its life."""

    FOUND = "found"
    READY = "ready"
    EJECTED = "ejected"


class Sign(StrEnum):
    """What a probe, or a request that could not connect, has shown."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


TRANSITIONS: Mapping[tuple[State, Sign], State] = MappingProxyType(
    {
        (State.FOUND, Sign.HEALTHY): State.READY,
        (State.READY, Sign.UNHEALTHY): State.EJECTED,
        (State.EJECTED, Sign.HEALTHY): State.READY,
    }
)


@dataclass(frozen=True, slots=True)
class Observation:
    """What one probe saw: health, the served models, the context in tokens, the engine's kind and version, if it says.

    Everything but ``healthy`` is the engine's word.
    """

    healthy: bool
    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    version: str | None = None
    engine: str | None = None


@dataclass(frozen=True, slots=True)
class Life:
    """A replica's state, what was last seen of it, and what operators should know of its engine (empty: nothing)."""

    state: State = State.FOUND
    seen: Observation = Observation(healthy=False)
    reason: str = ""


def advance(life: Life, observation: Observation, verdict: Verdict = TAKEN) -> Life:
    """The life after an observation. A replica that serves no model or that policy refuses counts as unhealthy."""
    healthy = observation.healthy and bool(observation.models) and not verdict.refused
    sign = Sign.HEALTHY if healthy else Sign.UNHEALTHY
    state = TRANSITIONS.get((life.state, sign), life.state)
    reason = verdict.reason if observation.healthy else life.reason
    return Life(state, observation if healthy else life.seen, reason)
