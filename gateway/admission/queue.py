"""Who waits for a place at the replicas of one served model, and whose turn it is. Pure.

Classes come strictly one after the other, but for those that starve: while somebody of a lower class has waited for as
long as policy says, one of ``STARVED_EVERY`` places is for that class. So a class above bounds how slowly one below
moves, and a lower class that is always overloaded, and thus always starves, costs the one above it a place now and then
and not its rank.

What waits of an alias is bounded. When that much does, a newcomer is let in all the same if others give way to it:
first those of lower classes, and then, in its own, those of whoever holds so much that it holds no less than the
newcomer's tenant even then. So nobody who fills a queue shuts others out of it, and equals do not drive out each other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count

from gateway.admission.flows import Ahead, Flows, Line, Ticket, stand
from gateway.model import Priority
from gateway.policy.admission import Admission

STARVED_EVERY = 4
"""Of so many places one may be for a class that starves."""

_CLASSES = tuple(Priority)
_MOST_EQUALS = 64  # of its class that give way to one newcomer: to find that too few would must not cost more
_STALE = 64  # entries of a ranking that may be of no more use, besides as many as there are tenants


class QueueFull(Exception):
    """As much waits as may, and too little of it is of lower classes or of tenants that hold more than this one."""


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


_COUNT, _BYTES = range(2)
"""What a bound may be on, and so what somebody may hold the most of."""

_Entry = tuple[int, int, _Held]
"""The negative of what it was seen to hold; a number, so that equals are told apart; and whose it is."""


class _Class:
    """What waits of one class of one alias, by tenant. All takes a time that grows with the logarithm of the number of
    tenants, in the mean.

    ``_rankings`` are heaps, by each measure. What a tenant loses is only looked at when its entry comes first.
    """

    __slots__ = ("_held", "_numbers", "_rankings", "count", "size")

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._rankings: tuple[list[_Entry], list[_Entry]] = ([], [])
        self._numbers = count()
        self.count = 0
        self.size = 0

    def add(self, ticket: Ticket) -> None:
        held = self._held.get(ticket.tenant)
        if held is None:
            held = self._held[ticket.tenant] = _Held()
        stand(held.line, ticket)
        held.size += ticket.size
        self.count += 1
        self.size += ticket.size
        for measure in (_COUNT, _BYTES):
            if held.of(measure) > held.listed[measure]:
                self._list(held, measure)

    def remove(self, ticket: Ticket) -> None:
        held = self._held[ticket.tenant]
        del held.line[ticket.number]
        held.size -= ticket.size
        self.count -= 1
        self.size -= ticket.size
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

    def of(self, tenant: str, measure: int) -> int:
        """How much a tenant holds."""
        held = self._held.get(tenant)
        return 0 if held is None else held.of(measure)

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


class _Waiting:
    """What waits of one alias: its bounds are counted here. ``classes`` are ordered, the highest first."""

    __slots__ = ("classes",)

    def __init__(self) -> None:
        self.classes: tuple[_Class, ...] = tuple(_Class() for _ in _CLASSES)

    @property
    def count(self) -> int:
        return sum(each.count for each in self.classes)

    @property
    def size(self) -> int:
        return sum(each.size for each in self.classes)

    def add(self, ticket: Ticket) -> None:
        self.classes[ticket.priority.rank].add(ticket)

    def remove(self, ticket: Ticket) -> None:
        self.classes[ticket.priority.rank].remove(ticket)

    def newest_of_lowest(self, measure: int) -> Ticket | None:
        """The newest ticket of whoever holds the most of the lowest class of which anything waits."""
        return next((each.newest_of_most(measure) for each in reversed(self.classes) if each.count), None)

    def below(self, rank: int) -> tuple[int, int]:
        """How many tickets are of classes below a rank, and their bytes."""
        lower = self.classes[rank + 1 :]
        return sum(each.count for each in lower), sum(each.size for each in lower)

    def equals(self, ticket: Ticket, over: tuple[int, int]) -> tuple[Ticket, ...]:
        """The tickets of its class that give way to a newcomer: so many, with so many bytes.

        Raises ``QueueFull`` where one would be of a tenant that would then hold less than the newcomer's.
        """
        own = self.classes[ticket.priority.rank]
        count, size = over
        left: list[Ticket] = []
        try:
            while count > 0 or size > 0:
                measure = _BYTES if size > 0 else _COUNT
                newest = own.newest_of_most(measure)
                if newest is None or len(left) == _MOST_EQUALS or not _gives_way(own, newest, ticket, measure):
                    raise QueueFull
                own.remove(newest)
                left.append(newest)
                count, size = count - 1, size - newest.size
        finally:
            for each in reversed(left):
                own.add(each)
        return tuple(left)


def _gives_way(own: _Class, newest: Ticket, ticket: Ticket, measure: int) -> bool:
    """Whether the one tenant holds no less without its newest ticket than the other would with one more."""
    if newest.tenant == ticket.tenant:
        return False
    less, more = (newest.size, ticket.size) if measure == _BYTES else (1, 1)
    return own.of(newest.tenant, measure) - less >= own.of(ticket.tenant, measure) + more


class FairQueue:
    """The queue of one served model. ``policy`` is the one in force; times are seconds of one monotonic clock."""

    __slots__ = ("_aliases", "_classes", "_last_starved", "_policy", "_since_starved", "_tickets")

    def __init__(self, policy: Callable[[], Admission]) -> None:
        self._policy = policy
        self._tickets: dict[int, Ticket] = {}
        self._classes: tuple[Flows, ...] = tuple(Flows() for _ in _CLASSES)
        self._aliases: dict[str, _Waiting] = {}
        self._since_starved = STARVED_EVERY - 1  # places since the last one that was for a class that starves
        self._last_starved = 0  # the rank of that class

    def __len__(self) -> int:
        return len(self._tickets)

    def offer(self, ticket: Ticket) -> tuple[Ticket, ...]:
        """Have a request wait. Those that had to give way to it, of its alias, wait no more and are given back.

        They are of lower classes, the lowest first, and then of its own; each the newest of whoever held the most of
        what there is too much of.

        Raises ``QueueFull``: then nobody has given way.
        """
        policy = self._policy()
        waiting = self._aliases.get(ticket.alias) or _Waiting()
        evicted = self._evict(waiting, ticket, policy)
        self._aliases[ticket.alias] = waiting
        waiting.add(ticket)
        self._classes[ticket.priority.rank].add(ticket)
        self._tickets[ticket.number] = ticket
        return evicted

    def _evict(self, waiting: _Waiting, ticket: Ticket, policy: Admission) -> tuple[Ticket, ...]:
        count, size = waiting.count + 1 - policy.queue, waiting.size + ticket.size - policy.queue_bytes
        if count <= 0 and size <= 0:
            return ()
        lower_count, lower_size = waiting.below(ticket.priority.rank)
        equals = waiting.equals(ticket, (count - lower_count, size - lower_size))
        for each in equals:
            self.remove(each)
        count, size = count - len(equals), size - sum(each.size for each in equals)
        lower: list[Ticket] = []
        while (count > 0 or size > 0) and (newest := waiting.newest_of_lowest(_BYTES if size > 0 else _COUNT)):
            self.remove(newest)
            lower.append(newest)
            count, size = count - 1, size - newest.size
        return (*lower, *equals)

    def take(self, now: float, may: Callable[[Priority], bool]) -> Ticket | None:
        """The one whose turn it is, which waits no more; ``None``: nobody's, or there is no place for it.

        ``may`` says whether a class may fill one more place now. A class that starves fills one that the highest may:
        what is held back from it is no longer, and by turns only.
        """
        starved = self._starved(now) if self._since_starved >= STARVED_EVERY - 1 else None
        if starved is not None and may(_CLASSES[0]):
            self._since_starved, self._last_starved = 0, starved
            return self._taken(self._classes[starved])
        for priority, flows in zip(_CLASSES, self._classes, strict=True):
            if flows and may(priority):
                self.passed()
                return self._taken(flows)
        return None

    def passed(self) -> None:
        """A place went to somebody who did not have to wait for it, or whose turn it was by class."""
        self._since_starved += 1

    def _starved(self, now: float) -> int | None:
        """The rank of a class of which somebody has waited for too long. Several take turns, but for the first one that
        waits: it is served anyway.
        """
        starve = self._policy().starve
        waiting = [rank for rank, flows in enumerate(self._classes) if flows]
        starved = [rank for rank in waiting if self._starves(rank, starve[rank], now)]
        if len(starved) > 1 and starved[0] == waiting[0]:
            del starved[0]
        return next((rank for rank in starved if rank > self._last_starved), starved[0] if starved else None)

    def _starves(self, rank: int, limit: float, now: float) -> bool:
        oldest = self._classes[rank].oldest
        return limit > 0 and oldest is not None and now - oldest.entered >= limit

    def _taken(self, flows: Flows) -> Ticket:
        ticket = flows.next()
        self._forget(ticket)
        return ticket

    def remove(self, ticket: Ticket) -> bool:
        """Have it wait no more; whether it did."""
        if self._tickets.get(ticket.number) is not ticket:
            return False
        self._classes[ticket.priority.rank].remove(ticket)
        self._forget(ticket)
        return True

    def _forget(self, ticket: Ticket) -> None:
        del self._tickets[ticket.number]
        waiting = self._aliases[ticket.alias]
        waiting.remove(ticket)
        if not waiting.count:
            del self._aliases[ticket.alias]

    def clear(self) -> tuple[Ticket, ...]:
        """Have nobody wait any more; those who did, in the order in which they came here."""
        tickets = tuple(self._tickets.values())
        for ticket in tickets:
            self.remove(ticket)
        return tickets

    def ahead(self, ticket: Ticket) -> Ahead:
        """About what is served before a newcomer like this: all of the classes above, and its own by its fair part."""
        rank = ticket.priority.rank
        own, above = self._classes[rank].ahead(ticket), self._classes[:rank]
        return Ahead(own.requests + sum(map(len, above)), own.tokens + sum(flows.tokens for flows in above))

    def depths(self) -> Mapping[Priority, int]:
        """How many wait, by class."""
        return {priority: len(flows) for priority, flows in zip(_CLASSES, self._classes, strict=True)}

    def depth_of(self, alias: str) -> tuple[int, int]:
        """How many wait of one alias, and the bytes of their bodies."""
        waiting = self._aliases.get(alias)
        return (0, 0) if waiting is None else (waiting.count, waiting.size)

    @property
    def size(self) -> int:
        """Bytes of all bodies that wait."""
        return sum(waiting.size for waiting in self._aliases.values())
