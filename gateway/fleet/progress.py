"""Whether an engine works on what it has: pending work and nothing that moves is a hang, whatever ``/health`` says.

Pure; times are seconds of one monotonic clock, handed in. A stalled, a paused and a draining vLLM all answer
``/health`` and ``/v1/models`` with 200 (captured, 0.32.0), and its gauges freeze with it, at 0 too (vllm PR #46811). So
what counts is movement: the engine's own counters of tokens and steps, and the bytes of its answers (after
gonka-ai/gonka PR #1421). The same movement shows that an engine which misses a probe is busy, not dead.

Only what was looked at at both ends counts. A movement may have come as late as the look that saw it, and work as late
as the look that found it; a time without a look, and a time without work, prove nothing. So an engine that moves at
least each T is never found hung, and one that has stopped is, at the first look T or more after the one that saw its
last movement.
"""

from __future__ import annotations

import math
from enum import Enum

from gateway.policy.fleet import Health

# Looks come each second or so, and give up after some. A longer gap means that this process stood still, or its host
# did, perhaps with the engine on it: then nobody can say what the engine did.
_AWAY = 10.0


class _Told(Enum):
    """What the counters of a scrape say beside those of the one before."""

    NOTHING = "could not be read"
    FIRST = "nothing to compare them with"
    SAME = "stood still"
    MOVED = "moved"


class Progress:
    """What the looks at one replica have shown. ``note`` is called with each scrape, read or not."""

    __slots__ = (
        "_counters",
        "_frozen",
        "_heard",
        "_idle_since",
        "_moved",
        "_noted",
        "_pending",
        "_stalled",
        "_unproven",
    )

    def __init__(self, now: float) -> None:
        self._heard = -math.inf
        self.reset(now)

    def reset(self, now: float) -> None:
        """Another process answers there: what the one before did says nothing of it."""
        self._noted = self._idle_since = now
        self._moved = -math.inf
        self._pending = False
        self._counters: tuple[float, ...] = ()
        self._stalled = 0.0  # for how long work was pending since the last movement
        self._unproven = 0.0  # how much of that had passed when there first were counters to compare with
        self._frozen = 0.0  # how much of it the newest counters that were read have proven

    def note(self, *, now: float, pending: bool, counters: tuple[float, ...] | None, heard: float) -> None:
        """Take in a look.

        ``pending``: this instance has requests there, or the engine says that some run or wait. ``counters``: its
        progress counters, finite, always in the same order; ``None`` or none at all: not to be read now. Counters that
        go backwards have moved; a restart is found out elsewhere. ``heard``: when last a byte of an answer came.
        """
        gap = now - self._noted
        both = pending and self._pending
        told = self._compare(counters)
        moved = told is _Told.MOVED or heard != self._heard
        if moved:
            self._moved = now if told is _Told.MOVED else min(heard, now)
            self._stalled = self._unproven = self._frozen = 0.0
        elif both:
            self._stalled += min(max(gap, 0.0), _AWAY)
        if told is _Told.FIRST:
            self._unproven = self._stalled
        if told is _Told.SAME or told is _Told.FIRST:
            self._frozen = self._stalled - self._unproven
        if moved or pending or self._pending:
            self._idle_since = now
        if gap < 0:  # the clock was set back: no age may be below 0, or wait for it to come round again
            self._moved, self._idle_since = min(self._moved, now), min(self._idle_since, now)
        self._noted, self._pending, self._heard = now, pending, heard

    def _compare(self, counters: tuple[float, ...] | None) -> _Told:
        if not counters:
            return _Told.NOTHING
        before, self._counters = self._counters, counters
        if len(before) != len(counters):
            return _Told.FIRST
        return _Told.SAME if before == counters else _Told.MOVED

    def stalled_for(self, now: float) -> float:
        """Seconds for which work has been pending and nothing has moved; 0 if something moves or nothing is pending.

        A pause without work does not end a stall: the client that gave up waiting proves no progress.
        """
        return self._stalled + min(max(now - self._noted, 0.0), _AWAY) if self._pending else 0.0

    def hung(self, now: float, health: Health) -> bool:
        """Whether the replica does nothing about its work, by what the looks so far have proven.

        Counters that stood still for ``hang`` say so, as do ``blind_hang`` without a byte or a counter that moved,
        whether counters could be read or not. When the last look was long ago, nothing is said.
        """
        if not self._pending or now - self._noted > _AWAY:
            return False
        return self._frozen >= health.hang or self._stalled >= health.blind_hang

    def moved_within(self, now: float, seconds: float) -> bool:
        """Whether the engine has shown progress in that time: then a slow probe means nothing."""
        return max(now - self._moved, 0.0) <= seconds

    def idle_for(self, now: float) -> float:
        """Seconds for which neither work was pending nor anything moved."""
        return 0.0 if self._pending else max(now - self._idle_since, 0.0)
