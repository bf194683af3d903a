"""What waits of each alias, by class and tenant, and who gives way where too much does. Pure.

Of each bound a class has a part, and so has each alias of all that may wait together. One rule holds for both. A
newcomer that stays within the part of its own is let in, and those that hold more than theirs give way. One that goes
beyond it is let in if there is room, or if others of its own make some. As the parts are together no more than the
bound, whoever is within its part finds one that is beyond it; and as nobody has to give what is within its part, those
who give way cannot drive out those who came in. All is counted in whole requests: a body that is larger than a part is
safe from nobody, and a class or alias that has given way may have less than its part, but then it may have it back.

A newcomer beyond the part of its class takes what the classes below it hold beyond theirs, the lowest first; and then,
in its own, of whoever holds so much that it holds no less than the newcomer's tenant even then. So nobody who fills a
queue shuts others out of it, neither a class nor a tenant nor an alias.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import NamedTuple

from gateway.admission.flows import Line, Ticket, stand
from gateway.model import Priority

PARTS = 8
"""One of so many parts of a bound is for each class below the highest: of three classes a quarter for both together, as
every fourth place is for those that starve."""
UNBOUNDED = 1 << 62
"""More bytes than there are."""

_BELOW = len(Priority) - 1
_EQUALS, _EQUALS_FOR = 64, 4096  # so many of its class give way to one newcomer, and one more for so many bytes of it
_STALE = 64  # entries of a ranking that may be of no more use, besides as many as there are tenants
_COUNT, _BYTES = range(2)  # what a bound may be on, and so what somebody may hold the most of


class QueueFull(Exception):
    """As much waits as may, and too little of it is beyond its part or of tenants that hold more than this one."""


class Bounds(NamedTuple):
    """How many requests of an alias may wait, and the bytes of their bodies."""

    requests: int
    size: int


def part(bound: int, rank: int) -> int:
    """What a class has of a bound for itself: those below the highest an eighth each, rounded up, as long as something
    is left to the highest; and that the rest."""
    lower = max(min(-(-bound // PARTS), (bound - 1) // _BELOW), 0)
    return lower if rank else bound - _BELOW * lower


class _Held:
    """What one tenant has waiting in one class of one alias. ``listed`` is the key of its entry in each ranking, which
    is no lower than what it holds."""

    __slots__ = ("line", "listed", "size")

    def __init__(self) -> None:
        self.line: Line = OrderedDict()
        self.size = 0
        self.listed = [-1, -1]

    @property
    def newest(self) -> Ticket:
        return self.line[next(reversed(self.line))]

    def of(self, measure: int) -> int:
        return self.size if measure == _BYTES else len(self.line)


_Entry = tuple[int, int, _Held]
"""The negative of what it was seen to hold; a number, so that equals are told apart; and whose it is."""


class _Class:
    """What waits of one class of one alias, by tenant. All takes a time that grows with the logarithm of the number of
    tenants, in the mean.

    ``_rankings`` are heaps, by each measure. What a tenant loses is only looked at when its entry comes first.
    """

    __slots__ = ("_held", "_numbers", "_rankings", "whole")

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._rankings: tuple[list[_Entry], list[_Entry]] = ([], [])
        self._numbers = count()
        self.whole = [0, 0]  # by measure

    def add(self, ticket: Ticket) -> None:
        held = self._held.get(ticket.tenant)
        if held is None:
            held = self._held[ticket.tenant] = _Held()
        stand(held.line, ticket)
        held.size += ticket.size
        self.whole[_COUNT] += 1
        self.whole[_BYTES] += ticket.size
        for measure in (_COUNT, _BYTES):
            if held.of(measure) > held.listed[measure]:
                self._list(held, measure)

    def remove(self, ticket: Ticket) -> None:
        held = self._held[ticket.tenant]
        del held.line[ticket.number]
        held.size -= ticket.size
        self.whole[_COUNT] -= 1
        self.whole[_BYTES] -= ticket.size
        if not held.line:
            held.listed = [-1, -1]  # of no ranking any more
            del self._held[ticket.tenant]

    def _list(self, held: _Held, measure: int) -> None:
        ranking = self._rankings[measure]
        held.listed[measure] = held.of(measure)
        heappush(ranking, (-held.listed[measure], next(self._numbers), held))
        if len(ranking) > 2 * len(self._held) + _STALE:
            ranking[:] = [entry for entry in ranking if entry[2].listed[measure] == -entry[0]]
            heapify(ranking)

    def newest_of_most(self, measure: int) -> Ticket | None:
        """The newest ticket of a tenant that holds the most; ``None``: nobody holds anything."""
        ranking = self._rankings[measure]
        while ranking:
            key, _, held = ranking[0]
            if held.listed[measure] != -key:
                heappop(ranking)
            elif held.of(measure) != -key:
                held.listed[measure] = held.of(measure)
                heapreplace(ranking, (-held.listed[measure], next(self._numbers), held))
            else:
                return held.newest
        return None

    def equals(self, ticket: Ticket, over: Sequence[int]) -> list[Ticket]:
        """The tickets that give way to a newcomer of this class: so many, with so many bytes. They stay where they are.

        To find that too few would may cost no more than the newcomer itself does: the larger it is, the more are looked
        at. Raises ``QueueFull`` where those are too few, or one would be of a tenant that would then hold less than the
        newcomer's.
        """
        lacking, size = over
        most = _EQUALS + ticket.size // _EQUALS_FOR
        left: list[Ticket] = []
        try:
            while lacking > 0 or size > 0:
                measure = _BYTES if size > 0 else _COUNT
                newest = self.newest_of_most(measure)
                if newest is None or len(left) == most or not self._gives_way(newest, ticket, measure):
                    raise QueueFull
                self.remove(newest)
                left.append(newest)
                lacking, size = lacking - 1, size - newest.size
        finally:
            for each in reversed(left):
                self.add(each)
        return left

    def _gives_way(self, newest: Ticket, ticket: Ticket, measure: int) -> bool:
        """Whether the one tenant holds no less without its newest ticket than the other would with one more."""
        if newest.tenant == ticket.tenant:
            return False
        own = self._held.get(ticket.tenant)
        less, more = (newest.size, ticket.size) if measure == _BYTES else (1, 1)
        return self._held[newest.tenant].of(measure) - less >= more + (own.of(measure) if own is not None else 0)


class Waiting:
    """What waits of one alias, among ``together``. ``classes`` are ordered, the highest first. ``drop`` takes a ticket
    out of all that knows of it, and so calls ``remove``."""

    __slots__ = ("_drop", "_together", "classes", "count", "size")

    def __init__(self, together: Together, drop: Callable[[Ticket], object]) -> None:
        self._together = together
        self._drop = drop
        self.classes: tuple[_Class, ...] = tuple(_Class() for _ in Priority)
        self.count = 0
        self.size = 0

    def add(self, ticket: Ticket) -> None:
        """One more waits."""
        self.classes[ticket.priority.rank].add(ticket)
        self.count += 1
        self.size += ticket.size
        self._together.grown(self, ticket.size)

    def remove(self, ticket: Ticket) -> None:
        """One that waits does so no more."""
        self.classes[ticket.priority.rank].remove(ticket)
        self.count -= 1
        self.size -= ticket.size
        self._together.shrunk(self, ticket.size)

    def make_way(self, ticket: Ticket, bounds: Bounds) -> list[Ticket]:
        """Drop whoever has to give way to a newcomer, each the newest of whoever held the most of what there is too
        much of.

        Raises ``QueueFull``: then nobody has given way.
        """
        over = [self.count + 1 - bounds.requests, self.size + ticket.size - bounds.size]
        if max(over) <= 0:
            return []
        ranks = self._givers(ticket, bounds, over)
        lacking = [over[measure] - self._beyond(ranks, measure, bounds) for measure in (_COUNT, _BYTES)]
        equals = self.classes[ticket.priority.rank].equals(ticket, lacking)
        for each in equals:
            self._drop(each)
        left, size = over[_COUNT] - len(equals), over[_BYTES] - sum(each.size for each in equals)
        others: list[Ticket] = []
        while (left > 0 or size > 0) and (newest := self._drop_one(ranks, _BYTES if size > 0 else _COUNT, bounds)):
            others.append(newest)
            left, size = left - 1, size - newest.size
        return others + equals

    def _givers(self, ticket: Ticket, bounds: Bounds, over: Sequence[int]) -> list[int]:
        """The ranks that give way to a newcomer, the lowest first: those below, and if it is within its part, all."""
        own, more = ticket.priority.rank, (1, ticket.size)
        whole = self.classes[own].whole
        within = all(
            whole[measure] + more[measure] <= part(bounds[measure], own)
            for measure in (_COUNT, _BYTES)
            if over[measure] > 0
        )
        return [rank for rank in reversed(range(len(self.classes))) if rank > own or (within and rank != own)]

    def _beyond(self, ranks: Sequence[int], measure: int, bounds: Bounds) -> int:
        """What classes hold beyond their parts."""
        return sum(max(self.classes[rank].whole[measure] - part(bounds[measure], rank), 0) for rank in ranks)

    def _drop_one(self, ranks: Sequence[int], measure: int, bounds: Bounds) -> Ticket | None:
        """Drop the newest of whoever holds the most of the first of these classes that is beyond its part."""
        beyond = (rank for rank in ranks if self._beyond((rank,), measure, bounds))
        newest = next((self.classes[rank].newest_of_most(measure) for rank in beyond), None)
        if newest is not None:
            self._drop(newest)
        return newest

    def give_way(self, size: int) -> Ticket | None:
        """Drop one for other aliases, where this one holds more than so many bytes."""
        return self._drop_one(range(len(self.classes))[::-1], _BYTES, Bounds(self.count, size))


class Together:
    """All aliases of all models of which something waits: bodies of ``whole`` bytes together.

    An alias's part is an equal one, whatever the weights of its tenants. Were newcomers refused instead, a few aliases
    that are full would have the queues of all others closed; and were the whole divided once and for all, little of it
    would be used. In the alias that holds the most the lowest class gives way, to any class: how urgent a request is
    counts among those for the same engines.
    """

    __slots__ = ("_aliases", "size", "whole")

    def __init__(self, whole: int = UNBOUNDED) -> None:
        self.whole = whole
        self.size = 0
        self._aliases: dict[Waiting, None] = {}

    def grown(self, waiting: Waiting, size: int) -> None:
        """An alias has so many bytes more."""
        self._aliases[waiting] = None
        self.size += size

    def shrunk(self, waiting: Waiting, size: int) -> None:
        """So many less."""
        self.size -= size
        if not waiting.count:
            del self._aliases[waiting]

    def bound(self, waiting: Waiting) -> int:
        """The bytes that an alias may hold when one more of it comes: what is free, but its part at least."""
        equal = self.whole // (len(self._aliases) + (waiting not in self._aliases))
        return max(equal, waiting.size + self.whole - self.size)

    def make_way(self) -> list[Ticket]:
        """Drop what is too much, once a newcomer is in whose alias is within its ``bound``: none of that alias."""
        dropped: list[Ticket] = []
        while self.size > self.whole and (newest := self._most().give_way(self.whole // len(self._aliases))):
            dropped.append(newest)
        return dropped

    def _most(self) -> Waiting:
        return max(self._aliases, key=lambda each: each.size)
