"""How many requests one replica may have at once. Pure."""

from __future__ import annotations

UNLIMITED = 1 << 30
"""The room of a replica that has no limit."""


_TRY_EVERY, _TRY_FOR = 64, 1  # seconds
_ASIDE = 8  # of so many slots one is tried, or kept fed where nobody knows for how long requests run


def spare(slots: int, step: float, left: float, *, trying: bool) -> int:
    """Requests that an engine should have beyond its batch: so many as end in one step, so that no slot is left empty
    while the next one is on its way; more would wait there, and for a slot of this engine alone.

    ``step`` is in seconds, and ``left`` the seconds that a running request has left on average (0: not known). While
    ``trying``, so many that a batch that holds more than was thought shows.
    """
    some = max(1, slots // _ASIDE)
    if trying or left <= 0.0:
        return some
    return min(round(slots * step / (2.0 * left)), some)


def tries(point: int, now: float) -> bool:
    """Whether it is the time of a replica to be tried with more: one second in 64, each at its own."""
    return (int(now) + point) % _TRY_EVERY < _TRY_FOR


def places(
    policy: int | None, slots: int | None, share: float, others: int, more: int = 0, *, instances: int = 0
) -> int:
    """The room of a replica, at least 1 and at most ``UNLIMITED``.

    ``policy`` is the figure that policy gives (``None``: by what was learned), ``slots`` how many sequences its batch
    holds (``None``: not known yet), ``share`` how much of a full replica's traffic it is to get, ``others`` what
    other instances have there, and ``more`` what is to be there beyond a batch whose size was learned.

    ``instances`` is how many others have requests (0: not known). What they have is not for this one, but for its equal
    part: those that came first would keep all for as long as they are busy, and one that has started anew get nothing.
    Until they have given up so much, all together may have more than a replica's places.
    """
    if policy is not None:
        full = policy
    elif slots is not None:
        full = slots + more
    else:
        return UNLIMITED
    kept = int(full * share) if 0.0 < share < 1.0 else full
    part = kept // (1 + instances) if instances > 0 else 1
    return min(max(kept - max(others, 0), part, 1), UNLIMITED)
