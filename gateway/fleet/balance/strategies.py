"""Which of the replicas that may take a request: small functions in a table, each the same shape. Pure.

None of them holds state: what they go by is on the replicas, so that one can be tried beside another without a trace.
All pass over replicas that have no room, and give ``None`` when none has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from itertools import compress
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar

from gateway.fleet.balance.estimate import AHEAD, Load, Quote, Rates

BOUND = 1.25
"""How many times the mean load a replica may have before its sessions spill over to the next."""

_NEAR = 1.05  # estimates that differ by less are equal: nobody knows them better
_NEAR_SECONDS = 0.001
_MASK = (1 << 64) - 1
_NOTHING_HELD: Mapping[str, int] = MappingProxyType({})


class View(Protocol):
    """What a strategy sees of a replica."""

    @property
    def id(self) -> str:
        """What names it, the same in all instances."""
        ...

    @property
    def point(self) -> int:
        """``point_of`` its id: where it stands among the others, the same in all instances."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests of this instance that it is serving."""
        ...

    @property
    def room(self) -> int:
        """How many it may have at most."""
        ...

    @property
    def share(self) -> float:
        """How much it may get beside a full replica, above 0 and up to 1."""
        ...

    @property
    def turn(self) -> int:
        """A number that grew with each request of its pool, when it got its last one; 0 before the first."""
        ...

    @property
    def pace(self) -> Rates:
        """How fast it is."""
        ...

    @property
    def quote(self) -> Quote:
        """What it would take, void since its load last changed."""
        ...

    def load(self, now: float) -> Load:
        """What it has to do."""
        ...


class Ask(NamedTuple):
    """A request as far as the choice goes.

    ``tokens`` and ``size`` are the length of its prompt in tokens and in bytes. ``held`` says how many bytes of it are
    in the prefix caches of replicas, by their ids: of those alone that have any, and never more than ``size``.
    ``anchor`` is a hash, the same in all instances, of what the prompt begins with: those that begin alike go to the
    same of equal replicas. ``session`` is one of what requests should be kept together by. ``now`` is in seconds.
    """

    tokens: float
    now: float
    size: int = 0
    held: Mapping[str, int] = _NOTHING_HELD
    anchor: int | None = None
    session: int | None = None

    def uncached(self, replica: str) -> float:
        """Prompt tokens that this replica would have to compute: as great a part of them as of the bytes."""
        if not self.held or self.size <= 0:
            return self.tokens
        return self.tokens * (1.0 - min(max(self.held.get(replica, 0) / self.size, 0.0), 1.0))


def nearly(best: float) -> float:
    """Up to how many seconds an estimate is as good as the best."""
    return best * _NEAR if best * (_NEAR - 1.0) > _NEAR_SECONDS else best + _NEAR_SECONDS


def is_later(seconds: float, best: float) -> bool:
    """Whether an estimate is worse than another in a way that counts."""
    return seconds > nearly(best)


V = TypeVar("V", bound=View)
Random = Callable[[], float]
"""Gives numbers in [0, 1)."""


class Strategy(Protocol):
    """One of the candidates that has room, or ``None``."""

    def __call__(self, candidates: Sequence[V], ask: Ask, random: Random, /) -> V | None:
        """Choose."""
        ...


def by_estimate(candidates: Sequence[V], ask: Ask, random: Random) -> V | None:
    """The one that will give the first token soonest, what it makes others wait included.

    Of estimates that are nearly equal, those that leave the least to compute: that is less work for all. Of those, the
    one that the anchor prefers, so that instances agree; without an anchor the one with the fewest requests of this
    instance, so that idle replicas are found out about, and then at random, so that they do not all do the same.
    """
    seconds = _seconds(candidates, ask)
    bound = nearly(min(seconds)) if seconds else 0.0
    near = zip(candidates, seconds, strict=True)
    equals = [view for view, its in near if its <= bound and view.in_flight < view.room]
    if not equals:
        left = [view for view in candidates if view.in_flight < view.room]
        return (by_estimate if len(left) < len(candidates) else by_in_flight)(left, ask, random)
    return equals[0] if len(equals) == 1 else _among(equals, ask, random)


