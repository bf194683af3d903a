"""The requests of one class that wait for one model: fair between tenants, in order of arrival within each. Pure.

Deficit round robin (Shreedhar and Varghese, "Efficient fair queuing using deficit round robin", 1996), counted in
tokens: in each round a tenant may have as many more tokens as its weight says, and what it has not used of them counts
in the next round. So over any time in which two tenants both wait, what they get for each unit of weight differs by no
more than a quantum and the largest request of each, whatever the number and the size of their requests.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from itertools import takewhile
from typing import NamedTuple

from gateway.model import Priority

QUANTUM = 2_048
"""Tokens that a tenant of weight 1 may have more in each round."""
MOST_TOKENS = 10_000_000
"""More than any context holds: what says that it costs more is taken to cost this."""
_LEAST_WEIGHT, _MOST_WEIGHT = 0.01, 1_000.0


class Ticket:
    """A request that waits. Compared by identity.

    ``tokens`` is what it is taken to cost, at least 1: what costs nothing would never end its tenant's turn. ``size``
    is in bytes. ``entered`` is when it first came and ``deadline`` until when it may wait, in seconds of one monotonic
    clock. ``number`` is its own among all of its queue.
    """

    __slots__ = ("alias", "deadline", "entered", "number", "priority", "size", "tenant", "tokens", "weight")

    def __init__(
        self,
        *,
        alias: str,
        tenant: str,
        priority: Priority,
        weight: float,
        tokens: int,
        size: int,
        deadline: float,
        entered: float,
        number: int,
    ) -> None:
        self.alias = alias
        self.tenant = tenant
        self.priority = priority
        self.weight = min(max(weight, _LEAST_WEIGHT), _MOST_WEIGHT)
        self.tokens = min(max(tokens, 1), MOST_TOKENS)
        self.size = max(size, 0)
        self.deadline = deadline
        self.entered = entered
        self.number = number


class Ahead(NamedTuple):
    """What is served before somebody: how many requests, and their tokens."""

    requests: float
    tokens: float


Line = OrderedDict[int, Ticket]
"""Tickets by their numbers, in order of arrival. Its ends and any ticket of it are reached in constant time."""


def stand(line: Line, ticket: Ticket) -> None:
    """Put a ticket in its place. Nearly all are the youngest; one that comes again goes before those it was before."""
    youngest = line[next(reversed(line))] if line else ticket
    line[ticket.number] = ticket
    if youngest.entered <= ticket.entered:
        return
    older = list(takewhile(lambda each: each.entered <= ticket.entered, line.values()))
    for each in (ticket, *reversed(older)):
        line.move_to_end(each.number, last=False)


class _Flow:
    """The tickets of one tenant. ``fed``: it has got its tokens for the round that it is in."""

    __slots__ = ("deficit", "fed", "line", "tokens", "weight")

    def __init__(self) -> None:
        self.line: Line = OrderedDict()
        self.tokens = 0
        self.weight = 1.0
        self.deficit = 0.0
        self.fed = False

    @property
    def first(self) -> Ticket:
        return next(iter(self.line.values()))

    @property
    def short(self) -> float:
        """Rounds that it needs to be served; 0 or less: none."""
        return (self.first.tokens - self.deficit) / (QUANTUM * self.weight)

    def feed(self, rounds: float) -> None:
        self.deficit += rounds * QUANTUM * self.weight


class Flows:
    """All tickets of one class, and whose turn it is. What changes takes constant time, ``next`` in the mean too.

    A tenant of which nothing waits any more is forgotten, and with it what it had not used: nobody saves up.
    """

    __slots__ = ("_line", "_ring", "tokens", "weight")

    def __init__(self) -> None:
        self._line: Line = OrderedDict()
        self._ring: OrderedDict[str, _Flow] = OrderedDict()
        self.tokens = 0
        self.weight = 0.0

    def __len__(self) -> int:
        return len(self._line)

    @property
    def oldest(self) -> Ticket | None:
        """The ticket that came first; ``None``: nothing waits."""
        return next(iter(self._line.values()), None)

    def add(self, ticket: Ticket) -> None:
        """One more waits."""
        stand(self._line, ticket)
        flow = self._ring.get(ticket.tenant)
        if flow is None:
            flow = self._ring[ticket.tenant] = _Flow()
            self.weight += ticket.weight
        else:
            self.weight += ticket.weight - flow.weight
        flow.weight = ticket.weight  # the newest word of policy
        stand(flow.line, ticket)
        flow.tokens += ticket.tokens
        self.tokens += ticket.tokens

    def remove(self, ticket: Ticket) -> None:
        """One that waits does so no more."""
        flow = self._ring[ticket.tenant]
        del self._line[ticket.number], flow.line[ticket.number]
        flow.tokens -= ticket.tokens
        self.tokens -= ticket.tokens
        if not flow.line:
            del self._ring[ticket.tenant]
            self.weight = self.weight - flow.weight if self._ring else 0.0

    def next(self) -> Ticket:
        """Take the ticket whose turn it is. Something must wait."""
        flow = self._turn()
        ticket = flow.first
        flow.deficit -= ticket.tokens
        self.remove(ticket)
        return ticket

    def _turn(self) -> _Flow:
        """The tenant whose turn it is, and whose tokens suffice for its first ticket."""
        passed = 0
        while True:
            tenant, flow = next(iter(self._ring.items()))
            if not flow.fed:
                flow.feed(1)
                flow.fed = True
            if flow.first.tokens <= flow.deficit:
                return flow
            flow.fed = False
            self._ring.move_to_end(tenant)
            passed += 1
            if passed % len(self._ring) == 0:
                self._skip()

    def _skip(self) -> None:
        """Nobody's tokens sufficed: pass at once over all further rounds in which nobody's would.

        So a huge request of a tenant with a small weight takes no longer to choose than any other.
        """
        rounds = math.ceil(min(flow.short for flow in self._ring.values())) - 1
        if rounds > 0:
            for flow in self._ring.values():
                flow.feed(rounds)

    def ahead(self, ticket: Ticket) -> Ahead:
        """What of this class is served before a newcomer like this, at most.

        All of its own tenant; and of the others what is there, but no more than their weights give them in the rounds
        that its own tenant needs until then.
        """
        flow = self._ring.get(ticket.tenant)
        own = Ahead(0, 0) if flow is None else Ahead(len(flow.line), flow.tokens)
        held = Ahead(len(self._line) - own.requests, self.tokens - own.tokens)
        if not held.requests:
            return own
        weight = self.weight if flow is None else self.weight - flow.weight
        tokens = min(held.tokens, (own.tokens + ticket.tokens) * max(weight, 0.0) / ticket.weight)
        return Ahead(own.requests + held.requests * tokens / held.tokens, own.tokens + tokens)
