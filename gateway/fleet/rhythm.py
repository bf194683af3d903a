"""When a replica is looked at next, so that looks at many are spread evenly and cost little. Pure.

Looks keep to the time at which they were due, not to the one at which they came: a gateway that stood still for a while
does all that has become due at once, and would do so again after each interval if the next looks counted from there.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.fleet.breaker import jittered

TOGETHER = 1 / 16
"""Of an interval: looks that are due in the same part of it come together. What a look costs is mostly to come back to
it, with nothing at hand any more; in this way 256 replicas cost a quarter less (measured)."""

_KNOCK_EVERY = 10  # steps: every second health check of an engine whose scrapes succeed


def next_look(due: float, now: float, interval: float, random: Callable[[], float]) -> float:
    """When the look after the one that was due at ``due`` is due, not before ``now``.

    When that would be over already, since there was none yet or it took long, any moment of the next interval: replicas
    that are found at once, as at the start, are not to be looked at all at once from then on.
    """
    then = due + jittered(interval, random)
    if then <= now:
        then = now + interval * random()
    return max(then - then % (TOGETHER * interval), now)


def knocks(steps: int, *, doubt: bool) -> bool:
    """Whether the health check of that step is asked for on a new connection.

    It costs several times one that was kept (measured), and proves only one thing more: that the engine still takes
    any. One that has died or was started again ends the kept one, and one that hangs or is unwell shows it there. So
    every second time is enough, but where there is ``doubt``: after a miss or a scrape that brought nothing, and while
    requests are in flight, behind which others will need new connections.
    """
    return doubt or steps % _KNOCK_EVERY == 0
