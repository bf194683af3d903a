"""Step 5: which replica. Power of two choices on the requests that this instance has in flight. Pure.

Mitzenmacher, "The power of two choices in randomized load balancing" (2001): comparing two random candidates removes
nearly all of the imbalance of one, without the herd that always taking the least loaded makes.
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


C = TypeVar("C", bound=Candidate)


def pick(candidates: Sequence[C], tried: Collection[C], random: Callable[[], float]) -> C | None:
    """One of the candidates not tried yet, or ``None``. ``random`` gives numbers in [0, 1)."""
    left = [candidate for candidate in candidates if candidate not in tried] if tried else candidates
    if len(left) < 2:
        return left[0] if left else None
    first = int(random() * len(left))
    second = int(random() * (len(left) - 1))
    if second >= first:
        second += 1
    one, other = left[first], left[second]
    return one if one.in_flight <= other.in_flight else other
