"""The composition root: builds every object of one instance, starts it and takes it down. Nothing else builds."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from collections.abc import Mapping

from gateway.admin.presence import Presence
from gateway.admin.rules import PolicyNews
from gateway.control import Control, Report
from gateway.core import Core, Records
from gateway.fleet.probe import new_client
from gateway.fleet.registry import Registry
from gateway.gauges import watch
from gateway.identity.callers import Callers
from gateway.identity.keyring import KeyRing
from gateway.identity.peppers import check_peppers
from gateway.identity.secrets import load_secrets
from gateway.identity.tokens import TokenRing
from gateway.limits.open import SharedLimits, local_limits, redis_limits
from gateway.limits.sources import FailureGate
from gateway.planes import admin_listener, inference_listener
from gateway.policy.live import Policies, Policy, open_policies
from gateway.policy.schemacap import SchemaCap
from gateway.server import Listener, bind
from gateway.settings import Settings
from gateway.stateurl import is_redis, redis_place
from gateway.steps.observe import Observer
from gateway.stores.aliases import AliasView
from gateway.stores.interfaces import Notifying
from gateway.stores.open import open_store
from gateway.supervise import Supervisor
from gateway.telemetry.metrics import Metrics
from gateway.wire.deadline import Sweeper
from gateway.wire.upstream import UpstreamLimits

_SYNC_INTERVAL = 0.5
_POLICY_INTERVAL = 1.0
_ISSUERS_INTERVAL = 1.0
_HOUR = 3_600.0


class Gateway:
    """One instance. ``start`` once, then ``drain`` to go gently, then ``close``, which is idempotent."""

    def __init__(self, settings: Settings, env: Mapping[str, str], report: Report, records: Records) -> None:
        self.settings = settings
        self.url = ""
        self.admin_url = ""
        self._env = env
        self._report = report
        self._records = records
        self._stack = contextlib.AsyncExitStack()
        self._core: Core | None = None
        self._inference: Listener | None = None

    @property
    def core(self) -> Core:
        """What was built. Only after ``start``."""
        if self._core is None:
            raise RuntimeError("the gateway has not been started")
        return self._core

    async def start(self) -> None:
        """Open the store, look at the engines once, listen.

        Raises ``StoreUnavailable``, ``PolicyFault``, ``SecretFault`` or ``OSError``; nothing is left open then.
        """
        try:
            news = PolicyNews()
            core = self._core = await self._build(news)
            await self._open(core, news)
        except BaseException:
            await self.close()
            raise

    async def _build(self, news: PolicyNews) -> Core:
        """Everything below the listeners, with a policy that is followed from the first moment."""
        settings, stack, loop = self.settings, self._stack, asyncio.get_running_loop()
        policies = open_policies(settings.policies, self._policy_report(news))
        access, guards = policies.policy.access, policies.policy.guards
        store = await open_store(settings.state, password=settings.state_password)
        stack.push_async_callback(store.close)
        held = load_secrets(settings.state_folder, self._env, secrets.SystemRandom())
        await check_peppers(store, held.peppers)
        sweeper = Sweeper(loop)
        stack.callback(sweeper.close)
        registry = Registry(loop, sweeper, settings.engines, _upstream_limits(settings), floors=guards.floors)
        stack.callback(registry.close)
        metrics = Metrics()
        client = new_client()
        stack.push_async_callback(client.aclose)
        keys = KeyRing(store, held.peppers, stale_limit=access.outage.key_grace)
        stack.push_async_callback(keys.close)
        tokens = TokenRing(access.issuers, client, on_refused=metrics.token_refusals.add)
        stack.push_async_callback(tokens.close)
        limits = self._open_limits(policies)
        stack.push_async_callback(limits.close)
        observer = Observer(loop, self._records, metrics, time.perf_counter)
        stack.callback(observer.close)
        core = Core(
            settings=settings,
            policies=policies,
            held=held,
            sweeper=sweeper,
            store=store,
            keys=keys,
            tokens=tokens,
            callers=Callers(keys, tokens),
            failures=FailureGate(access.failures),
            limits=limits,
            schemas=SchemaCap(guards.schemas_per_hour, _HOUR, time.monotonic),
            aliases=AliasView(store),
            registry=registry,
            metrics=metrics,
            records=self._records,
            observer=observer,
            supervisor=Supervisor(loop),
        )
        policies.on_change(news.replaced)
        policies.on_change(lambda policy: follow(core, policy))
        return core

    def _open_limits(self, policies: Policies) -> SharedLimits:
        if not is_redis(self.settings.state):
            return local_limits()
        place = redis_place(self.settings.state, self.settings.state_password)
        return redis_limits(place, lambda: policies.policy.access.outage.limit_share, self._report)

    def _policy_report(self, news: PolicyNews) -> Report:
        def refused(text: str) -> None:
            news.refused(text)
            self._report(f"policy files are not valid, the policy before stands:\n{text}")

        return refused

    async def _open(self, core: Core, news: PolicyNews) -> None:
        settings, supervisor = self.settings, core.supervisor
        control = Control(core.store, core.keys, core.aliases, core.registry, self._report)
        client = new_client()
        self._stack.push_async_callback(client.aclose)
        await core.tokens.refresh()
        await control.first(client)
        admin_socket = self._bind(settings.admin.host, settings.admin.port)
        inference_socket = self._bind(settings.listen.host, settings.listen.port)
        self.url, self.admin_url = _url_of(inference_socket), _url_of(admin_socket)
        inference = self._inference = inference_listener(core)
        admin = admin_listener(core, inference, control, news)
        watch(core, inference)
        self._stack.push_async_callback(supervisor.close)
        self._stack.callback(admin.close)
        self._stack.callback(inference.close)
        supervisor.run_every("sync", _SYNC_INTERVAL, control.sync)
        if isinstance(core.store, Notifying):
            supervisor.start("changes", control.follow(core.store))
        supervisor.run_every("probe", settings.probe_interval, lambda: control.probe(client))
        supervisor.run_every("policy", _POLICY_INTERVAL, core.policies.reload)
        supervisor.run_every("issuers", _ISSUERS_INTERVAL, core.tokens.refresh)
        for name, interval, step in core.limits.loops:
            supervisor.run_every(name, interval, step)
        await admin.start(admin_socket)
        await inference.start(inference_socket)
        self._stack.callback(Presence(settings.state_folder, self.admin_url).close)

    def reload_policies(self) -> None:
        """Judge the policy files anew, also if they have not changed. For SIGHUP."""
        self.core.supervisor.start("policy-reload", self.core.policies.reload(force=True))

    def _bind(self, host: str, port: int) -> socket.socket:
        bound = bind(host, port)
        self._stack.callback(bound.close)
        return bound

    async def drain(self) -> None:
        """Readiness false, no new connections, answers in hand finish within the drain time, then an error event."""
        if self._inference is not None:
            await self._inference.drain(self.settings.timeouts.drain)

    async def close(self) -> None:
        """Take everything down, newest first."""
        await self._stack.aclose()


def follow(core: Core, policy: Policy) -> None:
    """Have everything that was made after a policy follow another one."""
    access, guards = policy.access, policy.guards
    core.tokens.replace(access.issuers)
    core.keys.stale_limit = access.outage.key_grace
    core.failures.adopt(access.failures)
    core.schemas.limit = guards.schemas_per_hour
    core.registry.adopt(guards.floors)


def _upstream_limits(settings: Settings) -> UpstreamLimits:
    times = settings.timeouts
    return UpstreamLimits(
        connect=times.connect,
        first_byte=times.first_byte,
        idle=times.idle,
        max_connections=settings.max_connections_per_replica,
    )


def _url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
