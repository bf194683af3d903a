"""How requests are spread over time: whether they come evenly, as chance has it, or in herds. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WINDOW = 0.05
"""Seconds in which a herd would be seen: less than any interval between looks, more than a burst takes to answer."""

_DEVIATIONS = 6.0
_VARIANCE = 2.0
_TICKS = 2.5
_FEW = 3


@dataclass(frozen=True, slots=True)
class Spread:
    """Arrivals against an even spread. ``most`` came within one window, where ``even`` would have."""

    count: int
    most: int
    even: float

    @property
    def limit(self) -> int:
        """More than this within any window is no chance.

        Looks at moments independent of each other are Poisson distributed. Each may bring two more to the same engine
        with it, which makes the variance less than twice the mean, and they come in ticks of a 16th of a second, of
        which a window may hold two if one was late. Six deviations above that, and a few for a small mean, are not
        reached by chance.
        """
        return math.floor(self.even * _TICKS + _DEVIATIONS * math.sqrt(self.even * _VARIANCE)) + _FEW

    @property
    def herd(self) -> bool:
        return self.most > self.limit


def spread(arrivals: Sequence[float], seconds: float, window: float = WINDOW) -> Spread:
    """Of arrivals, in any order, in a time of ``seconds`` (at least one window)."""
    return Spread(len(arrivals), densest(sorted(arrivals), window), len(arrivals) * window / max(seconds, window))


def densest(ordered: Sequence[float], window: float) -> int:
    """The largest number of arrivals, sorted, within any ``window`` seconds; its end is not a part of it."""
    most = first = 0
    for last, at in enumerate(ordered):
        while at - ordered[first] >= window:
            first += 1
        most = max(most, last - first + 1)
    return most
