"""Step 5: which replica. None is tried twice; which of the others is for the strategy that policy names. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeVar

C = TypeVar("C")


def pick(candidates: Sequence[C], tried: Collection[C], choose: Callable[[Sequence[C]], C | None]) -> C | None:
    """What ``choose`` makes of the candidates that have not been tried yet; ``None`` when there are none."""
    left = [candidate for candidate in candidates if candidate not in tried] if tried else candidates
    return choose(left) if left else None


class Serving(Protocol):
    """A replica as far as its load goes."""

    @property
    def in_flight(self) -> int:
        """Requests that it has."""
        ...

    @property
    def proven(self) -> bool:
        """Whether it is ready, and not on its way back."""
        ...


S = TypeVar("S", bound=Serving)


def fewest(candidates: Sequence[S]) -> S | None:
    """The proven one with the fewest requests, whether it has room or not; ``None`` when none is proven."""
    return min((each for each in candidates if each.proven), key=lambda each: each.in_flight, default=None)
