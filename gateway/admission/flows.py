"""The requests of one class that wait for one model: fair between tenants, in order of arrival within each. Pure.

Deficit round robin (Shreedhar and Varghese, "Efficient fair queuing using deficit round robin", 1996), counted in
tokens: in each round a tenant may have as many more tokens as its weight says. It has its turn while it has any left,
so that the last request of a turn may overdraw them: it sits out the rounds that pay for that.

One of which nothing waited has its next turn at once and not when it would come, as the new flows of FQ-CoDel have
(RFC 8290, section 4): who asks for less than its fair part hardly waits. It has but one turn in a round all the same,
as nobody is forgotten before the round is over in which it was served. So over any time in which two tenants both wait,
what they get for each unit of weight differs by no more than three quanta and the largest request of each, whatever the
number and the size of their requests. And of ``EARLY`` + 1 requests at least one is of whoever comes next in the round,
so that any number of tenants, each of them new, makes the round of the others so many times as long and no longer:
between two turns of one, of those that waited at the first each has one at most.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice, takewhile
from typing import NamedTuple

from gateway.model import Priority

QUANTUM = 512
"""Tokens that a tenant of weight 1 may have more in each round: about a usual request. With fewer the rounds would get
no fairer, as no request is divided; with more, all others would wait longer for the turns of each."""
EARLY = 3
"""Requests in a row that may be served before the one that comes next in the round."""
KEPT = 1_000
"""Tenants of which nothing waits that are remembered for the round, or as many as requests wait, if those are more."""
MOST_TOKENS = 10_000_000
"""More than any context holds: what says that it costs more is taken to cost this."""
_LEAST_WEIGHT, _MOST_WEIGHT = 0.01, 1_000.0
_LOOKED_AT = 64  # tenants that are counted when somebody asks what is before it: arrivals must not cost more


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
    """The tickets of one tenant, and its turn: in ``round``, after those of a lower ``number``.

    ``began`` is the round in which it was new. ``deficit`` are the tokens that it has left of what its rounds gave it,
    and ``used`` tells whether it has been served since it got the last of them.
    """

    __slots__ = ("began", "deficit", "line", "number", "round", "tenant", "tokens", "used", "weight")

    def __init__(self, tenant: str, weight: float, number: int, in_round: int) -> None:
        self.tenant = tenant
        self.weight = weight
        self.number = number
        self.began = self.round = in_round
        self.line: Line = OrderedDict()
        self.tokens = 0
        self.deficit = self.share
        self.used = False

    @property
    def first(self) -> Ticket:
        return next(iter(self.line.values()))

    @property
    def share(self) -> float:
        """Tokens that a round gives it."""
        return QUANTUM * self.weight

    @property
    def due(self) -> int:
        """The round of its turn, but for an early one: in that in which it began it has no other."""
        return self.round + (self.round == self.began and self.deficit > 0)

    def rounds_to_pay(self, tokens: float) -> int:
        """Rounds after its own until it has some left again when it has been served so many more."""
        short = tokens - self.deficit
        return math.floor(short / self.share) + 1 if short >= 0 else 0

    def go_on(self) -> None:
        """Its turn is over: on to the next round in which it has any tokens. What is left is nobody's."""
        self.deficit = min(self.deficit, 0.0)
        rounds = self.rounds_to_pay(0.0)
        self.deficit += rounds * self.share
        self.round += rounds
        self.used = False

    def within(self, turns: int) -> float:
        """Tokens of it that are served at least, while it has its turn and so many more."""
        return min(self.tokens, max(self.deficit + turns * self.share, 0.0))


_Turn = tuple[int, int, _Flow]
"""Its round and its number, by which turns are ordered, and whose it is."""


