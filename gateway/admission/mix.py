"""How many requests of each class a model has, now and usually, and so how many places to hold back. Pure.

What a class needs beyond what it has is a matter of how much it varies. Requests that come by chance vary by the square
root of their number; so places are held back for a few such deviations, and none where a class does not come at all.
"""

from __future__ import annotations

import math

from gateway.model import Priority

_MEMORY = 30.0  # seconds in which what was usual loses all but a third of its weight
_DEVIATIONS = 2.5  # about one request in a hundred finds more of its class than these
_NONE = 0.05  # requests, on average, below which a class passes for one that does not come
_CLASSES = len(Priority)


def held(above: float) -> float:
    """Places to hold back for classes that have so many requests on average."""
    return 1.0 + _DEVIATIONS * math.sqrt(above) if above > _NONE else 0.0


class _Counts:
    __slots__ = ("mean", "now")

    def __init__(self) -> None:
        self.now = [0] * _CLASSES
        self.mean = [0.0] * _CLASSES


class Mix:
    """Requests in flight by model and class. Every ``began`` has its ``ended``; ``sample`` is for a control loop."""

    def __init__(self) -> None:
        self._models: dict[str, _Counts] = {}
        self._sampled_at: float | None = None

    def began(self, model: str, priority: Priority) -> None:
        """One more is in flight, or about to be."""
        counts = self._models.get(model)
        if counts is None:
            counts = self._models[model] = _Counts()
        counts.now[priority.rank] += 1

    def ended(self, model: str, priority: Priority) -> None:
        """One less."""
        self._models[model].now[priority.rank] -= 1

    def sample(self, now: float) -> None:
        """Take what is in flight into the averages. ``now`` is in seconds of a monotonic clock."""
        before, self._sampled_at = self._sampled_at, now
        gone = 0.0 if before is None else max(now - before, 0.0)
        kept = math.exp(-gone / _MEMORY)
        for model, counts in tuple(self._models.items()):
            counts.mean = [
                mean * kept + number * (1.0 - kept) for mean, number in zip(counts.mean, counts.now, strict=True)
            ]
            if not any(counts.now) and max(counts.mean) < _NONE:
                del self._models[model]

    def above(self, model: str, priority: Priority) -> float:
        """How many requests of the classes above one the model has on average."""
        counts = self._models.get(model)
        return 0.0 if counts is None else sum(counts.mean[: priority.rank])
