"""Places at the replicas of each model, and the requests that wait for one: the thin shell around the queues.

A place is promised, not given: whoever is woken picks a replica by itself, by what is newest then. Until it has entered
a lane there its promise counts as a request in flight, so that nobody who comes later can take what it was woken for.

A replica may serve several models, as an engine with adapters does. Its places go around among those for which somebody
waits, one each, whatever waits for the others: else the model that an engine lists first would get them all.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple

from gateway.admission.drain import DrainMeter
from gateway.admission.flows import Ticket
from gateway.admission.holdings import UNBOUNDED, QueueFull, Together
from gateway.admission.mix import Mix
from gateway.admission.outcomes import Outcome, failure
from gateway.admission.queue import FairQueue
from gateway.admission.vacancy import Replica, Vacancy, vacancy
from gateway.errors import GatewayError
from gateway.model import Priority
from gateway.policy.admission import Admission
from gateway.recent import keep

_MOST_MODELS = 1_000


class Claim(NamedTuple):
    """A request that wants a place at a replica of ``model``.

    ``tokens`` is what it is taken to cost and ``size`` the bytes that it holds. ``entered`` is when it first came, in
    the loop's seconds: one that is tried again has its place and its deadline by that.
    """

    model: str
    alias: str
    tenant: str
    priority: Priority
    weight: float
    tokens: int
    size: int
    entered: float


class Place:
    """A place that was promised to somebody, who says with ``kept`` or ``done`` what came of it; once, then neither
    does anything."""

    __slots__ = ("_gate", "_line")

    def __init__(self, gate: Gate, line: _Line) -> None:
        self._gate = gate
        self._line: _Line | None = line

    def kept(self) -> None:
        """A lane will have been entered before anything else runs: the place counts there then."""
        self._end(taken=True)

    def done(self) -> None:
        """A lane has been entered, or will not be: what is free is for others."""
        self._end(taken=False)

    def _end(self, *, taken: bool) -> None:
        line, self._line = self._line, None
        if line is not None:
            self._gate.settle(line, taken=taken)


class _Sleeper:
    """One that waits: its ticket, and what wakes it."""

    __slots__ = ("ticket", "woken")

    def __init__(self, ticket: Ticket, woken: asyncio.Future[Outcome]) -> None:
        self.ticket = ticket
        self.woken = woken


class _Line:
    """All that is kept of a model while something waits for it or a promise is open. ``turn`` is a number that grew
    with each promise of the gate when this one got its last; a new line begins behind the others."""

    __slots__ = ("meter", "model", "open", "queue", "turn")

    def __init__(self, model: str, queue: FairQueue, meter: DrainMeter, turn: int) -> None:
        self.model = model
        self.queue = queue
        self.meter = meter
        self.turn = turn
        self.open = 0


class Gate:
    """One for an instance. ``pool`` gives the ready replicas of a model; ``close`` is idempotent.

    ``mix`` is told by whoever uses the places what each model has. ``on_outcome`` is told once of each call of
    ``turn``: the class, what came of it, and the seconds it waited here. It may not raise. ``memory`` is how many bytes
    all that waits may hold together. ``random`` gives numbers from 0 to below 1.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        policy: Callable[[], Admission],
        pool: Callable[[str], Sequence[Replica]],
        *,
        on_outcome: Callable[[Priority, Outcome, float], None],
        mix: Mix | None = None,
        memory: int = UNBOUNDED,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._loop = loop
        self._policy = policy
        self._pool = pool
        self._on_outcome = on_outcome
        self.mix = Mix() if mix is None else mix
        self._random = random
        self._together = Together(memory)
        self._lines: dict[str, _Line] = {}
        self._sleepers: dict[int, _Sleeper] = {}  # of all lines, by the numbers of their tickets
        self._meters: OrderedDict[str, DrainMeter] = OrderedDict()
        self._numbers = count()
        self._turns = count()
        self._open = 0  # promises of all models
        self._owed = False  # whether a promise of one model has kept a place from another
        self._closed = False

    # --- the request path

    def waits(self, model: str) -> bool:
        """Whether a request for the model has to ask for its turn: somebody waits, or all that is free is promised."""
        line = self._lines.get(model)
        if line is not None and line.queue:
            return True
        return self._open > 0 and not self._vacancy(model).may(Priority.INTERACTIVE)

    def held_back(self, model: str, priority: Priority) -> bool:
        """Whether the places that are left are for classes above, so that even where nobody waits this one has to."""
        if self._policy().share.of(priority) >= 1.0:
            return False
        left = self._vacancy(model)
        return left.ready and not left.may(priority)

    async def turn(self, claim: Claim) -> Place:
        """Wait for a place.

        Raises ``Refusal`` (queue_full) and ``Unavailable`` (queue_timeout, no_ready_replica, draining). However it
        ends, also by cancellation, nothing of it is left but the place that was returned. It has to be awaited by the
        task that uses the place: one in between could be done when that one is cancelled, and the place would be lost.
        """
        since = self._loop.time()
        if self._closed:
            raise self._failed(claim.priority, Outcome.STOPPED, 0.0, 0)
        line = self._line(claim.model)
        try:
            outcome = await self._wait(line, claim, since)
        except asyncio.CancelledError:
            self._on_outcome(claim.priority, Outcome.GONE, self._loop.time() - since)
            raise
        finally:
            self._tidy(line)
        now = self._loop.time()
        if outcome is not Outcome.DISPATCHED:
            after = line.meter.retry_after(len(line.queue), now, self._random())
            raise self._failed(claim.priority, outcome, now - since, after)
        self._on_outcome(claim.priority, outcome, now - since)
        return Place(self, line)

    async def _wait(self, line: _Line, claim: Claim, since: float) -> Outcome:
        sleeper = self._enqueue(line, claim, since)
        if isinstance(sleeper, Outcome):
            return sleeper
        timer = self._loop.call_at(sleeper.ticket.deadline, self._expire, line, sleeper)
        try:
            return await sleeper.woken
        except asyncio.CancelledError:
            self._leave(line, sleeper)
            raise
        finally:
            timer.cancel()

    def _enqueue(self, line: _Line, claim: Claim, since: float) -> Outcome | _Sleeper:
        """Its outcome, if that is known at once; else it waits."""
        ticket = self._ticket(claim)
        # Whoever is due comes first. If then there is still a place for this class, nobody of it or above it waits.
        if self._serve(line).may(claim.priority):
            self._promise(line, ticket.tokens, since)
            line.queue.passed()
            if line.queue:
                self._serve(line)  # that may have been what somebody starving had to let pass
            return Outcome.DISPATCHED
        if ticket.deadline <= since:
            return Outcome.EXPIRED
        ahead = line.queue.ahead(ticket)
        expected = line.meter.wait_for(ahead.requests, ahead.tokens, since)
        if expected is not None and expected > ticket.deadline - since:
            return Outcome.HOPELESS
        try:
            evicted = line.queue.offer(ticket)
        except QueueFull:
            return Outcome.FULL
        for each in evicted:
            self._wake(each, Outcome.EVICTED)
        line.meter.begin(since)
        sleeper = self._sleepers[ticket.number] = _Sleeper(ticket, self._loop.create_future())
        return sleeper

    def _ticket(self, claim: Claim) -> Ticket:
        return Ticket(
            alias=claim.alias,
            tenant=claim.tenant,
            priority=claim.priority,
            weight=claim.weight,
            tokens=claim.tokens,
            size=claim.size,
            deadline=claim.entered + self._policy().wait.of(claim.priority),
            entered=claim.entered,
            number=next(self._numbers),
        )

    # --- places that become free

    def freed(self, *models: str) -> None:
        """A place may have become free at a replica of these models: a request has ended."""
        lines = map(self._lines.get, models)
        self._serve_all([line for line in lines if line is not None and line.queue])

    def pump(self) -> None:
        """Anything may have changed: a policy, a limit, who is ready."""
        self._serve_all([line for line in self._lines.values() if line.queue])

    def close(self) -> None:
        """Nobody gets in any more, and those who wait are told."""
        self._closed = True
        for line in tuple(self._lines.values()):
            for ticket in line.queue.clear():
                self._wake(ticket, Outcome.STOPPED)
            self._tidy(line)

    # --- what is shown

    def depths(self) -> Mapping[tuple[str, Priority], int]:
        """How many wait, by model and class: also none, of the models for which somebody has ever asked for a turn. Of
        very many models those that were asked for the longest ago are forgotten."""
        depths = {(model, priority): 0 for model in self._meters for priority in Priority}
        for model, line in self._lines.items():
            depths.update(((model, priority), depth) for priority, depth in line.queue.depths().items())
        return depths

    def sizes(self) -> Mapping[str, int]:
        """Bytes that are held by those who wait, by model."""
        return {model: line.queue.size for model, line in self._lines.items()}

    # ---

    def _line(self, model: str) -> _Line:
        line = self._lines.get(model)
        if line is None:
            meter = self._meters.get(model) or DrainMeter()
            keep(self._meters, model, meter, _MOST_MODELS)
            queue = FairQueue(self._policy, self._together)
            line = self._lines[model] = _Line(model, queue, meter, next(self._turns))
        return line

    def _tidy(self, line: _Line) -> None:
        if not line.queue and not line.open and self._lines.get(line.model) is line:
            line.meter.end(self._loop.time())
            del self._lines[line.model]

    def _vacancy(self, model: str) -> Vacancy:
        pool = self._pool(model)
        promised = self._promised(model, pool) if self._open else 0
        return vacancy(pool, promised, self._policy().share, partial(self.mix.above, model))

    def _promised(self, model: str, pool: Sequence[Replica]) -> int:
        """Promises that may be of places of this pool: its own, and those of models that share a replica with it."""
        promised, members = 0, set(map(id, pool))
        for line in self._lines.values():
            if not line.open:
                continue
            if line.model == model:
                promised += line.open
            elif not members.isdisjoint(map(id, self._pool(line.model))):
                promised += line.open
                self._owed = True
        return promised

    def _serve_all(self, lines: list[_Line]) -> None:
        """Promise places to those who wait for several models: who got one the longest ago comes first."""
        if len(lines) < 2:
            for line in lines:
                self._serve(line)
            return
        lines.sort(key=lambda line: line.turn)
        while lines:
            lines = [line for line in lines if self._serve_one(line)]

    def _serve_one(self, line: _Line) -> bool:
        """Promise a place to one of those who wait; whether one was, and others wait."""
        before = line.open
        self._serve(line, 1)
        return line.open > before and len(line.queue) > 0

    def _serve(self, line: _Line, most: float = math.inf) -> Vacancy:
        """Promise places to those who wait, as long as there are any; what is left then."""
        left = self._vacancy(line.model)
        now = self._loop.time()
        while most > 0 and line.queue and (ticket := line.queue.take(now, left.may)) is not None:
            if self._wake(ticket, Outcome.DISPATCHED):
                left.fill()
                self._promise(line, ticket.tokens, now)
                most -= 1
        if not line.queue:
            line.meter.end(now)
        return left

    def _promise(self, line: _Line, tokens: int, now: float) -> None:
        line.open += 1
        self._open += 1
        line.turn = next(self._turns)
        line.meter.note(tokens, now)

    def settle(self, line: _Line, *, taken: bool) -> None:
        """A promise is kept or void. For ``Place``."""
        line.open -= 1
        self._open -= 1
        if self._owed:  # one place was taken of what was kept from others, or none; its lane is entered by then
            self._owed = False
            self._loop.call_soon(self.pump)
        if line.queue and not taken:
            self._serve(line)
        self._tidy(line)

    def _wake(self, ticket: Ticket, outcome: Outcome) -> bool:
        """Tell it, unless it has been cancelled and has yet to run and say so; whether it was told."""
        woken = self._sleepers.pop(ticket.number).woken
        if woken.done():
            return False
        woken.set_result(outcome)
        return True

    def _expire(self, line: _Line, sleeper: _Sleeper) -> None:
        if line.queue.remove(sleeper.ticket):
            ready = self._vacancy(line.model).ready
            self._wake(sleeper.ticket, Outcome.EXPIRED if ready else Outcome.NO_REPLICA)

    def _leave(self, line: _Line, sleeper: _Sleeper) -> None:
        """It was cancelled, perhaps between being woken and running."""
        if line.queue.remove(sleeper.ticket):
            del self._sleepers[sleeper.ticket.number]
        elif not sleeper.woken.cancelled() and sleeper.woken.result() is Outcome.DISPATCHED:
            self.settle(line, taken=False)

    def _failed(self, priority: Priority, outcome: Outcome, waited: float, retry_after: int) -> GatewayError:
        self._on_outcome(priority, outcome, waited)
        return failure(outcome, retry_after)
