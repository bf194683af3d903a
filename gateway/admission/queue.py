"""Who waits for a place at the replicas of one served model, and whose turn it is. Pure.

Classes come strictly one after the other, but for those that starve: while somebody of a lower class has waited for as
long as policy says, one of ``STARVED_EVERY`` places is for that class. So a class above bounds how slowly one below
moves, and a lower class that is always overloaded, and thus always starves, costs the one above it a place now and then
and not its rank.

What waits of an alias is bounded, and what waits of all. Who gives way where too much does, is for ``holdings`` to say:
the queue only sees to it that whoever does waits no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.admission.flows import Ahead, Flows, Ticket
from gateway.admission.holdings import Bounds, Together, Waiting
from gateway.model import Priority
from gateway.policy.admission import Admission

STARVED_EVERY = 4
"""Of so many places one may be for a class that starves."""

_CLASSES = tuple(Priority)


class FairQueue:
    """The queue of one served model. ``policy`` is the one in force; times are seconds of one monotonic clock.

    ``together`` is shared by all queues of an instance.
    """

    __slots__ = ("_aliases", "_classes", "_last_starved", "_policy", "_since_starved", "_tickets", "_together")

    def __init__(self, policy: Callable[[], Admission], together: Together | None = None) -> None:
        self._policy = policy
        self._together = Together() if together is None else together
        self._tickets: dict[int, Ticket] = {}
        self._classes: tuple[Flows, ...] = tuple(Flows() for _ in _CLASSES)
        self._aliases: dict[str, Waiting] = {}
        self._since_starved = STARVED_EVERY - 1  # places since the last one that was for a class that starves
        self._last_starved = 0  # the rank of that class

    def __len__(self) -> int:
        return len(self._tickets)

    def offer(self, ticket: Ticket) -> tuple[Ticket, ...]:
        """Have a request wait. Those that had to give way to it, also in other queues, wait no more and are given back.

        Raises ``QueueFull``: then nobody has given way.
        """
        policy = self._policy()
        waiting = self._aliases.get(ticket.alias) or Waiting(self._together, self.remove)
        bounds = Bounds(policy.queue, min(policy.queue_bytes, self._together.bound(waiting)))
        dropped = waiting.make_way(ticket, bounds)
        self._aliases[ticket.alias] = waiting
        waiting.add(ticket)
        self._classes[ticket.priority.rank].add(ticket)
        self._tickets[ticket.number] = ticket
        return (*dropped, *self._together.make_way())

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
        """About what is served before a newcomer like this: all of the classes above, and its own by its fair part.

        Where its class starves before its time is over, of the others no more than go between its places: else whoever
        keeps the classes above waiting would have it refused as hopeless.
        """
        rank = ticket.priority.rank
        own, above = self._classes[rank].ahead(ticket), self._classes[:rank]
        requests = own.requests + sum(map(len, above))
        if 0 < self._policy().starve[rank] < ticket.deadline - ticket.entered:
            requests = min(requests, STARVED_EVERY * (own.requests + 1))
        return Ahead(requests, own.tokens + sum(flows.tokens for flows in above))

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