class Flows:
    """All tickets of one class, and whose turn it is. What changes takes a time that grows with the logarithm of the
    number of tenants, in the mean, whatever their weights and sizes: rounds that serve nobody are not gone through.

    A tenant of which nothing waits any more is forgotten when it has its turn, unless it was served in that round, and
    at once when nothing waits at all. With it goes what it had not used: nobody saves up.
    """

    __slots__ = ("_begun", "_early", "_idle", "_in_a_row", "_line", "_round", "_tenants", "_turns", "tokens")

    def __init__(self) -> None:
        self._line: Line = OrderedDict()
        self._tenants: dict[str, _Flow] = {}
        self._turns: list[_Turn] = []  # a heap, of all tenants that are remembered
        self._early: OrderedDict[str, _Flow] = OrderedDict()  # those that need not wait for theirs
        self._idle = 0  # tenants of which nothing waits
        self._begun = 0
        self._round = 0
        self._in_a_row = 0
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._line)

    @property
    def oldest(self) -> Ticket | None:
        """The ticket that came first; ``None``: nothing waits."""
        return next(iter(self._line.values()), None)

    def add(self, ticket: Ticket) -> None:
        """One more waits."""
        flow = self._tenants.get(ticket.tenant) or self._begin(ticket)
        if not flow.line:
            self._idle -= 1
            if self._may_be_early(flow):
                self._early[flow.tenant] = flow
        flow.weight = ticket.weight  # the newest word of policy
        stand(self._line, ticket)
        stand(flow.line, ticket)
        flow.tokens += ticket.tokens
        self.tokens += ticket.tokens

    def _begin(self, ticket: Ticket) -> _Flow:
        """It may have its turn of this round early. If not, it has none: see ``_turn``."""
        flow = self._tenants[ticket.tenant] = _Flow(ticket.tenant, ticket.weight, self._begun, self._round)
        heappush(self._turns, (flow.round, flow.number, flow))
        self._begun += 1
        self._idle += 1
        return flow

    def _may_be_early(self, flow: _Flow) -> bool:
        """Whether its turn of this very round is still to come, so that it may have what is left of it early."""
        return flow.round <= self._round and flow.deficit > 0

    def remove(self, ticket: Ticket) -> None:
        """One that waits does so no more."""
        flow = self._tenants[ticket.tenant]
        del self._line[ticket.number], flow.line[ticket.number]
        flow.tokens -= ticket.tokens
        self.tokens -= ticket.tokens
        if flow.line:
            return
        self._early.pop(flow.tenant, None)
        self._idle += 1
        if not self._line or self._idle > max(KEPT, len(self._line)):
            self._forget_idle()

    def _forget_idle(self) -> None:
        self._turns = [turn for turn in self._turns if turn[2].line]
        heapify(self._turns)
        self._tenants = {flow.tenant: flow for _, _, flow in self._turns}
        self._idle = 0

    def next(self) -> Ticket:
        """Take the ticket whose turn it is. Something must wait."""
        flow = self._turn()
        ticket = flow.first
        flow.deficit -= ticket.tokens
        flow.used = True
        if flow.deficit <= 0:
            self._early.pop(flow.tenant, None)
        self.remove(ticket)
        return ticket

    def _turn(self) -> _Flow:
        """The tenant whose turn it is, or that may have it early."""
        if self._early and self._in_a_row < EARLY:
            self._in_a_row += 1
            return next(iter(self._early.values()))
        self._in_a_row = 0
        while True:
            flow = self._turns[0][2]
            if flow.line and flow.deficit > 0:
                if flow.due == flow.round:
                    self._round = flow.round
                    return flow
                flow.round = flow.due  # else a round would last for as long as somebody new comes
            elif flow.line or flow.used:
                flow.go_on()
            else:
                self._forget_first()
                continue
            heapreplace(self._turns, (flow.round, flow.number, flow))

    def _forget_first(self) -> None:
        del self._tenants[heappop(self._turns)[2].tenant]
        self._idle -= 1

    def ahead(self, ticket: Ticket) -> Ahead:
        """What of this class is served before a newcomer like this, at least, if nobody else comes.

        All of its own tenant; and of the others what their tokens suffice for until then: of those that have their turn
        early, if it has its own so too, and else of all. Of very many not all are counted.
        """
        flow = self._tenants.get(ticket.tenant)
        if flow is None:
            return _ahead(None, ((each, 0) for each in islice(self._early.values(), _LOOKED_AT)))
        if self._served_early(flow):
            before = takewhile(lambda each: each is not flow, self._early.values())
            return _ahead(flow, ((each, 0) for each in islice(before, _LOOKED_AT)))
        last = flow.due + flow.rounds_to_pay(flow.tokens)
        turns = islice(self._turns, _LOOKED_AT)
        return _ahead(flow, ((each, last - each.due - (number > flow.number)) for _, number, each in turns))

    def _served_early(self, flow: _Flow) -> bool:
        """Whether one more of this tenant would be served before the turn of its tenant comes."""
        if flow.line:
            return flow.tenant in self._early and flow.tokens < flow.deficit
        return self._may_be_early(flow)


def _ahead(own: _Flow | None, others: Iterable[tuple[_Flow, int]]) -> Ahead:
    """All of one's own, and what the others are served in so many turns after their next; below 0: in none."""
    requests, tokens = (0.0, 0.0) if own is None else (float(len(own.line)), float(own.tokens))
    for each, turns in others:
        if turns >= 0 and each.tokens and each is not own:
            part = each.within(turns)
            tokens += part
            requests += len(each.line) * part / each.tokens
    return Ahead(requests, tokens)
