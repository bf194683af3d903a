"""Which replicas there are: what discovery lists and what operators have ordered, and a watch over each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import MappingProxyType

from gateway.fleet.discover.sources import Found
from gateway.fleet.life import Sign, State
from gateway.fleet.registry import Registry
from gateway.fleet.replica import Replica
from gateway.fleet.watch import Watch
from gateway.model import EngineOrder, EngineOrders
from gateway.supervise import Supervisor

_OUT = frozenset({State.DRAINING, State.GONE})


class Keeper:
    """Makes replicas of what is found, and drains those that are found no more or whose drain is ordered."""

    def __init__(self, registry: Registry, supervisor: Supervisor, watch: Callable[[Replica], Watch]) -> None:
        self._registry = registry
        self._supervisor = supervisor
        self._watch = watch
        self._watches: dict[Replica, Watch] = {}
        self._orders: EngineOrders = EngineOrders()

    def apply(self, found: Sequence[Found]) -> None:
        """The fleet is this from now on. What is listed no more finishes what it has in hand and goes."""
        listed = {each.spec.url: each for each in found}
        known = {replica.spec.url: replica for replica in self._registry.replicas}
        for url, replica in known.items():
            replica.removed = url not in listed
            if not replica.removed:
                replica.relist(*listed[url])
            self._direct(replica)
        for url, each in listed.items():
            if url not in known:
                self._begin(self._registry.add(each.spec, each.origin))

    def obey(self, orders: EngineOrders) -> None:
        """Drain what is ordered to be drained, and let in again what is no longer."""
        self._orders = orders
        for replica in self._registry.replicas:
            self._direct(replica)

    def _direct(self, replica: Replica) -> None:
        """Have a replica leave, or come back, by what is ordered and listed."""
        order = self._orders.engines.get(replica.spec.url, _NO_ORDER)
        out = replica.life.state in _OUT
        if (replica.removed or order.draining) and not out:
            replica.take(Sign.DRAIN, "listed no more" if replica.removed else _drained(order))
        elif not replica.removed and not order.draining and out:
            replica.take(Sign.UNDRAIN, "to be used again")
        elif not replica.removed or replica.life.state is not State.GONE:
            return
        replica.nudge()

    def _begin(self, replica: Replica) -> None:
        watch = self._watches[replica] = self._watch(replica)
        self._direct(replica)
        self._supervisor.start(f"watch {replica.id}", self._keep(replica, watch))

    async def _keep(self, replica: Replica, watch: Watch) -> None:
        try:
            await watch.run()
        finally:
            self._watches.pop(replica, None)
        self._registry.drop(replica)

    async def met(self, patience: float) -> None:
        """Wait until each replica has been looked at once, ``patience`` seconds at most."""
        waiting = [watch.greeted.wait() for watch in self._watches.values()]
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await asyncio.gather(*waiting)


_NO_ORDER = EngineOrder("", labels=MappingProxyType({}))


def _drained(order: EngineOrder) -> str:
    return f"drained by {order.author}" + (f": {order.note}" if order.note else "")
