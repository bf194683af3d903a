"""When to ask a shared store and when not to: a failing one costs a request its deadline once, not each request."""

from __future__ import annotations

import time
from collections.abc import Callable


class Breaker:
    """Lets calls through until one fails; then none for a pause, then one at a time until one succeeds.

    The pause is ``first`` seconds and doubles with each failed probe up to ``longest``, a tenth more or less by
    ``jitter`` (0 to 1) so that instances do not probe together. A store that fails again within ``longest`` of coming
    back finds the pause where it was: one that flaps is asked, and reported, ever less often.

    ``report`` is told once when the store is lost and once when it is back.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        jitter: Callable[[], float],
        report: Callable[[str], None],
        first: float = 1.0,
        longest: float = 10.0,
    ) -> None:
        self._monotonic = monotonic
        self._jitter = jitter
        self._report = report
        self._first = first
        self._longest = longest
        self._pause = first
        self._until = 0.0
        self._back_since = -longest
        self._turn = 0
        self.open = False

    def enter(self) -> int | None:
        """A ticket for one call, to be shown with its outcome; ``None``: do not call."""
        if self.open:
            now = self._monotonic()
            if now < self._until:
                return None
            # One probe. Should its outcome never be told, the next may try after another pause.
            self._until = now + self._pause
        return self._turn

    def failed(self, ticket: int, why: str) -> None:
        """A call failed. Of all that were under way when the store was lost, the first one counts."""
        if ticket != self._turn:
            return
        now = self._monotonic()
        self._turn += 1
        if self.open or now - self._back_since < self._longest:
            self._pause = min(self._pause * 2, self._longest)
        else:
            self._pause = self._first
        self._until = now + self._pause * (0.9 + 0.2 * self._jitter())
        if not self.open:
            self.open = True
            self._report(f"limits: the shared store {why}; each instance holds its share of every limit by itself")

    def succeeded(self, ticket: int) -> None:
        """A call succeeded. A late answer to a call from before the loss says nothing."""
        if not self.open or ticket != self._turn:
            return
        self._turn += 1
        self.open = False
        self._back_since = self._monotonic()
        self._report("limits: the shared store is back")
