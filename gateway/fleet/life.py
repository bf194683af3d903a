"""The life of a replica as one table, and the pure step from one state to the next.

    found ─► starting ─► warming ─► ready ◄─► probation ◄─ ejected          draining ─► gone

Readiness never falls open: only ``ready`` gets traffic, and ``probation`` one request at a time. What was never warm,
or may not be warm any more, passes through ``warming`` first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    """Where a replica is in its life. A metric label."""

    FOUND = "found"
    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    PROBATION = "probation"
    EJECTED = "ejected"
    DRAINING = "draining"
    GONE = "gone"


class Sign(StrEnum):
    """What has been learned of a replica, or ordered. A metric label.

    ``restarted`` is any reason to take it as not warm: another process, other weights, a sleep, an operator's word.
    """

    LISTENS = "listens"
    HEALTHY = "healthy"
    UNFIT = "unfit"
    WARM = "warm"
    COLD = "cold"
    LOST = "lost"
    HUNG = "hung"
    FAILING = "failing"
    CLOSING = "closing"
    RESTED = "rested"
    PROVEN = "proven"
    RESTARTED = "restarted"
    DRAIN = "drain"
    UNDRAIN = "undrain"
    EMPTY = "empty"


def _rows(states: Iterable[State], sign: Sign, after: State) -> dict[tuple[State, Sign], State]:
    return {(state, sign): after for state in states}


_ALIVE = (State.FOUND, State.STARTING, State.WARMING, State.READY, State.PROBATION, State.EJECTED)
_SERVING = (State.READY, State.PROBATION)

TRANSITIONS: Mapping[tuple[State, Sign], State] = MappingProxyType(
    {
        (State.FOUND, Sign.LISTENS): State.STARTING,
        (State.FOUND, Sign.HEALTHY): State.WARMING,
        (State.STARTING, Sign.HEALTHY): State.WARMING,
        (State.STARTING, Sign.LOST): State.FOUND,
        (State.WARMING, Sign.WARM): State.READY,
        **_rows((State.WARMING,), Sign.COLD, State.STARTING),
        **_rows((State.WARMING,), Sign.LOST, State.FOUND),
        **_rows((State.WARMING,), Sign.UNFIT, State.STARTING),
        **_rows((State.WARMING,), Sign.RESTARTED, State.STARTING),
        **_rows(_SERVING, Sign.LOST, State.EJECTED),
        **_rows(_SERVING, Sign.HUNG, State.EJECTED),
        **_rows(_SERVING, Sign.FAILING, State.EJECTED),
        **_rows(_SERVING, Sign.CLOSING, State.EJECTED),
        **_rows(_SERVING, Sign.UNFIT, State.EJECTED),
        **_rows((*_SERVING, State.EJECTED), Sign.RESTARTED, State.STARTING),
        (State.EJECTED, Sign.RESTED): State.PROBATION,
        (State.PROBATION, Sign.PROVEN): State.READY,
        **_rows(_ALIVE, Sign.DRAIN, State.DRAINING),
        (State.DRAINING, Sign.EMPTY): State.GONE,
        **_rows((State.DRAINING, State.GONE), Sign.UNDRAIN, State.FOUND),
    }
)

ROUTABLE = frozenset(_SERVING)
"""States in which a replica gets requests."""

_PROSPECTS: Mapping[State, str] = MappingProxyType(
    {
        State.FOUND: "an answer at its address",
        State.STARTING: "a healthy answer, a list of models, and an age that policy takes",
        State.WARMING: "first tokens of warmup requests that have settled",
        State.READY: "a refused connection, no progress with work pending, repeated failures, or a drain",
        State.PROBATION: "some good answers in a row make it ready, a bad one ejects it",
        State.EJECTED: "the end of its ejection and a good answer to a canary, or a restart of the engine",
        State.DRAINING: "the end of its last request, or 'gateway fleet undrain'",
        State.GONE: "'gateway fleet undrain', if it is still listed",
    }
)


@dataclass(frozen=True, slots=True)
class Life:
    """A replica's state, since when (Unix seconds) and why.

    ``ejections`` counts those that have not been forgiven; an ejected replica may be tried again at ``until``, in
    seconds of the event loop's clock. ``for_errors``: it is out, or on probation,
    for its errors, not because it hangs or is gone.
    """

    state: State = State.FOUND
    since: float = 0.0
    reason: str = ""
    ejections: int = 0
    until: float = 0.0
    for_errors: bool = False

    @property
    def prospect(self) -> str:
        """What would change the state."""
        return _PROSPECTS[self.state]


def advance(life: Life, sign: Sign, *, at: float, reason: str = "") -> Life:
    """The life after a sign at ``at`` (Unix seconds); the same object where the table has no row for it."""
    state = TRANSITIONS.get((life.state, sign))
    if state is None:
        return life
    return replace(life, state=state, since=at, reason=reason)
