"""The request path, told once: guard, authenticate, accept, authorise, resolve, judge, admit, pick, forward, observe.

Each step is a function that returns a value or raises. Errors become an answer in one place, ``_answer_error``: a
status before anything was sent, a last event in a stream that has begun.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.admission.gate import Claim
from gateway.dispatch import Dispatch
from gateway.errors import CODES, ErrorSpec, GatewayError, Refusal, Unavailable
from gateway.limits.headers import rate_lines
from gateway.limits.interfaces import Limiter, LimitReached
from gateway.model import BodyKind, Dialect, InferenceRequest, Revision, Route
from gateway.needs import Aliases, Balancer, Choice, Fleet, Policies, Schemas
from gateway.policy.access import Access
from gateway.policy.context import judge_context
from gateway.policy.grants import Grant
from gateway.policy.guards import Guards
from gateway.policy.live import Policy
from gateway.policy.masks import Mask
from gateway.policy.schemacap import schema_digests
from gateway.steps.accept import accept, render
from gateway.steps.admit import Taken, admit, reserve, turn_back
from gateway.steps.authenticate import Callers, Failures, authenticate, source_of, too_many
from gateway.steps.authorize import authorize
from gateway.steps.conversation import session_of, split_point
from gateway.steps.course import Course, course
from gateway.steps.forward import Order
from gateway.steps.guard import Door, Entry, guard
from gateway.steps.inform import Answer, health, model, models
from gateway.steps.observe import Observer
from gateway.steps.resolve import choose_target, resolve, wanted
from gateway.telemetry.trace import Trace, overhead
from gateway.wire.errorbody import error_event, error_lines
from gateway.wire.exchange import Exchange

_INLINE_ACCEPT = 256 * 1024  # a larger body is parsed and judged in a thread: it would hold the event loop
# Seconds for which the credential of a connection's last request is taken to be no good again. Short, since a token may
# become good without an epoch: at the time from which it is valid, or when its issuer's new keys are read.
_UNKNOWN_FOR = 1.0
_NO_GOOD = CODES["invalid_api_key"]
# A member of an enumeration takes ten times as long to read as a name.
_NO_BODY, _FORM, _USUAL_DIALECT = BodyKind.NONE, BodyKind.MULTIPART, Dialect.OPENAI
_making = tuple.__new__  # a named tuple's own constructor takes three times as long
_PARSES_ASIDE = 2  # how many of those at a time: what short texts are parsed to weighs ten times what was sent


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Seconds and bytes. ``hops`` is how many proxies of the operator's stand in front."""

    total: float = 900.0
    answer_bytes: int = 64 * 1024 * 1024
    hops: int = 0


class Unknown(NamedTuple):
    """That a credential is no good, believed ``until`` (Unix seconds), with the answer to that."""

    until: float
    lines: bytes
    body: bytes


class Visit(NamedTuple):
    """What one head told: where it leads and who sends it. Kept for the connection's next request with the same head.

    The guard's verdict depends on the head alone. The grant, once there is one, stands while no credential and no
    policy has changed (``epoch``) and the principal has not expired. So does, for a time, that its credential is no
    good (``unknown``): a client that tries again with the same one costs little. ``course`` is where the name in the
    last body led.
    """

    entry: Entry
    grant: Grant | None = None
    epoch: int | None = None
    unknown: Unknown | None = None
    course: Course | None = None

    def granted(self, epoch: int | None, now: float) -> Grant | None:
        """The grant, if it still stands; ``now`` is Unix seconds."""
        grant = self.grant
        if grant is None or epoch is None or epoch != self.epoch or now >= grant.principal.expires_at:
            return None
        return grant

    def turned_away(self, epoch: int | None, now: float) -> Unknown | None:
        """That its credential is no good, if that still stands."""
        unknown = self.unknown
        if unknown is None or epoch is None or epoch != self.epoch or now >= unknown.until:
            return None
        return unknown


