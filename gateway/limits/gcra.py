"""The generic cell rate algorithm: a rate limit whose whole state is one number.

After the Generic Cell Rate Algorithm in its virtual scheduling form (ATM Forum, Traffic Management Specification 4.0,
AF-TM-0056, section 4.4.2). The number is the theoretical arrival time (TAT): when the limit will be whole again if
nothing more is taken. A *figure* is how many units a *period* gives, and also the burst; one unit comes back each
*spacing* = period / figure seconds. A time may come from any clock that does not run backwards.

What it promises: in any window of w seconds at most figure + w / spacing units are taken, less what is given back in
that window. What a request reserved before the window and gives back in it can be taken again within it.
"""

from __future__ import annotations

import math

MINUTE = 60.0
DAY = 86_400.0

# Of a unit. A thousand additions must not lose the last unit of a figure to rounding: a sum is let through that is over
# by less than this, and since it bounds the sum, not each step, it never adds up to a unit.
GRACE = 0.01

# No model's context holds more. A count above it is a fault of an engine, and must not lock its caller out for years.
MOST_TOKENS = 10_000_000


def spacing(figure: int, period: float) -> float:
    """Seconds in which one unit comes back. Of a figure below 1 no unit ever passes."""
    return period / figure if figure >= 1 else 2 * period


def reach(spaced: float, period: float) -> float:
    """How far ahead of now a TAT may come to lie by taking, in seconds."""
    return period + GRACE * spaced


def take(tat: float, now: float, units: int, spaced: float, period: float) -> float | None:
    """The TAT after taking ``units`` at ``now``; ``None`` when they do not pass and nothing is taken."""
    later = max(tat, now) + units * spaced
    return later if later - now <= reach(spaced, period) else None


def ahead(tat: float, now: float) -> float:
    """Seconds until the limit is whole; more than its period while it is in debt."""
    return tat - now if tat > now else 0.0


def remaining(ahead: float, figure: int, period: float) -> int:
    """Whole units that would pass now."""
    left = int((period - ahead) * figure / period + GRACE)
    return left if left > 0 else 0


def wait(ahead: float, units: int, figure: int, period: float) -> float:
    """Seconds until ``units`` would pass, 0 when they pass now, infinite when they are more than the figure."""
    if units > figure:
        return math.inf
    spaced = spacing(figure, period)
    over = ahead + units * spaced - reach(spaced, period)
    return over if over > 0 else 0.0


def excess(used: int, taken: int) -> int:
    """Units that were used beyond those taken (below 0: fewer), as far as an engine's count is to be believed."""
    more = (used if used > 0 else 0) - taken
    return more if more < MOST_TOKENS else MOST_TOKENS


def correct(tat: float, now: float, more: int, spaced: float) -> float:
    """The TAT when ``more`` units than were taken turn out to be used (below 0: fewer, they are given back).

    The caller gives back no more than it took. What is given back to a limit that is whole by now is lost: the units
    have come back already. What is charged may put the limit in debt, by no more than ``more``: it delays what follows.
    """
    return (tat if more <= 0 else max(tat, now)) + more * spaced
