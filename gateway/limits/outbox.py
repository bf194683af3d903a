"""What is still to be told to the shared store: what settled requests used, and places that are free again.

Nothing here waits. What comes for one key is summed, so that the size follows the number of holders, not of requests.
"""

from __future__ import annotations

from typing import NamedTuple


class Batch(NamedTuple):
    """One delivery: keys and arguments of ``scripts.DELIVER`` behind the instance's own."""

    number: int
    keys: tuple[str, ...]
    values: tuple[str | float | int, ...]
    freed: dict[str, list[str]]


class Outbox:
    """Sums of corrections by rate key, lists of freed leases by place key.

    Holds at most ``most`` entries (rate keys and leases); what comes when it is full is dropped and counted: a lease
    ends by itself, a refund is lost to its caller, a charge to the limit. Each batch has a number, and the next is made
    only when ``delivered`` was told of it, so that a batch whose answer was lost can be sent again and counts once. It
    has about ``batch`` arguments (4,000 keep the server busy for a millisecond).
    """

    def __init__(self, most: int = 50_000, batch: int = 4_000) -> None:
        self._most = most
        self._batch = batch
        self._rates: dict[str, tuple[float, float]] = {}
        self._freed: dict[str, list[str]] = {}
        self._leases = 0
        self._number = 0
        self._sent: Batch | None = None
        self.dropped = 0

    def __bool__(self) -> bool:
        return self._sent is not None or bool(self._rates) or bool(self._freed)

    def __len__(self) -> int:
        return len(self._rates) + self._leases

    def correct(self, key: str, seconds: float) -> None:
        """Move a rate's TAT: below 0 gives back, above 0 charges. Both are kept apart, see ``gcra.correct``."""
        back, charge = self._rates.get(key, (0.0, 0.0))
        if key not in self._rates and len(self) >= self._most:
            self.dropped += 1
            return
        self._rates[key] = (back - seconds, charge) if seconds < 0 else (back, charge + seconds)

    def free(self, key: str, lease: str) -> None:
        """Give a place back."""
        if len(self) >= self._most:
            self.dropped += 1
            return
        self._freed.setdefault(key, []).append(lease)
        self._leases += 1

    def freed(self, key: str, most: int = 100) -> tuple[str, ...]:
        """Leases of a place key that the store may not know to be free yet."""
        sent = self._sent.freed.get(key, ()) if self._sent is not None else ()
        return (*sent, *self._freed.get(key, ()))[:most]

    def next(self) -> Batch | None:
        """The batch to send: the one before while it is not delivered, else a new one; ``None`` when all is told."""
        if self._sent is None and self:
            self._number += 1
            self._sent = self._take()
        return self._sent

    def delivered(self, batch: Batch) -> None:
        """The store has counted it."""
        if self._sent is batch:
            self._sent = None

    def _take(self) -> Batch:
        # Places first: a place that comes back late refuses a request, a refund that does seldom.
        keys: list[str] = []
        values: list[str | float | int] = []
        freed: dict[str, list[str]] = {}
        while self._freed and len(values) < self._batch:
            key = next(iter(self._freed))
            freed[key] = self._take_leases(key)
            keys.append(key)
            values += ("places", len(freed[key]), *freed[key])
        while self._rates and len(values) < self._batch:
            key = next(iter(self._rates))
            keys.append(key)
            values += ("rate", *self._rates.pop(key))
        return Batch(self._number, tuple(keys), tuple(values), freed)

    def _take_leases(self, key: str) -> list[str]:
        waiting = self._freed.pop(key)
        taken, left = waiting[: self._batch], waiting[self._batch :]
        if left:
            self._freed[key] = left
        self._leases -= len(taken)
        return taken
