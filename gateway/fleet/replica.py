"""One replica as this instance knows it: its life, what its engine says, and what requests there have shown."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from gateway.errors import (
    EngineBusy,
    EngineClosing,
    EngineDead,
    EngineFailure,
    EngineHung,
    EngineRefused,
    EngineUnreachable,
)
from gateway.fleet.balance.estimate import Load
from gateway.fleet.balance.pace import Pace, Prior
from gateway.fleet.balance.strategies import point_of
from gateway.fleet.balance.workload import Workload
from gateway.fleet.breaker import Breaker, ejection_time
from gateway.fleet.engines.adapter import GENERIC, Adapter
from gateway.fleet.home import place_of
from gateway.fleet.life import ROUTABLE, Life, Sign, State, advance
from gateway.fleet.link import EngineLink
from gateway.fleet.look import Seen
from gateway.fleet.progress import Progress
from gateway.fleet.signals import Reading, Signal
from gateway.model import EngineSpec
from gateway.policy.fleet import FleetPolicy
from gateway.wire.upstream import Answer

_BUSY_FOR = 1.0
_UNLIMITED = 1 << 30
_PROBATION = State.PROBATION  # a member of an enumeration takes ten times as long to read as a name


class Transition(NamedTuple):
    """One step in a replica's life."""

    replica: Replica
    before: Life
    after: Life
    sign: Sign


