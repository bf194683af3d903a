"""Step 5: which replica. Power of two choices on the requests that this instance has in flight. Pure.

Mitzenmacher, "The power of two choices in randomized load balancing" (2001): comparing two random candidates removes
nearly all of the imbalance of one, without the herd that always taking the least loaded makes. Loads are weighed by the
share that each may have, as in the weighted form (Envoy's least-request with slow start).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeVar


class Candidate(Protocol):
    """What this step needs to know of a replica."""

    @property
    def in_flight(self) -> int:
        """Requests of this instance that it is serving."""
        ...

    @property
    def room(self) -> int:
        """How many it may have at most: one, while it has to prove itself."""
        ...

    @property
    def share(self) -> float:
        """How much it may get beside a full replica, above 0 and up to 1: less, while it is new."""
        ...


C = TypeVar("C", bound=Candidate)


def pick(candidates: Sequence[C], tried: Collection[C], random: Callable[[], float]) -> C | None:
    """One of the candidates not tried yet that has room, or ``None``. ``random`` gives numbers in [0, 1)."""
    left = [candidate for candidate in candidates if candidate not in tried] if tried else candidates
    count = len(left)
    if count > 1:
        first = int(random() * count)
        second = int(random() * (count - 1))
        if second >= first:
            second += 1
        one, other = left[first], left[second]
        chosen = one if (one.in_flight + 1) * other.share <= (other.in_flight + 1) * one.share else other
    elif count:
        chosen = left[0]
    else:
        return None
    if chosen.in_flight < chosen.room:
        return chosen
    open_ones = [candidate for candidate in left if candidate.in_flight < candidate.room]
    return min(open_ones, key=_load, default=None)


def _load(candidate: Candidate) -> float:
    return (candidate.in_flight + 1) / candidate.share
