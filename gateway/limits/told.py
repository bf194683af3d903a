"""What a shared store has said of callers whose number of requests is used up, for as long as that must hold.

The number only falls with time: nothing that another request uses or gives back moves it. So the store need not be
asked again until a request may pass by what it has said. ``at_most`` seconds bound that, for a store that was emptied;
figures that have changed since are another question.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gateway.limits import gcra
from gateway.limits.interfaces import LimitReached
from gateway.limits.question import Heads
from gateway.limits.verdict import refusal
from gateway.model import Budget
from gateway.recent import keep


class _Word(NamedTuple):
    """The store's counts of a caller's budgets, and from when until when (monotonic seconds) they refuse it."""

    budgets: Sequence[Budget]
    heads: Sequence[Heads]
    said: float
    until: float


class Told:
    """The store's word on at most ``capacity`` callers, those that were refused last."""

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, *, at_most: float = 1.0, capacity: int = 10_000
    ) -> None:
        self._monotonic = monotonic
        self._at_most = at_most
        self._capacity = capacity
        self._words: OrderedDict[str, _Word] = OrderedDict()

    def __len__(self) -> int:
        return len(self._words)

    def hear(self, budgets: Sequence[Budget], heads: Sequence[Heads]) -> None:
        """The store has refused a request of these budgets, by these counts.

        Of the places nothing is kept: one may be given back at any moment.
        """
        waits = [
            gcra.wait(its.requests, 1, limits.requests_per_minute, gcra.MINUTE)
            for (_, limits), its in zip(budgets, heads, strict=True)
            if limits.requests_per_minute is not None
        ]
        lasts = min(max(waits, default=0.0), self._at_most)
        if lasts > 0:
            now, counts = self._monotonic(), [its._replace(in_flight=0) for its in heads]
            keep(self._words, budgets[0].holder, _Word(budgets, counts, now, now + lasts), self._capacity)

    def refusal(self, budgets: Sequence[Budget]) -> LimitReached | None:
        """The refusal of one more request by what was heard, as time has passed since; ``None``: it may pass by now."""
        word = self._words.get(budgets[0].holder) if self._words else None
        if word is None or word.budgets != budgets:
            return None
        now = self._monotonic()
        return refusal(budgets, word.heads, now - word.said, 0) if now < word.until else None
