"""How fast those who wait for a model get places, and so how long one will wait. Pure."""

from __future__ import annotations

import math

_MEMORY = 15.0  # seconds of waiting in which what was seen loses all but a third of its weight
_STALE = 120.0  # seconds without anybody waiting, after which what was seen says nothing any more
_ENOUGH = 2.0  # places, as far as they are remembered, that make a rate known
_SHORTEST = 0.05  # seconds: a rate over less is chance
_LONGEST = 5 * _MEMORY  # seconds that one silence counts at most, whatever the clock does
_MOST = 60  # seconds to come back in: clients such as OpenAI's heed no more, and come back when they like
_UNKNOWN = 5
_LEAST_SPREAD, _MOST_SPREAD = 2, 20


class DrainMeter:
    """Requests and tokens that got places in each second in which something waited; else nothing drained.

    ``begin`` and ``end`` say when something waits and when nothing does any more, ``note`` that one of those who wait
    got its place. ``now`` is in seconds of a monotonic clock. What is remembered fades with the time of waiting, so
    that a queue that has come to a halt has no known rate, in place of a rate of nearly nothing.
    """

    __slots__ = ("_at", "_ended_at", "_requests", "_seconds", "_tokens", "_waiting")

    def __init__(self) -> None:
        self._requests = self._tokens = self._seconds = 0.0
        self._at = 0.0
        self._ended_at = -math.inf
        self._waiting = False

    def begin(self, now: float) -> None:
        """Something waits, from now on."""
        if self._waiting:
            return
        if now - self._ended_at > _STALE:
            self._requests = self._tokens = self._seconds = 0.0
        self._waiting, self._at = True, now

    def end(self, now: float) -> None:
        """Nothing waits any more."""
        if self._waiting:
            self._pass(now)
            self._waiting, self._ended_at = False, now

    def note(self, tokens: float, now: float) -> None:
        """A request of so many tokens got a place, while something waited."""
        if not self._waiting:
            return
        self._pass(now)
        self._requests += 1.0
        self._tokens += max(tokens, 0.0)

    def wait_for(self, requests: float, tokens: float, now: float) -> float | None:
        """Seconds until so many requests with so many tokens will have got places; ``None``: not known.

        Of the two ways to count, the one with more hope: a request is refused for its wait only if neither has any.
        """
        self._pass(now)
        if self._requests < _ENOUGH or self._seconds < _SHORTEST:
            return None
        by_requests = requests * self._seconds / self._requests
        return min(by_requests, tokens * self._seconds / self._tokens) if self._tokens > 0.0 else by_requests

    def retry_after(self, queued: int, now: float, chance: float) -> int:
        """In how many whole seconds, from 1 to 60, to come back: once those who wait now will have got places.

        ``chance``, from 0 to below 1, says how much later than that, so that those who are refused together do not come
        back together: at most as long again, but from 2 to 20 seconds, as far as the 60 allow it. A time beyond them
        cannot be told; then it is any of the last 20.
        """
        seconds = self.wait_for(queued, math.inf, now)
        least = _UNKNOWN if seconds is None else max(math.ceil(seconds), 1)
        if least > _MOST:
            least = _MOST - _MOST_SPREAD
        spread = min(max(least, _LEAST_SPREAD), _MOST_SPREAD, _MOST - least)
        return least + int(chance * (spread + 1))

    def _pass(self, now: float) -> None:
        if not self._waiting:
            return
        gone = min(now - self._at, _LONGEST)
        self._at = now
        if gone > 0.0:
            kept = math.exp(-gone / _MEMORY)
            self._requests *= kept
            self._tokens *= kept
            # What the past seconds count after they have faded, each by its own age.
            self._seconds = self._seconds * kept + _MEMORY * (1.0 - kept)
