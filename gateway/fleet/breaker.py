"""When errors take a replica out of rotation, for how long, and how many may be out at once. Pure.

What counts as a failure is for the caller to say: never a refused request, and never a client that left. The scheme is
Envoy's outlier detection (consecutive failures and failure share; ejections that grow up to a bound; a bounded share
of the pool), with a return by proof instead of by time alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gateway.policy.fleet import Breaker as BreakerPolicy

_JITTER = 0.2
_LOOP_JITTER = 0.1
_DOUBLINGS = 64  # more than any bound allows, and few enough for a float


class Breaker:
    """The outcomes of one replica's newest requests.

    They are counted in two half windows that take turns, so at any moment those of the last half to whole window
    count. Memory is constant, and a note costs a comparison and two assignments.
    """

    __slots__ = ("_begun", "_failed", "_failed_before", "_half", "_requests", "_requests_before", "_streak")

    def __init__(self, policy: BreakerPolicy) -> None:
        self._half = policy.window / 2
        self._begun = -math.inf
        self.reset()

    def reset(self) -> None:
        """Forget all outcomes: the replica comes back, or another process has taken its place."""
        self._streak = 0
        self._requests = self._failed = 0
        self._requests_before = self._failed_before = 0

    def succeed(self, now: float) -> None:
        """A request was answered."""
        if not 0.0 <= now - self._begun < self._half:
            self._turn(now)
        self._requests += 1
        self._streak = 0

    def fail(self, now: float) -> None:
        """A request failed, and that speaks against the replica."""
        if not 0.0 <= now - self._begun < self._half:
            self._turn(now)
        self._requests += 1
        self._failed += 1
        self._streak += 1

    def open(self, now: float, policy: BreakerPolicy) -> str | None:
        """Why the replica should be ejected, in words; ``None``: it should not.

        Failures in a row count however long ago they began: nothing has succeeded since. Another window than before
        holds from this call on.
        """
        self._half = policy.window / 2
        if not 0.0 <= now - self._begun < self._half:
            self._turn(now)
        if self._streak >= policy.consecutive:
            return f"{self._streak} failures in a row"
        requests, failed = self._requests + self._requests_before, self._failed + self._failed_before
        if failed and requests >= policy.requests and failed >= policy.error_rate * requests:
            return f"{100 * failed / requests:.0f} % of {requests} requests failed"
        return None

    def _turn(self, now: float) -> None:
        age = now - self._begun
        if age < 0.0:  # the clock was set back: what is counted is taken to be of now
            self._begun = now
            return
        if age < 2 * self._half:
            self._requests_before, self._failed_before = self._requests, self._failed
            self._begun += self._half
        else:
            self._requests_before = self._failed_before = 0
            self._begun = now
        self._requests = self._failed = 0


def ejection_time(ejections: int, policy: BreakerPolicy, random: Callable[[], float]) -> float:
    """Seconds for which a replica stays out, the ``ejections``-th time (from 1) in a row.

    Doubles each time up to ``eject_most``, then a fifth more or less by ``random``, in [0, 1): as in gRPC's connection
    backoff, the bound is spread too, or those that failed together would come back together for ever.
    """
    doubled = policy.eject * 2.0 ** min(max(ejections - 1, 0), _DOUBLINGS)
    return _spread(min(doubled, policy.eject_most), _JITTER, random)


def may_eject(ejected_for_errors: int, pool: int, share: float) -> bool:
    """Whether one more of a pool may go for errors. ``pool`` counts those that would serve if none were out for errors.

    Never the last one: when all fail, it is the requests, or what all depend on, and an empty pool helps nobody. At
    most ``share`` of the pool, rounded down, but one of two or more, or a small pool would keep a broken replica. None
    at all for a share of 0.
    """
    if share <= 0:
        return False
    most = max(math.floor(pool * share + 1e-9), 1)  # 0.29 of 100 is 29, whatever a float says
    return ejected_for_errors < min(most, pool - 1)


def jittered(interval: float, random: Callable[[], float]) -> float:
    """The interval of a control loop, a tenth more or less, so that loops do not fall into step."""
    return _spread(interval, _LOOP_JITTER, random)


def _spread(seconds: float, by: float, random: Callable[[], float]) -> float:
    return seconds * (1 - by + 2 * by * random())