@dataclass(frozen=True, slots=True)
class Proxy:
    """The inference plane. ``handle`` is the server's handler; everything it uses is handed in."""

    door: Door
    callers: Callers
    failures: Failures
    policies: Policies
    limiter: Limiter
    schemas: Schemas
    aliases: Aliases
    fleet: Fleet
    dispatch: Dispatch
    observer: Observer
    salt: Callable[[str], str]
    split_key: bytes
    balancer: Balancer
    new_id: Callable[[], str]
    limits: ProxyLimits = ProxyLimits()
    parses: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_PARSES_ASIDE))
    clock: Callable[[], float] = time.perf_counter
    wall: Callable[[], float] = time.time

    async def handle(self, exchange: Exchange) -> None:
        """Serve one request. Whatever happens, it is answered unless its client left, and leaves one record."""
        trace = Trace(self.new_id(), self.wall(), exchange.arrived)
        dialect = _USUAL_DIALECT
        try:
            visit = exchange.familiar
            known = visit if type(visit) is Visit else None
            entry = guard(exchange, self.door) if known is None else known.entry
            route = entry.route
            trace.endpoint, dialect = route.endpoint, route.dialect
            if known is None and route.body is not _NO_BODY:
                exchange.keep(Visit(entry))  # also for a caller that is refused: its next head need not be judged
            if route.anonymous:
                _tell(exchange, trace, health(self._well(exchange, entry)))
                return
            epoch = self._epoch()  # read first: what changes meanwhile must be looked at again
            grant = None if known is None else known.granted(epoch, trace.time)
            if known is None or grant is None:
                unknown = None if known is None else known.turned_away(epoch, trace.time)
                if unknown is not None:
                    self._turn_away(exchange, trace, unknown, dialect)
                    return
                grant = await self._recognise(exchange, trace, entry, epoch)
                known = Visit(entry, grant, epoch)
            trace.key_id, trace.tenant, trace.priority = grant.principal.id, grant.principal.tenant, grant.priority
            if route.body is _NO_BODY:
                _tell(exchange, trace, self._models(grant, entry, trace))
                return
            await self._infer(exchange, trace, grant, known)
        except GatewayError as error:
            self._answer_error(exchange, trace, error, dialect)
        except asyncio.CancelledError:
            self._cancelled(exchange, trace, dialect)
        except Exception:
            self._answer_error(exchange, trace, GatewayError("internal_error"), dialect)
            raise
        finally:
            self.observer.note(trace)

    def _epoch(self) -> int | None:
        callers = self.callers.epoch
        return None if callers is None else callers + self.policies.epoch

    async def _recognise(self, exchange: Exchange, trace: Trace, entry: Entry, epoch: int | None) -> Grant:
        head, headers, peer, hops = exchange.head, exchange.headers, exchange.peer, self.limits.hops
        kept = entry.route.body is not _NO_BODY
        try:
            principal = await authenticate(head, self.callers, self.failures, peer, headers=headers, hops=hops)
        except Refusal as refusal:
            if kept and refusal.spec is _NO_GOOD:
                unknown = Unknown(trace.time + _UNKNOWN_FOR, *error_lines(refusal, entry.route.dialect))
                exchange.keep(Visit(entry, epoch=epoch, unknown=unknown))
            raise
        grant = self.policies.policy.access.grant(principal)
        if kept:
            exchange.keep(Visit(entry, grant, epoch))
        return grant

    def _turn_away(self, exchange: Exchange, trace: Trace, unknown: Unknown, dialect: Dialect) -> None:
        """Refuse a credential again, which is another failure, or have its source wait after too many."""
        wait = self.failures.strike(source_of(exchange.peer, exchange.headers, self.limits.hops))
        if wait is None:
            self._refuse(exchange, trace, _NO_GOOD, unknown.lines, unknown.body)
        else:
            self._answer_error(exchange, trace, too_many(wait), dialect)

    async def _infer(self, exchange: Exchange, trace: Trace, grant: Grant, visit: Visit) -> None:
        policy, route = self.policies.policy, visit.entry.route
        limit = policy.guards.form_bytes if route.body is _FORM else policy.guards.json_bytes
        body = exchange.whole_body(limit)
        if body is None:
            body = await self._await_body(exchange, trace, limit)
        trace.request_bytes = len(body)
        if grant.budgets:
            turn_back(self.limiter, grant.budgets)
        content_type = exchange.head.get(b"content-type", b"")
        if len(body) <= _INLINE_ACCEPT:
            request = accept(route, content_type, body, policy.guards)
        else:
            request = await self._accept_aside(route, content_type, body, policy.guards)
        del body  # the request holds all of it that is needed
        trace.stream = request.stream
        way = visit.course
        if way is None or not way.stands(request.alias, self.aliases.table, policy, grant):
            way = await self._course(exchange, request.alias, policy, visit, grant)
        access, revision = policy.access, way.revision
        trace.alias, trace.revision = revision.alias, revision.number
        model = trace.model = way.model or self._choose(exchange, revision, grant, request)
        trace.track = revision.track(model)
        request = self._judge(request, way.mask, model, grant)
        taken = None
        if grant.budgets:
            found = self._admit(request, trace, grant, access)
            taken = found if isinstance(found, Taken) else await self._await_limits(found, trace)
        try:
            if trace.request_bytes <= _INLINE_ACCEPT:
                choice = self._consider(exchange, request, trace, way.salt)
            else:
                choice = await asyncio.to_thread(self._consider, exchange, request, trace, way.salt)
            order = self._order(request, model, way.salt, _shown(way, taken))
            del request  # the order says what of it is kept while an engine answers
            await self.dispatch.serve(exchange, order, trace, choice, lambda: _claim(order, trace, grant, access))
        finally:
            if taken is not None:
                taken.settle(trace, gone=exchange.gone)

    async def _await_body(self, exchange: Exchange, trace: Trace, limit: int) -> bytes:
        asked = self.clock()
        try:
            return await exchange.body(limit)
        finally:
            trace.waited = self.clock() - asked

    async def _accept_aside(self, route: Route, content_type: bytes, body: bytes, guards: Guards) -> InferenceRequest:
        """``accept`` in a thread, in turn.

        The wait for a turn counts as overhead: what is waited for is the gateway's own work. A turn lasts until the
        thread is done, though the client may have left before: a thread cannot be cancelled.
        """
        await self.parses.acquire()
        parsing = asyncio.get_running_loop().run_in_executor(None, accept, route, content_type, body, guards)
        parsing.add_done_callback(lambda _: self.parses.release())
        return await asyncio.shield(parsing)

    async def _course(self, exchange: Exchange, name: str, policy: Policy, visit: Visit, grant: Grant) -> Course:
        """Where a name leads, kept for the connection's next request unless it is pinned."""
        table = self.aliases.table
        revision = await self._resolve(name, grant)
        salt = self.salt(grant.principal.tenant)
        found = course(name, table, policy, grant, revision=revision, salt=salt)
        if revision is table.current.get(name):
            exchange.keep(visit._replace(course=found))
        return found

    async def _resolve(self, name: str, grant: Grant) -> Revision:
        """The revision that a name means to a caller: the current one, or the one that it is pinned to."""
        alias, number = wanted(name)
        authorize(grant, alias)
        revision = resolve(alias, self.aliases.table)
        if number is None or number == revision.number:
            return revision
        pinned = await self.aliases.revision(alias, number) if grant.pins else None
        if pinned is None:
            raise Refusal("model_not_found", param="model")
        return pinned

    def _choose(self, exchange: Exchange, revision: Revision, grant: Grant, request: InferenceRequest) -> str:
        point = split_point(self.split_key, revision.alias, exchange.head, grant.principal, request)
        return choose_target(revision, point)

    def _judge(self, request: InferenceRequest, mask: Mask | None, model: str, grant: Grant) -> InferenceRequest:
        """What depends on the alias, on its engine's context, or on what the tenant has sent before."""
        if mask is not None:
            mask.judge(request)
            request = mask.bound(request)
        if request.max_tokens is not None:
            judge_context(request, self.fleet.max_model_len(model))
        for digest in schema_digests(request):
            self.schemas.admit(grant.principal.tenant, digest)
        return request

    def _admit(self, request: InferenceRequest, trace: Trace, grant: Grant, access: Access) -> Taken | Awaitable[Taken]:
        """What the request takes of the limits of who calls, before an engine sees it."""
        return admit(self.limiter, grant.budgets, reserve(request, trace.request_bytes, access.estimate))

    async def _await_limits(self, asking: Awaitable[Taken], trace: Trace) -> Taken:
        asked = self.clock()
        taken = await asking
        trace.waited += self.clock() - asked
        return taken

    def _order(self, request: InferenceRequest, model: str, salt: str | None, shown: bytes) -> Order:
        content_type, body = render(request, model=model, cache_salt=salt)
        if len(body) > _INLINE_ACCEPT:
            request = request._replace(payload={}, parts=())  # large, and every attempt sends the bytes
        limits = self.limits
        parts = (request, model, shown, content_type, body, limits.total, limits.answer_bytes, None)
        return _making(Order, parts)

    def _consider(self, exchange: Exchange, request: InferenceRequest, trace: Trace, salt: str | None) -> Choice:
        """How a replica is to be chosen. A strategy may read the whole prompt, a large one in a thread."""
        return self.balancer.consider(
            request,
            trace.alias or "",
            trace.model or "",
            salt,
            request_id=trace.request_id,
            tenant=trace.tenant or "",
            session=session_of(exchange.head),
        )

    # --- what the gateway answers by itself

    def _well(self, exchange: Exchange, entry: Entry) -> bool:
        return entry.route.path == "/healthz" or (self.fleet.any_ready() and not exchange.draining)

    def _models(self, grant: Grant, entry: Entry, trace: Trace) -> Answer:
        table = self.aliases.table
        if entry.alias is None:
            return models(table, grant.may_call, trace.request_id)
        authorize(grant, entry.alias)
        return model(resolve(entry.alias, table), trace.request_id)

    # --- errors, at the edge

    def _answer_error(self, exchange: Exchange, trace: Trace, error: GatewayError, dialect: Dialect) -> None:
        # Its frames hold the body and what that was parsed to, and some of them the error itself: a cycle, which would
        # keep all of it until the next collection.
        error.__traceback__ = None
        if exchange.started:
            trace.error = error.spec.code
            exchange.write(error_event(error, dialect))
            exchange.finish()
            return
        lines, body = error_lines(error, dialect)
        if isinstance(error, LimitReached):
            lines += rate_lines(error.standing)
        self._refuse(exchange, trace, error.spec, lines, body, close=error.close)

    def _refuse(
        self, exchange: Exchange, trace: Trace, spec: ErrorSpec, lines: bytes, body: bytes, *, close: bool = False
    ) -> None:
        trace.error, trace.status = spec.code, spec.status
        trace.overhead = overhead(trace, self.clock())
        exchange.respond(spec.status, b"%bx-request-id: %b\r\n" % (lines, trace.request_id.encode()), body, close=close)

    def _cancelled(self, exchange: Exchange, trace: Trace, dialect: Dialect) -> None:
        """Either the client has left, or the server stops and its patience is over."""
        if exchange.gone:
            trace.status, trace.error = 499, CODES["client_gone"].code
        else:
            self._answer_error(exchange, trace, Unavailable("draining", retry_after=5, close=True), dialect)


def _shown(way: Course, taken: Taken | None) -> bytes:
    """Header lines that are known before an engine answers: the revision, and what is left of the caller's limits."""
    standing = None if taken is None else taken.lease.standing
    return way.lines if standing is None else way.lines + rate_lines(standing)


def _claim(order: Order, trace: Trace, grant: Grant, access: Access) -> Claim:
    """What a request asks of the queue of its model."""
    return Claim(
        model=order.model,
        alias=trace.alias or "",
        tenant=grant.principal.tenant,
        priority=grant.priority,
        weight=grant.weight,
        tokens=reserve(order.request, trace.request_bytes, access.estimate).total,
        size=len(order.body),
        entered=asyncio.get_running_loop().time(),
    )


def _tell(exchange: Exchange, trace: Trace, answer: Answer) -> None:
    trace.status, trace.response_bytes = answer.status, len(answer.body)
    exchange.respond(answer.status, answer.lines, answer.body)
