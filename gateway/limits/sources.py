"""Who has failed to show a credential too often: a brake on guessing, by source address."""

from __future__ import annotations

import math
import socket
import time
from collections import OrderedDict
from collections.abc import Callable

from gateway.limits import gcra

_MAPPED = bytes(10) + b"\xff\xff"


class FailureGate:
    """Counts failures by source. ``per_minute`` of them may come at once, then one each 60 / ``per_minute`` seconds.

    An IPv6 source is its /64, of which one host usually has all addresses. ``blocked`` is asked before a credential is
    looked at, so that a blocked source learns nothing and costs next to nothing; what failed meanwhile counts, up to
    one minute more. At most ``max_sources`` are known, those that failed last: whoever has more addresses than that
    gets ``per_minute`` guesses from each anyway.
    """

    def __init__(
        self, per_minute: int, monotonic: Callable[[], float] = time.monotonic, *, max_sources: int = 10_000
    ) -> None:
        self._monotonic = monotonic
        self.adopt(per_minute)
        self._max_sources = max_sources
        self._failures: OrderedDict[str | bytes, float] = OrderedDict()

    def adopt(self, per_minute: int) -> None:
        """Let another number pass from now on. Raises ``ValueError`` for less than one."""
        if per_minute < 1:
            raise ValueError("a gate lets at least one failure a minute pass")
        self._per_minute = per_minute
        self._spacing = gcra.spacing(per_minute, gcra.MINUTE)
        self._reach = gcra.reach(self._spacing, gcra.MINUTE)

    def __len__(self) -> int:
        return len(self._failures)

    def blocked(self, source: str) -> int | None:
        """Whole seconds after which the source may try again; ``None`` when it may now."""
        if not self._failures:
            return None
        tat = self._failures.get(_group(source) if ":" in source else source)
        if tat is None:
            return None
        wait = gcra.wait(gcra.ahead(tat, self._monotonic()), 1, self._per_minute, gcra.MINUTE)
        return math.ceil(wait) if wait > 0 else None

    def strike(self, source: str) -> int | None:
        """``blocked``, and ``failed`` if it may try: both with one look, for what is refused unread."""
        group = _group(source) if ":" in source else source
        now = self._monotonic()
        tat = self._failures.get(group, now)
        # ``gcra.wait`` for one unit, and ``ahead``, written out.
        wait = tat - now + self._spacing - self._reach
        if wait > 0:
            return math.ceil(wait)
        self._count(group, tat, now)
        return None

    def failed(self, source: str) -> None:
        """Count a failure."""
        group = _group(source) if ":" in source else source
        now = self._monotonic()
        self._count(group, self._failures.get(group, now), now)

    def _count(self, group: str | bytes, tat: float, now: float) -> None:
        self._failures[group] = min(max(tat, now) + self._spacing, now + 2 * gcra.MINUTE)
        self._failures.move_to_end(group)
        if len(self._failures) > self._max_sources:
            self._failures.popitem(last=False)


def _group(source: str) -> str | bytes:
    """What an address with a colon is counted under: its /64, or the IPv4 address that it stands for."""
    try:
        packed = socket.inet_pton(socket.AF_INET6, source.partition("%")[0] if "%" in source else source)
    except (OSError, ValueError):
        return source
    return socket.inet_ntoa(packed[12:]) if packed.startswith(_MAPPED) else packed[:8]
