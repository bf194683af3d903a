"""Step 5: which replica. None is tried twice; which of the others is for the strategy that policy names. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

C = TypeVar("C")


def pick(candidates: Sequence[C], tried: Collection[C], choose: Callable[[Sequence[C]], C | None]) -> C | None:
    """What ``choose`` makes of the candidates that have not been tried yet; ``None`` when there are none."""
    left = [candidate for candidate in candidates if candidate not in tried] if tried else candidates
    return choose(left) if left else None