def _seconds(candidates: Sequence[View], ask: Ask) -> list[float]:
    """What each candidate's quote says, once it holds: as ``Quote.holds`` and ``Quote.seconds``, without the calls."""
    tokens, now, held = ask.tokens, ask.now, ask.held
    late, each = now + AHEAD, tokens / ask.size if ask.size > 0 else 0.0
    seconds: list[float] = []
    for view in candidates:
        quote = view.quote
        if not now < quote.until < late:
            quote.renew(view.load(now), view.pace, now)
        uncached = tokens - each * held.get(view.id, 0) if held else tokens
        clear, base, busy = quote.clear, quote.base, quote.token * uncached
        total = (clear - now + base if clear > now else base) + busy + quote.crowd * busy * busy
        if uncached > quote.free:
            total += (uncached - quote.free) * quote.hold
        if uncached > quote.spare:
            total += (uncached - quote.spare) * quote.evict
        seconds.append(total)
    return seconds


def _among(equals: list[V], ask: Ask, random: Random) -> V:
    held = ask.held
    if held:
        sizes = [held.get(view.id, 0) for view in equals]
        most = max(sizes)
        if sizes.count(most) < len(sizes):
            equals = list(compress(equals, map(most.__eq__, sizes)))
    if ask.anchor is not None:
        return _nearest(equals, ask.anchor)
    fewest = min([view.in_flight for view in equals])
    idlest = [view for view in equals if view.in_flight == fewest]
    return idlest[int(random() * len(idlest))]


def by_in_flight(candidates: Sequence[V], ask: Ask, random: Random) -> V | None:
    """The one with the fewest requests of this instance, by the share that it may have; equal ones at random."""
    loads = [(view.in_flight + 1) / view.share if view.in_flight < view.room else math.inf for view in candidates]
    least = min(loads, default=math.inf)
    if least == math.inf:
        return None
    equals = [view for view, load in zip(candidates, loads, strict=True) if load == least]
    return equals[int(random() * len(equals))]


def by_two_choices(candidates: Sequence[V], ask: Ask, random: Random) -> V | None:
    """The less loaded of two at random (Mitzenmacher 2001)."""
    left = [view for view in candidates if view.in_flight < view.room]
    if len(left) < 2:
        return left[0] if left else None
    first = int(random() * len(left))
    second = int(random() * (len(left) - 1))
    if second >= first:
        second += 1
    one, other = left[first], left[second]
    return one if (one.in_flight + 1) * other.share <= (other.in_flight + 1) * one.share else other


def in_turn(candidates: Sequence[V], ask: Ask, random: Random) -> V | None:
    """The one that has waited for a request the longest. One with half a share is chosen every other round."""
    left = sorted([view for view in candidates if view.in_flight < view.room], key=lambda view: view.turn)
    others = len(left) - 1
    for view in left:
        # It stays the first of the round until it is chosen, so it is asked with each request, not once a round.
        share = view.share
        if share >= 1.0 or random() * (share + others * (1.0 - share)) < share:
            return view
    return left[0] if left else None


def by_session(candidates: Sequence[V], ask: Ask, random: Random) -> V | None:
    """The same one for the same session, unless it has more than its bound (consistent hashing with bounded loads,
    Mirrokni, Thorup and Zadimoghaddam 2018): then the next one in the session's own order of replicas, so that only the
    sessions of a replica that comes or goes move. Without a session, the anchor; without either, the fewest in flight.
    """
    key = ask.anchor if ask.session is None else ask.session
    if key is None:
        return by_in_flight(candidates, ask, random)
    left = [view for view in candidates if view.in_flight < view.room]
    if not left:
        return None
    shares = sum([view.share for view in candidates])
    most = BOUND * (sum([view.in_flight for view in candidates]) + 1) / shares
    below = [view for view in left if view.in_flight < math.ceil(most * view.share)]
    return _nearest(below or left, key)


def _nearest(views: Sequence[V], key: int) -> V:
    """The first in the key's own order of replicas (rendezvous hashing). It is the same in all instances.

    Of the product, the high bits depend on all bits of both numbers, and they decide.
    """
    odd = key << 1 | 1
    places = [view.point * odd & _MASK for view in views]
    return views[places.index(min(places))]


def point_of(name: str) -> int:
    """A number of 64 bits for a replica's id or a session, the same in all instances. Odd, so that no key undoes it."""
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()) | 1


STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        "estimate": by_estimate,
        "least-in-flight": by_in_flight,
        "power-of-two": by_two_choices,
        "round-robin": in_turn,
        "session": by_session,
    }
)
