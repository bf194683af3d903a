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
    """What one probe saw: health, the served models, the longest context and the engine's version, if it says."""

    healthy: bool
    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Life:
    """A replica's state and what was last seen of it."""

    state: State = State.FOUND
    seen: Observation = Observation(healthy=False)


def advance(life: Life, observation: Observation) -> Life:
    """The life after an observation. A replica that answers but serves no model is not healthy."""
    healthy = observation.healthy and bool(observation.models)
    sign = Sign.HEALTHY if healthy else Sign.UNHEALTHY
    state = TRANSITIONS.get((life.state, sign), life.state)
    return Life(state, observation if healthy else life.seen)
