"""Replicas of this instance as the admin API shows them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from gateway.admin.fleetorders import Listed
from gateway.admin.fleetviews import (
    DrainView,
    FleetList,
    FleetPaging,
    OrderView,
    ReplicaView,
    SourceView,
    order_view,
)
from gateway.configvalues import engine_fault
from gateway.fleet.balance.explained import Decisions
from gateway.fleet.life import State
from gateway.fleet.replica import Replica
from gateway.model import EngineOrder, EngineOrders, EngineSpec

_LONGEST = 300
_MOST_ROOM = 1 << 20


def _nobody() -> Sequence[Replica]:
    return ()


def _nowhere() -> Sequence[SourceView]:
    return ()


@dataclass(frozen=True, slots=True)
class FleetHandle:
    """What the admin plane is given of the fleet: its replicas, where they are found, ``remote_engines``, how requests
    were placed, and the clock of all that (the loop's seconds)."""

    replicas: Callable[[], Sequence[Replica]] = _nobody
    sources: Callable[[], Sequence[SourceView]] = _nowhere
    remote: Sequence[str] = ()
    decisions: Decisions = field(default_factory=Decisions)
    now: Callable[[], float] = lambda: 0.0

    def find(self, engine_id: str) -> Replica | None:
        """The replica of an id."""
        return next((each for each in self.replicas() if each.id == engine_id), None)

    def listed(self) -> Listed:
        """The engines that are listed now, for orders about them."""
        replicas = self.replicas()
        return Listed(
            {each.spec.url: each.origin for each in replicas if not each.removed},
            [each.spec.url for each in replicas if each.removed],
            self.remote,
        )

    def view(self, replica: Replica, orders: Mapping[str, EngineOrder]) -> ReplicaView:
        """A replica with the order about it."""
        return replica_view(replica, orders.get(replica.spec.url), self.now())

    def page(self, orders: EngineOrders | None, paging: FleetPaging) -> FleetList:
        """A page of the replicas; ``orders`` ``None``: they cannot be read now."""
        held = {} if orders is None else orders.engines
        replicas = sorted(self.replicas(), key=lambda each: each.spec.url)
        following = (each for each in replicas if each.spec.url > paging.after)
        page = list(islice(following, paging.limit))
        more = next(following, None) is not None
        return FleetList(
            watched=True,
            generation=None if orders is None else orders.generation,
            replicas=[self.view(each, held) for each in page],
            next=page[-1].spec.url if more else None,
            sources=list(self.sources()),
            orders=self._others(held.values(), {each.spec.url for each in replicas}),
        )

    def _others(self, orders: Iterable[EngineOrder], known: set[str]) -> list[OrderView]:
        """Orders about engines that are not among the replicas, and what the configuration has against them."""
        return [
            order_view(order, engine_fault(EngineSpec(order.url), self.remote) if order.added else None)
            for order in orders
            if order.url not in known
        ]


def replica_view(replica: Replica, order: EngineOrder | None, now: float) -> ReplicaView:
    """A replica as shown at ``now`` in the loop's seconds."""
    life, seen, reading = replica.life, replica.seen, replica.reading
    draining = order if order is not None and order.draining else None
    age = now - replica.read_at
    return ReplicaView(
        id=replica.id,
        url=replica.spec.url,
        server_name=replica.spec.server_name,
        origin=replica.origin,
        labels=dict(replica.spec.labels),
        state=life.state.value,
        since=life.since,
        reason=_short(life.reason),
        remark=_short(replica.remark),
        prospect=life.prospect,
        engine=replica.adapter.name,
        version=seen.version,
        verdict=_short(replica.verdict),
        warmth=_short(replica.warmth),
        models=list(seen.models),
        max_model_len=seen.max_model_len,
        in_flight=replica.in_flight,
        room=replica.room if replica.room < _MOST_ROOM else None,
        share=replica.share,
        ejections=life.ejections,
        back_in=max(0.0, life.until - now) if life.state is State.EJECTED else None,
        exposed=list(replica.exposed),
        drain=None if draining is None else DrainView(author=draining.author, at=draining.at, note=draining.note),
        removed=replica.removed,
        signals={} if reading is None else {signal.value: value for signal, value in reading.values.items()},
        signals_age=age if reading is not None and math.isfinite(age) else None,
        missing=[] if reading is None else sorted(signal.value for signal in reading.missing),
    )


def source_views(ages: Mapping[str, float], faults: Mapping[str, int], troubles: Mapping[str, str]) -> list[SourceView]:
    """Kinds of sources, by seconds since each was last believed, how many fail now, and what is wrong with them."""
    return [
        SourceView(kind=str(kind), age=age, faults=faults.get(kind, 0), trouble=_short(troubles.get(kind, "")))
        for kind, age in ages.items()
    ]


def _short(text: str) -> str:
    """A reason may list all that an engine serves."""
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
