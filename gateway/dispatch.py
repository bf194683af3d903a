"""From an order to an answer: a place at a replica, waited for in turn; another replica while nobody has seen anything.

A request is placed at once where its pool has room and nobody waits. Else it waits in the gate, and is placed when it
is its turn, by what is known then. One that an engine has let go of does not wait again: it had its turn, and may
exceed the limit of the replica that it goes to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.admission.gate import Claim, Gate
from gateway.errors import EngineFailure, GatewayError, Unavailable
from gateway.model import Priority
from gateway.needs import Choice, Fleet, Policies, ReplicaLane
from gateway.steps.forward import Order, forward, stream_lines
from gateway.steps.hold import Hold
from gateway.steps.pick import fewest, pick
from gateway.steps.retry import RetryBudget, is_charged, worth_another
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.trace import Trace
from gateway.wire.exchange import Exchange


@dataclass(frozen=True, slots=True)
class Dispatch:
    """``attempts``: replicas that one request may touch, since some requests kill an engine."""

    fleet: Fleet
    gate: Gate
    policies: Policies
    metrics: Metrics
    clock: Callable[[], float]
    attempts: int = 2
    budget: RetryBudget = field(default_factory=RetryBudget)

    async def serve(
        self, exchange: Exchange, order: Order, trace: Trace, choice: Choice, claim: Callable[[], Claim]
    ) -> None:
        """Have the order answered. ``claim`` says what it asks of the queue, if it has to wait.

        Raises ``GatewayError``; with ``exchange.started`` the client has seen the beginning of an answer, or comments.
        """
        tried: list[ReplicaLane] = []
        failure: EngineFailure | None = None
        priority = trace.priority or Priority.STANDARD
        self.budget.enter()
        try:
            replica = self._at_once(order.model, choice, priority)
            if replica is None and self.fleet.ready(order.model):
                replica, order = await self._in_turn(exchange, order, trace, choice, claim)
            while replica is not None:
                charged = failure is not None and is_charged(failure)
                tried.append(replica)
                self.gate.mix.began(order.model, priority)
                trace.replica, trace.attempts = replica.id, len(tried)
                try:
                    await forward(exchange, order, choice.lane(replica), trace, self.clock)
                    replica.note_success()
                    choice.learn(trace)
                    return
                except EngineFailure as error:
                    replica.note_failure(error)
                    failure = error.with_traceback(None)  # it leads here, to the error: see ``Proxy._answer_error``
                    trace.reason = error.reason
                finally:
                    if charged:
                        self.budget.give_back()
                    self.gate.mix.ended(order.model, priority)
                    self.gate.freed(*replica.models)
                replica = None if trace.answered else self._another(failure, tried, trace, choice, order.model)
        finally:
            self.budget.leave()
        raise self._unserved(failure, order.model)

    def _at_once(self, model: str, choice: Choice, priority: Priority) -> ReplicaLane | None:
        """Where to send a request that need not wait; ``None`` where it has to, or nobody serves its model."""
        if self.gate.waits(model) or self.gate.held_back(model, priority):
            return None
        return pick(self.fleet.ready(model), (), choice.among)

    async def _in_turn(
        self, exchange: Exchange, order: Order, trace: Trace, choice: Choice, claim: Callable[[], Claim]
    ) -> tuple[ReplicaLane, Order]:
        """Where to send the order, once there is a place for it."""
        model, gate = order.model, self.gate
        asked, begun = claim(), self.clock()
        hold = self._hold(exchange, order, trace)
        try:
            while True:
                place = await gate.turn(asked)
                replica = pick(self.fleet.ready(model), (), choice.among)
                if replica is not None:
                    place.kept()  # nothing else runs until its lane has been entered
                    break
                place.done()
        except GatewayError as error:
            raise self._timed(error, model) from None
        finally:
            trace.queued = self.clock() - begun
            trace.waited += trace.queued
            if hold is not None:
                hold.close()
        return replica, order if hold is None else order._replace(begun=hold.flow)

    def _hold(self, exchange: Exchange, order: Order, trace: Trace) -> Hold | None:
        every = self.policies.policy.routing.admission.comments
        if not (every and order.request.stream):
            return None
        return Hold(exchange, trace, stream_lines(order, trace), every)

    def _another(
        self, failure: EngineFailure, tried: Sequence[ReplicaLane], trace: Trace, choice: Choice, model: str
    ) -> ReplicaLane | None:
        """Where to try again, if that is worth it; the budget has been charged then."""
        ready = self.fleet.ready(model)
        replica = pick(ready, tried, choice.among)
        if replica is None and not is_charged(failure):
            replica = pick(ready, tried, fewest)
        return replica if replica is not None and self._again(failure, trace, tried, ready) else None

    def _again(
        self, failure: EngineFailure, trace: Trace, tried: Sequence[ReplicaLane], ready: Sequence[ReplicaLane]
    ) -> bool:
        retries = self.policies.policy.routing.fleet.retries
        saturated = all(replica.busy for replica in ready if replica not in tried)
        if len(tried) >= self.attempts:
            return False
        if not worth_another(failure, trace.request_bytes, retries, saturated=saturated):
            return False
        if is_charged(failure) and not self.budget.take(retries):
            return False
        self.metrics.retries.add(failure.reason)
        return True

    def _unserved(self, failure: EngineFailure | None, model: str) -> GatewayError:
        return self._timed(failure or Unavailable("no_ready_replica"), model)

    def _timed(self, error: GatewayError, model: str) -> GatewayError:
        """The error with when to come back, where it is the fleet that knows."""
        if error.spec.code == "no_ready_replica":
            error.retry_after = self.fleet.back_in(model)
        return error
