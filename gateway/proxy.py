"""The request path, told once: guard, authenticate, accept, resolve, authorise, pick, forward, observe.

Each step is a function that returns a value or raises. Errors become an answer in one place, ``_answer_error``: a
status before anything was sent, a last event in a stream that has begun.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import orjson

from gateway.errors import CODES, EngineFailure, GatewayError, Unavailable
from gateway.model import AliasTable, BodyKind, Dialect, InferenceRequest, Principal, Revision
from gateway.policy.guards import Guards
from gateway.steps.accept import accept, render
from gateway.steps.authenticate import Keys, authenticate
from gateway.steps.authorize import authorize, may_call
from gateway.steps.forward import Lane, Order, forward
from gateway.steps.guard import Door, Entry, guard
from gateway.steps.observe import Observer
from gateway.steps.pick import Candidate, pick
from gateway.steps.resolve import choose_target, resolve
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.trace import Trace, overhead
from gateway.wire.errorbody import error_answer, error_event
from gateway.wire.exchange import Exchange
from gateway.wire.headers import header_lines

_JSON_LINE = b"content-type: application/json\r\n"
_INLINE_ACCEPT = 256 * 1024  # a larger body is parsed and judged in a thread: it would hold the event loop


class ReplicaLane(Lane, Candidate, Protocol):
    """A replica: a lane to forward on and a candidate to pick."""

    @property
    def index(self) -> int:
        """Its place in the configuration."""
        ...

    def note_failure(self, error: EngineFailure) -> None:
        """An attempt there failed."""
        ...


class Fleet(Protocol):
    """Who can serve what, now."""

    def ready(self, model: str) -> Sequence[ReplicaLane]:
        """Replicas in state ready that serve the model."""
        ...

    def any_ready(self) -> bool:
        """Whether anything can be served at all."""
        ...


class Aliases(Protocol):
    """The alias table as this instance knows it."""

    @property
    def table(self) -> AliasTable:
        """A snapshot; a request reads it once."""
        ...


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """``attempts``: replicas that one request may touch, since some requests kill an engine. Seconds and bytes."""

    attempts: int = 2
    total: float = 900.0
    answer_bytes: int = 64 * 1024 * 1024


class Visit(NamedTuple):
    """What one head told: where it leads and who sends it. Kept for the connection's next request with the same head.

    The guard's verdict depends on the head alone. The principal stands while no key has changed (``epoch``) and it has
    not expired.
    """

    entry: Entry
    principal: Principal
    epoch: int | None

    def holds(self, epoch: int | None, now: float) -> bool:
        """Whether the principal still stands; ``now`` is Unix seconds."""
        return epoch is not None and epoch == self.epoch and now < self.principal.expires_at


@dataclass(frozen=True, slots=True)
class Proxy:
    """The inference plane. ``handle`` is the server's handler; everything it uses is handed in."""

    door: Door
    keys: Keys
    guards: Guards
    aliases: Aliases
    fleet: Fleet
    observer: Observer
    metrics: Metrics
    salt: Callable[[str], str | None]
    random: Callable[[], float]
    new_id: Callable[[], str]
    limits: ProxyLimits = ProxyLimits()
    clock: Callable[[], float] = time.perf_counter
    wall: Callable[[], float] = time.time

    async def handle(self, exchange: Exchange) -> None:
        """Serve one request. Whatever happens, it is answered unless its client left, and leaves one record."""
        trace = Trace(self.new_id(), self.wall(), exchange.arrived)
        dialect = Dialect.OPENAI
        try:
            visit = exchange.familiar
            known = visit if type(visit) is Visit else None
            entry = guard(exchange, self.door) if known is None else known.entry
            route = entry.route
            trace.endpoint, dialect = route.endpoint, route.dialect
            if route.anonymous:
                self._health(exchange, trace, entry)
                return
            if known is not None and known.holds(self.keys.epoch, trace.time):
                principal = known.principal
            else:
                principal = await self._recognise(exchange, entry)
            trace.key_id, trace.tenant = principal.key_id, principal.tenant
            if route.body is BodyKind.NONE:
                self._models(exchange, trace, principal, entry)
                return
            await self._infer(exchange, trace, principal, entry)
        except GatewayError as error:
            self._answer_error(exchange, trace, error, dialect)
        except asyncio.CancelledError:
            self._cancelled(exchange, trace, dialect)
        except Exception:
            self._answer_error(exchange, trace, GatewayError("internal_error"), dialect)
            raise
        finally:
            self.observer.note(trace)

    async def _recognise(self, exchange: Exchange, entry: Entry) -> Principal:
        epoch = self.keys.epoch  # read first: a key that changes meanwhile must be looked at again
        principal = await authenticate(exchange.head, self.keys)
        if entry.route.body is not BodyKind.NONE:
            exchange.keep(Visit(entry, principal, epoch))
        return principal

    async def _infer(self, exchange: Exchange, trace: Trace, principal: Principal, entry: Entry) -> None:
        route, clock = entry.route, self.clock
        asked = clock()
        try:
            is_form = route.body is BodyKind.MULTIPART
            body = await exchange.body(self.guards.form_bytes if is_form else self.guards.json_bytes)
        finally:
            trace.waited = clock() - asked
        trace.request_bytes = len(body)
        content_type = exchange.head.get(b"content-type", b"")
        if len(body) <= _INLINE_ACCEPT:
            request = accept(route, content_type, body, self.guards)
        else:
            request = await asyncio.to_thread(accept, route, content_type, body, self.guards)
        trace.stream = request.stream
        authorize(principal, request.alias)
        revision = resolve(request.alias, self.aliases.table)
        trace.alias, trace.revision = revision.alias, revision.number
        await self._serve(exchange, trace, self._order(trace, principal, request, revision))

    def _order(self, trace: Trace, principal: Principal, request: InferenceRequest, revision: Revision) -> Order:
        model = trace.model = choose_target(revision, self.random)
        content_type, body = render(request, model=model, cache_salt=self.salt(principal.tenant))
        shown = b"x-gateway-alias: %b\r\n" % revision.label.encode()
        return Order(request, model, shown, content_type, body, self.limits.total, self.limits.answer_bytes)

    async def _serve(self, exchange: Exchange, trace: Trace, order: Order) -> None:
        """Try replicas until one answers; another is tried only while the client has seen nothing."""
        tried: list[ReplicaLane] = []
        failure: GatewayError = Unavailable("no_ready_replica", retry_after=2)
        while len(tried) < self.limits.attempts:
            replica = pick(self.fleet.ready(order.model), tried, self.random)
            if replica is None:
                break
            if trace.reason is not None:
                self.metrics.retries.add(trace.reason)
            tried.append(replica)
            trace.replica, trace.attempts = replica.index, len(tried)
            try:
                await forward(exchange, order, replica, trace, self.clock)
                return
            except EngineFailure as error:
                replica.note_failure(error)
                failure = error
                trace.reason = error.reason
                if exchange.started or not error.elsewhere:
                    break
        raise failure

    # --- what the gateway answers by itself

    def _health(self, exchange: Exchange, trace: Trace, entry: Entry) -> None:
        ready = entry.route.path == "/healthz" or (self.fleet.any_ready() and not exchange.draining)
        trace.status = 200 if ready else 503
        body = b'{"status":"ok"}' if ready else b'{"status":"not ready"}'
        exchange.respond(trace.status, _JSON_LINE + b"cache-control: no-store\r\n", body)

    def _models(self, exchange: Exchange, trace: Trace, principal: Principal, entry: Entry) -> None:
        table = self.aliases.table
        if entry.alias is not None:
            authorize(principal, entry.alias)
            answer: dict[str, object] = _model_object(resolve(entry.alias, table))
        else:
            listed = [r for name, r in sorted(table.current.items()) if may_call(principal, name)]
            answer = {"object": "list", "data": [_model_object(revision) for revision in listed]}
        trace.status = 200
        body = orjson.dumps(answer)
        trace.response_bytes = len(body)
        exchange.respond(200, b"%bx-request-id: %b\r\n" % (_JSON_LINE, trace.request_id.encode()), body)

    # --- errors, at the edge

    def _answer_error(self, exchange: Exchange, trace: Trace, error: GatewayError, dialect: Dialect) -> None:
        trace.error = error.spec.code
        if exchange.started:
            exchange.write(error_event(error, dialect))
            exchange.finish()
            return
        trace.status = error.spec.status
        trace.overhead = overhead(trace, self.clock())
        headers, body = error_answer(error, dialect)
        headers.append((b"x-request-id", trace.request_id.encode()))
        exchange.respond(trace.status, header_lines(headers), body, close=error.close)

    def _cancelled(self, exchange: Exchange, trace: Trace, dialect: Dialect) -> None:
        """Either the client has left, or the server stops and its patience is over."""
        if exchange.gone:
            trace.status, trace.error = 499, CODES["client_gone"].code
        else:
            self._answer_error(exchange, trace, Unavailable("draining", retry_after=5, close=True), dialect)


def _model_object(revision: Revision) -> dict[str, object]:
    return {"id": revision.alias, "object": "model", "created": int(revision.created_at), "owned_by": "gateway"}
