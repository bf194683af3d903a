"""The fleet of one instance, put together: where engines are found, the replicas, and a watch over each."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from random import Random

from gateway.configvalues import engine_fault
from gateway.fleet.discover.merge import Discovery
from gateway.fleet.discover.open import open_sources
from gateway.fleet.exposure import Exposure
from gateway.fleet.home import home
from gateway.fleet.keeper import Keeper
from gateway.fleet.link import EngineLink
from gateway.fleet.registry import Registry
from gateway.fleet.replica import Replica, Transition
from gateway.fleet.surroundings import Surroundings
from gateway.fleet.watch import Watch
from gateway.model import EngineOrders, EngineSpec
from gateway.policy.fleet import FleetPolicy
from gateway.policy.live import Policies
from gateway.settings import Settings
from gateway.supervise import Supervisor
from gateway.wire.deadline import Sweeper
from gateway.wire.tls import client_tls
from gateway.wire.upstream import UpstreamLimits

_LOOKS_AT_ONCE = 32
_WARMUPS_AT_ONCE = 32
_STRANGER = 1.0  # seconds for a connection to where an engine should not answer

Step = tuple[str, float, Callable[[], Awaitable[object]]]


@dataclass(frozen=True, slots=True)
class Fleet:
    """Everything about engines. ``loops`` are named steps for the supervisor, each with its interval in seconds.

    ``remote`` are the hosts to which this instance may send prompts: orders are shared, and others may allow more.
    """

    registry: Registry
    keeper: Keeper
    discovery: Discovery
    remote: tuple[str, ...]
    loops: tuple[Step, ...]

    def obey(self, orders: EngineOrders) -> None:
        """Follow what operators have ordered: which engines they added, and which are to be drained."""
        self.keeper.obey(orders)
        added = [EngineSpec(order.url, order.labels) for order in orders.engines.values() if order.added]
        self.discovery.order(tuple(spec for spec in added if engine_fault(spec, self.remote) is None))

    async def first(self, patience: float) -> None:
        """Find engines and look at each once, ``patience`` seconds at most for either."""
        await self.discovery.step()
        await self.keeper.met(patience)

    async def close(self) -> None:
        """Cut all connections to engines, and let go of the sources. Idempotent."""
        self.registry.close()
        await self.discovery.close()


def open_fleet(
    settings: Settings,
    policies: Policies,
    env: Mapping[str, str],
    *,
    sweeper: Sweeper,
    supervisor: Supervisor,
    report: Callable[[str], None],
) -> Fleet:
    """The fleet that the settings describe, with a watch for each replica under the supervisor."""
    loop = asyncio.get_running_loop()
    random = Random(secrets.randbits(128))  # noqa: S311 - it spreads looks and varies prompts, it keeps no secret
    limits = _limits(settings)
    tls = client_tls(settings.engine_ca) if settings.remote_engines else None
    here = home()

    def fleet_policy() -> FleetPolicy:
        return policies.policy.routing.fleet

    def make(
        spec: EngineSpec, origin: str, told: Callable[[Transition], None], spare: Callable[[Replica], bool]
    ) -> Replica:
        return Replica(
            spec,
            lambda lost: EngineLink(loop, sweeper, spec, limits, tls=tls, key=settings.engine_key, on_lost=lost),
            fleet_policy,
            told,
            spare,
            origin=origin,
            here=here,
            now=loop.time,
            random=random.random,
        )

    registry = Registry(make, fleet_policy, now=loop.time)
    strangers = replace(limits, connect=_STRANGER)
    around = Surroundings(
        policy=fleet_policy,
        floors=lambda: policies.policy.guards.floors,
        now=loop.time,
        random=random,
        new_id=lambda: f"{random.getrandbits(64):016x}",
        interval=settings.probe_interval,
        looks=asyncio.Semaphore(_LOOKS_AT_ONCE),
        warmups=asyncio.Semaphore(_WARMUPS_AT_ONCE),
        report=report,
        changed=registry.publish,
        exposure=Exposure(lambda spec: EngineLink(loop, sweeper, spec, strangers)).look,
    )
    keeper = Keeper(registry, supervisor, lambda replica: Watch(replica, around))
    discovery = Discovery(open_sources(settings, env), keeper.apply, report, clock=loop.time)
    return Fleet(
        registry,
        keeper,
        discovery,
        settings.remote_engines,
        (("discovery", settings.discovery.interval, discovery.step),),
    )


def _limits(settings: Settings) -> UpstreamLimits:
    times = settings.timeouts
    return UpstreamLimits(
        connect=times.connect,
        first_byte=times.first_byte,
        idle=times.idle,
        max_connections=settings.max_connections_per_replica,
    )