class Replica:
    """One engine at one URL.

    ``in_flight`` counts this instance's requests there; ``room`` bounds them; ``share`` from 0 to 1 is how much of a
    full replica's traffic it is to get. ``reading`` is the newest scrape and ``read_at`` when it came, in the loop's
    seconds. ``exposed`` are other addresses of this host at which the engine answers. ``remark`` is what was last seen
    that changed no state, ``verdict`` what policy says of the engine's age, ``warmth`` how its warmup went.
    ``lost``: what answers there may be another process than the one that was warmed. ``carried`` counts those in flight
    that began before its probation. ``removed``: it is listed no more, and is forgotten once it is gone. ``nudge`` has
    it looked at now.
    """

    def __init__(
        self,
        spec: EngineSpec,
        link: Callable[[Callable[[], None]], EngineLink],
        policy: Callable[[], FleetPolicy],
        told: Callable[[Transition], None],
        spare: Callable[[Replica], bool],
        *,
        origin: str,
        now: Callable[[], float],
        random: Callable[[], float],
        wall: Callable[[], float] = time.time,
        here: str = "",
    ) -> None:
        """``link`` makes the link to the engine, given what to call when its process seems to have ended.

        ``here`` is the ``home`` of this instance: an engine on its loopback is none of another host's.
        """
        self.spec = spec
        self.id = spec.id
        self.origin = origin
        self.life = Life(since=wall())
        self.seen = Seen()
        self.adapter: Adapter = GENERIC
        self.reading: Reading | None = None
        self.read_at = -math.inf
        self.in_flight = 0
        self.room = self._limit = _UNLIMITED
        self.share = 1.0
        self.exposed: tuple[str, ...] = ()
        self.lost = False
        self.carried = 0
        self.removed = False
        self.remark = ""
        self.verdict = ""
        self.warmth = ""
        self.progress = Progress(now())
        self.breaker = Breaker(policy().breaker)
        self.work = Workload(Prior())
        self.quote = self.work.quote
        self.point = point_of(place_of(spec, here))
        self.turn = 0
        self.nudge: Callable[[], None] = lambda: None
        self._proofs = 0
        self._busy_until = -math.inf
        self._link = link(self._end_seen)
        self._policy = policy
        self._told = told
        self._spare = spare
        self._now = now
        self._random = random
        self._wall = wall

    def _end_seen(self) -> None:
        self.nudge()

    # --- the request path's side

    def enter(self) -> None:
        """One more request is in flight here."""
        self.in_flight += 1

    def leave(self) -> None:
        """One less."""
        self.in_flight -= 1

    def answered(self) -> None:
        """The first token of a request came; nothing is learned of one that nobody weighed."""

    @property
    def pace(self) -> Pace:
        """How fast it is."""
        return self.work.pace

    def load(self, now: float) -> Load:
        """What it has to do."""
        return self.work.load(self.in_flight, self.share, now)

    def send(
        self, path: str, content_type: bytes, body: bytes, request_id: str, *, total: float | None
    ) -> Awaitable[Answer]:
        """Send a request; see ``EngineLink.send``."""
        return self._link.send(path, content_type, body, request_id, total=total)

    @property
    def busy(self) -> bool:
        """Whether it has just said that its queue is full."""
        return self._now() < self._busy_until

    @property
    def proven(self) -> bool:
        """Whether it is ready, and not on its way back."""
        return self.life.state is State.READY

    @property
    def models(self) -> Sequence[str]:
        """What it serves."""
        return self.seen.models

    def bound(self, limit: int) -> None:
        """From now on it may have so many requests of this instance, unless it is on probation."""
        self._limit = limit
        if self.life.state is not State.PROBATION:
            self.room = limit

    def note_success(self) -> None:
        """A request was answered to its end."""
        self.breaker.succeed(self._now())
        if self.remark:
            self.remark = ""
        if self.life.state is _PROBATION:
            self._prove()

    def note_failure(self, error: EngineFailure) -> None:
        """An attempt here failed. Refused requests and full queues do not speak against the engine."""
        if isinstance(error, EngineBusy):
            self._busy_until = self._now() + _BUSY_FOR
            return
        if isinstance(error, EngineDead) and (self.in_flight or self.life.state not in ROUTABLE):
            error.absolve()  # in flight there, or told of the death before this one
        telling = _TELLING.get(type(error))
        if telling is not None and not (isinstance(error, EngineUnreachable) and error.slow):
            self.take(*telling)
            self.nudge()
            return
        if isinstance(error, EngineHung) or (isinstance(error, EngineRefused) and not error.fault):
            return
        self.breaker.fail(self._now())
        if self.life.state is State.PROBATION:
            self.take(Sign.FAILING, "failed in probation")
        elif (reason := self.breaker.open(self._now(), self._policy().breaker)) is not None:
            self.fail(reason)

    def fail(self, reason: str) -> None:
        """Take it out for its errors, unless too much of its pool is out for such a reason already."""
        if self._spare(self):
            self.take(Sign.FAILING, reason)
        else:
            self.remark = f"{reason}; kept, since too few others would be left"

    def _prove(self) -> None:
        self._proofs += 1
        if self._proofs >= self._policy().breaker.probation:
            self.take(Sign.PROVEN, f"{self._proofs} good answers in a row")

    # --- the control loops' side

    def take(self, sign: Sign, reason: str = "") -> bool:
        """Take in a sign; whether it changed the state."""
        self.lost = self.lost or sign is Sign.LOST
        before = self.life
        after = advance(before, sign, at=self._wall(), reason=reason)
        if after is before:
            return False
        self.life, self.remark = self._dressed(after, sign), ""
        self._told(Transition(self, before, self.life, sign))
        return True

    def _dressed(self, life: Life, sign: Sign) -> Life:
        """The life with what a new state brings along."""
        now, state = self._now(), life.state
        self._proofs = 0
        self.room = 1 if state is State.PROBATION else self._limit
        if state is State.EJECTED:
            ejections, for_errors = life.ejections + 1, sign is Sign.FAILING
            return replace(life, ejections=ejections, until=self._rest(ejections), for_errors=for_errors)
        if state is State.READY:
            self.breaker.reset()
        if state in _UNREAD:
            self.reading, self.read_at = None, -math.inf
        if state in _ANEW:
            self.progress.reset(now)
        self.carried = self.in_flight
        return replace(life, for_errors=life.for_errors and state is State.PROBATION)

    def postpone(self, reason: str) -> None:
        """It stays out for longer: it was tried and failed."""
        if self.life.state is not State.EJECTED:
            return
        ejections = self.life.ejections + 1
        self.life = replace(self.life, ejections=ejections, until=self._rest(ejections))
        self.remark = reason

    def _rest(self, ejections: int) -> float:
        return self._now() + ejection_time(ejections, self._policy().breaker, self._random)

    def forgive(self) -> None:
        """It has served well for long: its next ejection is a first one again."""
        self.life = replace(self.life, ejections=0)

    def note_look(self, reading: Reading | None) -> None:
        """Take in what a look showed of its progress: its signals, or ``None`` where they could not be read."""
        counters, pending = None, self.in_flight > 0
        if reading is not None:
            values = reading.values
            counters = tuple([values[signal] for signal in self.adapter.progress if signal in values])
            pending = pending or values.get(Signal.RUNNING, 0) + values.get(Signal.WAITING, 0) > 0
        self.progress.note(now=self._now(), pending=pending, counters=counters, heard=self._link.heard())

    def hang(self, reason: str) -> None:
        """Take it out because it does not move; what waits there for a first byte may go elsewhere."""
        self.take(Sign.HUNG, reason)
        self._link.give_up(EngineHung)

    def relist(self, spec: EngineSpec, origin: str) -> None:
        """What is said of it where it is found may change; the name on its certificate stays that of its first day."""
        self.spec = replace(spec, server_name=self.spec.server_name)
        self.origin = origin

    @property
    def link(self) -> EngineLink:
        """How to look at its engine."""
        return self._link

    @property
    def open_connections(self) -> int:
        """Connections for requests, idle ones included."""
        return self._link.open_connections

    def close(self) -> None:
        """Cut all connections. Idempotent."""
        self._link.close()


# Where what was last read says nothing of what comes next, and where progress counts from nothing.
_UNREAD = frozenset({State.FOUND, State.STARTING, State.GONE})
_ANEW = frozenset({State.FOUND, State.STARTING, State.PROBATION})

# What says at once that nothing more can be served there.
_TELLING: Mapping[type[EngineFailure], tuple[Sign, str]] = MappingProxyType(
    {
        EngineUnreachable: (Sign.LOST, "it takes no connection"),
        EngineClosing: (Sign.CLOSING, "it is shutting down"),
        EngineDead: (Sign.LOST, "its engine process has died"),
    }
)
