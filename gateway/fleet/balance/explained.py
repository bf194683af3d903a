"""Why a request went where it went: what was known then, kept for a while and worked out when somebody asks. Pure.

Of a request there is only what it is called and how long it is; nothing of its text, and no hash of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from gateway.fleet.balance.estimate import Load, Quoted, Terms, estimate
from gateway.fleet.balance.strategies import nearly

KEPT = 2_000
"""Decisions that are kept at most."""
VIEWS = 32_000
"""Candidates in them at most: where pools are large, fewer decisions are kept. About 20 MB if no two share anything."""

_ESTIMATE = "estimate"


class Seen(NamedTuple):
    """A candidate when a request was placed. ``said`` is what its quote came from, ``None`` where it had none."""

    replica: str
    said: tuple[Load, float, float, float] | None
    in_flight: int
    room: int


class Decision(NamedTuple):
    """One attempt to place a request, at ``now`` in monotonic seconds, among ``pool`` candidates.

    ``request`` is its id, its alias and its model; a choice has them as one, which costs nothing to keep.
    ``seen`` are those that were weighed. ``tokens`` and ``size`` are those of its prompt, ``held`` what replicas were
    believed to hold of it, both 0 or empty where the strategy does not look at prompts; ``anchored``: it begins like
    others may. ``chosen`` is ``None`` where none had room.
    """

    request: tuple[str, str, str]
    now: float
    strategy: str
    attempt: int
    tokens: float
    size: int
    held: Mapping[str, int]
    anchored: bool
    pool: int
    seen: Sequence[tuple[str, tuple[Load, float, float, float] | None, int, int]]
    chosen: str | None

    @property
    def request_id(self) -> str:
        """What the request is called."""
        return self.request[0]

    @property
    def alias(self) -> str:
        """What it asked for."""
        return self.request[1]

    @property
    def model(self) -> str:
        """What that was when it was placed."""
        return self.request[2]


class Why(StrEnum):
    """What decided; a closed set."""

    FULL = "full"
    ALONE = "alone"
    SOONEST = "soonest"
    HOLDS_MOST = "holds_most"
    ANCHOR = "anchor"
    FEWEST = "fewest"
    LEAST_IN_FLIGHT = "least-in-flight"
    POWER_OF_TWO = "power-of-two"
    ROUND_ROBIN = "round-robin"
    SESSION = "session"


SENTENCES: Mapping[Why, str] = MappingProxyType(
    {
        Why.FULL: "None of the candidates had room.",
        Why.ALONE: "It was the only candidate with room.",
        Why.SOONEST: "It was to give the first token the soonest, what it makes others wait included.",
        Why.HOLDS_MOST: "Of equal estimates, it held the most of the prompt.",
        Why.ANCHOR: "Of equal estimates, it is the one where prompts that begin like this one go.",
        Why.FEWEST: "Of equal estimates, none had fewer requests in flight.",
        Why.LEAST_IN_FLIGHT: "None had fewer requests in flight for its share.",
        Why.POWER_OF_TWO: "Of two that were drawn, it was the less loaded one.",
        Why.ROUND_ROBIN: "It had waited the longest for a request.",
        Why.SESSION: "It is the first in the session's own order that was below its bound.",
    }
)


class Weighed(NamedTuple):
    """A candidate, with what made up its estimate (``None``: nobody asked for one) and the bytes it was to hold."""

    replica: str
    terms: Terms | None
    holds: int
    in_flight: int
    room: int
    chosen: bool


class Explanation(NamedTuple):
    """A decision as it is told, the soonest candidate first."""

    decision: Decision
    why: Why
    candidates: Sequence[Weighed]


def explain(decision: Decision) -> Explanation:
    """What made up each candidate's estimate, and what decided."""
    weighed = [_weighed(decision, Seen(*seen)) for seen in decision.seen]
    weighed.sort(key=lambda one: (one.terms.total if one.terms else 0.0, one.in_flight, one.replica))
    return Explanation(decision, _why(decision, weighed), weighed)


def _weighed(decision: Decision, seen: Seen) -> Weighed:
    holds, terms = decision.held.get(seen.replica, 0), None
    if seen.said is not None and decision.strategy == _ESTIMATE:
        fresh = 1.0 - min(holds / decision.size, 1.0) if decision.size > 0 else 1.0
        said = Quoted(*seen.said)
        terms = estimate(said.load, decision.tokens * fresh, said, decision.now - said.at)
    return Weighed(seen.replica, terms, holds, seen.in_flight, seen.room, seen.replica == decision.chosen)


def _why(decision: Decision, weighed: Sequence[Weighed]) -> Why:
    if decision.chosen is None:
        return Why.FULL
    free = [one for one in weighed if one.in_flight < one.room]
    if len(free) == 1 and decision.pool <= len(weighed):
        return Why.ALONE
    totals = [one.terms.total for one in free if one.terms is not None]
    if decision.strategy != _ESTIMATE or not totals:
        return Why(decision.strategy) if decision.strategy != _ESTIMATE else Why.FEWEST
    bound = nearly(min(totals))
    near = [one for one in free if one.terms is not None and one.terms.total <= bound]
    if len(near) < 2:
        return Why.SOONEST
    most = max(one.holds for one in near)
    if sum(one.holds == most for one in near) == 1:
        return Why.HOLDS_MOST
    return Why.ANCHOR if decision.anchored else Why.FEWEST


class Decisions:
    """The newest decisions of an instance."""

    __slots__ = ("_kept", "_views")

    def __init__(self) -> None:
        self._kept: deque[Decision] = deque()
        self._views = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, decision: Decision) -> None:
        """Keep one more; the oldest give way."""
        kept = self._kept
        kept.append(decision)
        self._views += len(decision.seen)
        while len(kept) > KEPT or self._views > VIEWS:
            self._views -= len(kept.popleft().seen)

    def of(self, request_id: str) -> Decision | None:
        """The last decision about a request."""
        return next((one for one in self._newest() if one.request_id == request_id), None)

    def latest(self, alias: str | None = None) -> Decision | None:
        """The newest one, of an alias or of all."""
        return next((one for one in self._newest() if alias is None or one.alias == alias), None)

    def _newest(self) -> Iterator[Decision]:
        return reversed(self._kept)
