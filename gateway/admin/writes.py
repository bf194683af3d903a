"""How often one author may write: key creation and alias changes are business flows that a stolen credential abuses."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from gateway.limits import gcra
from gateway.recent import keep


class WriteLimit:
    """So many writes a minute of each author, all at once if it likes; one number for each author.

    Kept in this process. Authors beyond ``capacity`` push out the one that wrote longest ago.
    """

    def __init__(
        self, per_minute: int = 60, *, capacity: int = 1_024, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_minute = per_minute
        self._capacity = capacity
        self._monotonic = monotonic
        self._arrivals: OrderedDict[str, float] = OrderedDict()

    def admit(self, author: str) -> int | None:
        """Count a write; ``None``: it may be made. Otherwise nothing is counted, and it has to wait so many seconds."""
        now = self._monotonic()
        tat = self._arrivals.get(author, now)
        wait = gcra.wait(gcra.ahead(tat, now), 1, self._per_minute, gcra.MINUTE)
        if wait > 0:
            return math.ceil(wait)
        later = max(tat, now) + gcra.spacing(self._per_minute, gcra.MINUTE)
        keep(self._arrivals, author, later, self._capacity)
        return None
