"""Of a pool that is too large to weigh each replica for each request: those that are worth weighing. Pure.

An estimate of each of 256 replicas would take longer than all else that a request costs. Nearly always one of a few is
as good as the best of all (Mitzenmacher 2001). Which few, all instances agree on: the replicas stand in a circle by
their points, and a prompt looks at those that follow its own place there, so that only the prompts of a replica that
comes or goes look elsewhere. The ones that were the soonest of all a moment ago are weighed too where they would be
sooner, so that a free replica is found however many are busy.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Sequence
from heapq import nsmallest
from math import inf
from typing import Generic

from gateway.fleet.balance.strategies import V, is_later

WHOLE = 32
"""A pool of so many replicas is weighed whole."""

_FEW = 12
_AGAIN = 0.1  # seconds for which those that were the soonest are taken for that

_MASK = (1 << 64) - 1
_MIX = 0x9E3779B97F4A7C15


class Shortlist(Generic[V]):
    """The replicas of one snapshot of a pool."""

    __slots__ = ("_by_id", "_circle", "_points", "_soonest", "_then", "candidates")

    def __init__(self, candidates: Sequence[V]) -> None:
        self.candidates = candidates
        self._circle = sorted(candidates, key=lambda view: view.point)
        self._points = [view.point for view in self._circle]
        self._by_id = {view.id: view for view in candidates}
        self._soonest: list[V] = []
        self._then = -inf

    def near(self, key: int) -> list[V]:
        """Those that follow a key's place in the circle."""
        start = bisect(self._points, key * _MIX & _MASK)
        found = self._circle[start : start + _FEW]
        return found if len(found) == _FEW else found + self._circle[: _FEW - len(found)]

    def named(self, names: Iterable[str]) -> list[V]:
        """Those of these ids that are there."""
        return [view for view in map(self._by_id.get, names) if view is not None]

    def sooner(self, than: V | None, tokens: float, uncached: float, now: float) -> list[V]:
        """Those that were the soonest of all, if the best of them would be sooner with all of its ``tokens`` to compute
        than this one with so many ``uncached``; else none."""
        if not 0.0 <= now - self._then < _AGAIN:
            self._soonest = nsmallest(_FEW, self.candidates, key=lambda view: view.quote.seconds(0.0, now))
            self._then = now
        if than is None:
            return self._soonest
        best = min([view.quote.seconds(tokens, now) for view in self._soonest])
        return self._soonest if is_later(than.quote.seconds(uncached, now), best) else []
