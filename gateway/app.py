"""The composition root: builds every object of one instance, starts it and takes it down. Nothing else builds."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version

from gateway.admin.news import PolicyNews
from gateway.admin.presence import Presence
from gateway.admission.gate import Gate
from gateway.admission.limit import places, spare, tries
from gateway.control import Control, Report
from gateway.core import Core, Records
from gateway.fleet.balance.balancer import Balancer
from gateway.fleet.open import Fleet, Step, open_fleet
from gateway.fleet.replica import Replica, Transition
from gateway.gauges import watch, watch_certificate, watch_share, watch_trials
from gateway.heartbeat import Heartbeat
from gateway.identity.callers import Callers
from gateway.identity.keyring import KeyRing
from gateway.identity.keysource import new_client
from gateway.identity.peppers import check_peppers
from gateway.identity.secrets import Secrets, load_secrets, prefix_key
from gateway.identity.tokens import TokenRing
from gateway.limits.open import SharedLimits, local_limits, redis_limits
from gateway.limits.sources import FailureGate
from gateway.model import Instance
from gateway.planes import admin_listener, inference_listener
from gateway.policy.live import Policies, Policy, open_policies
from gateway.policy.schemacap import SchemaCap
from gateway.server import Listener, bind
from gateway.settings import Address, Settings
from gateway.stateurl import is_redis, redis_place
from gateway.steps.observe import Observer
from gateway.stores.aliases import AliasView
from gateway.stores.interfaces import Notifying, StateStore, StoreUnavailable
from gateway.stores.open import open_store
from gateway.supervise import Supervisor
from gateway.telemetry.looplag import LoopLag
from gateway.telemetry.metrics import Metrics
from gateway.trial import Trials
from gateway.wire.certificate import Certificate
from gateway.wire.deadline import Sweeper

_SYNC_INTERVAL = 0.5
_POLICY_INTERVAL = 1.0
_HEARTBEAT_INTERVAL = 2.0
_KEEP_INTERVAL = 1.0
_PACE_INTERVAL = 5.0
_PLACES_INTERVAL = 0.25
_NAMES_INTERVAL = 0.5
_PATIENCE = 1.0  # seconds that the start waits for the engines' first answers
_TRIALS_INTERVAL = 5.0
_LONG_AGO = 1e9
_ISSUERS_INTERVAL = 1.0
_CERTIFICATE_INTERVAL = 2.0
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
        self._others: Callable[[], int] = lambda: 0  # instances that have requests, as far as they tell

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
        store = await self._open_store()
        stack.push_async_callback(store.close)
        held = load_secrets(settings.state_folder, self._env, secrets.SystemRandom())
        sweeper = Sweeper(loop)
        stack.callback(sweeper.close)
        metrics = Metrics()
        supervisor = Supervisor(loop)
        fleet = open_fleet(settings, policies, self._env, sweeper=sweeper, supervisor=supervisor, report=self._report)
        stack.push_async_callback(fleet.close)
        fleet.registry.on_transition(lambda step: self._moved(step, metrics))
        balancer, gate = self._open_placing(policies, held, fleet, metrics)
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
            fleet=fleet,
            balancer=balancer,
            gate=gate,
            metrics=metrics,
            records=self._records,
            observer=observer,
            supervisor=supervisor,
        )
        policies.on_change(news.replaced)
        policies.on_change(lambda policy: self._report("policy files were read again: what they say is in force"))
        policies.on_change(lambda policy: follow(core, policy))
        return core

    def _open_placing(self, policies: Policies, held: Secrets, fleet: Fleet, metrics: Metrics) -> tuple[Balancer, Gate]:
        """What decides where a request goes, and what has it wait for that; both follow the lives of replicas."""
        loop = asyncio.get_running_loop()
        dice = random.Random(secrets.randbits(128))  # noqa: S311 - it spreads load, it keeps no secret
        balancer = Balancer(
            lambda: policies.policy.routing.balancing,
            key=prefix_key(held.salt),
            now=loop.time,
            random=dice.random,
            compared=metrics.dry_runs.add,
        )
        fleet.registry.on_transition(balancer.on_transition)
        gate = Gate(
            loop,
            lambda: policies.policy.routing.admission,
            fleet.registry.ready,
            on_outcome=metrics.waited,
            memory=self.settings.body_memory // 2,
            random=dice.random,
        )
        self._stack.callback(gate.close)
        fleet.registry.on_transition(lambda step: gate.pump())
        return balancer, gate

    async def _open_store(self) -> StateStore:
        """The store; a Redis that cannot be reached now is asked again later, by whoever needs it."""
        settings = self.settings
        try:
            return await open_store(settings.state, password=settings.state_password)
        except StoreUnavailable:
            if not is_redis(settings.state):
                raise
            from gateway.stores.redis import RedisStore  # noqa: PLC0415 - as open_store does

            return RedisStore(redis_place(settings.state, settings.state_password))

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
        self._stack.push_async_callback(supervisor.close)
        # First of all: where another gateway listens already, this one is to leave its engines alone.
        admin_socket = self._bind(settings.admin.host, settings.admin.port)
        inference_socket = self._bind(settings.listen.host, settings.listen.port)
        certificate = self._open_certificate(core)
        guarded = None if settings.admin.on_loopback else certificate
        self.url, self.admin_url = _url_of(inference_socket, certificate), _url_of(admin_socket, guarded)
        control = Control(
            core.store,
            core.keys,
            core.aliases,
            self._report,
            folder=settings.state_folder,
            verify=lambda: check_peppers(core.store, core.held.peppers),
            obey=core.fleet.obey,
            listed=core.registry.listed_models,
        )
        loops = [*core.limits.loops, *core.fleet.loops, *self._share_load(core)]
        await core.tokens.refresh()
        await control.first()
        for name, follow_source in core.fleet.discovery.followers:
            supervisor.start(name, follow_source())
        await core.fleet.first(_PATIENCE)
        await control.name_models()
        inference = self._inference = inference_listener(core)
        watch(core, inference)
        lag = LoopLag(asyncio.get_running_loop(), core.metrics.loop_lag.at().observe)
        self._stack.callback(lag.close)
        self._stack.callback(inference.close)
        supervisor.run_every("sync", _SYNC_INTERVAL, control.sync)
        if isinstance(core.store, Notifying):
            supervisor.start("changes", control.follow(core.store))
        supervisor.run_every("names", _NAMES_INTERVAL, control.name_models)
        supervisor.run_every("places", _PLACES_INTERVAL, lambda: bound(core, self._others()))
        supervisor.run_every("pace", _PACE_INTERVAL, lambda: core.balancer.level(core.registry.replicas))
        trials = Trials(
            core.store,
            lambda: core.aliases.table,
            core.metrics.revisions,
            lambda: core.policies.policy.routing.canary,
            self._report,
        )
        watch_trials(core.metrics, trials)
        supervisor.run_every("trials", _TRIALS_INTERVAL, trials.watch)
        heartbeat = Heartbeat(core.store, self._describe(core), core.metrics.revisions)
        self._stack.push_async_callback(heartbeat.close)
        supervisor.run_every("keep", _KEEP_INTERVAL, control.keep)
        supervisor.run_every("heartbeat", _HEARTBEAT_INTERVAL, heartbeat.beat)
        supervisor.run_every("policy", _POLICY_INTERVAL, core.policies.reload)
        supervisor.run_every("issuers", _ISSUERS_INTERVAL, core.tokens.refresh)
        for name, interval, step in loops:
            supervisor.run_every(name, interval, step)
        await inference.start(inference_socket, certificate)
        # Applications are served while the admin plane, which takes longer to come in than all else, is made.
        admin = await admin_listener(core, inference, control, news)
        self._stack.callback(admin.close)
        await admin.start(admin_socket, guarded)
        self._stack.callback(Presence(settings.state_folder, self.admin_url).close)

    def _open_certificate(self, core: Core) -> Certificate | None:
        """What listeners show to clients, where they speak TLS; it follows its files."""
        files = self.settings.tls
        if files is None:
            return None
        certificate = Certificate(files.certificate, files.key, self._report)
        core.supervisor.run_every("certificate", _CERTIFICATE_INTERVAL, certificate.look)
        watch_certificate(core.metrics, certificate)
        return certificate

    def _share_load(self, core: Core) -> list[Step]:
        """What makes this instance and the others on its Redis know what each has at the replicas."""
        if not is_redis(self.settings.state):
            return []
        from gateway.loadshare import SHARE_INTERVAL, redis_load_share  # noqa: PLC0415 - it imports redis

        share = redis_load_share(
            redis_place(self.settings.state, self.settings.state_password),
            lambda: core.registry.replicas,
            core.balancer.hints,
            self._report,
            now=core.balancer.now,
        )
        self._stack.push_async_callback(share.close)
        watch_share(core.metrics, share)
        self._others = lambda: share.instances
        return [("load", SHARE_INTERVAL, share.step)]

    def _moved(self, step: Transition, metrics: Metrics) -> None:
        """One line and one count for each transition of a replica."""
        metrics.transitions.add(step.sign.value, step.after.state.value)
        why = f": {step.after.reason}" if step.after.reason else ""
        self._report(f"replica {step.replica.id}: {step.before.state.value} -> {step.after.state.value}{why}")

    def reload_policies(self) -> None:
        """Judge the policy files anew, also if they have not changed; before the start is done they are new anyway."""
        if self._inference is None:
            return
        self.core.supervisor.start("policy-reload", self.core.policies.reload(force=True))

    def _describe(self, core: Core) -> Callable[[], Instance]:
        """This instance, as others see it at the moment of asking."""
        instance_id, started_at, name = secrets.token_hex(8), time.time(), socket.gethostname()
        running = version("gateway")

        def describe() -> Instance:
            return Instance(
                id=instance_id,
                name=name,
                version=running,
                admin_url=self.admin_url,
                started_at=started_at,
                seen_at=time.time(),
                generation=core.aliases.table.generation,
                table_age=min(core.keys.age(), _LONG_AGO),
                degraded=core.aliases.degraded,
            )

        return describe

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


async def bound(core: Core, instances: int = 0) -> None:
    """Have each replica take as many requests as policy and its engine's batch allow, and those that wait be placed."""
    policy = core.policies.policy.routing.admission
    now = asyncio.get_running_loop().time()

    def limit(replica: Replica) -> int:
        pace, work = replica.pace, replica.work
        trying = pace.grown or tries(replica.point, now)
        more = spare(pace.slots, pace.step, work.mean_left, trying=trying) if pace.slots else 0
        return places(policy.in_flight, pace.slots, replica.share, work.others_in_flight, more, instances=instances)

    core.registry.bound(limit)
    core.gate.mix.sample(now)
    core.gate.pump()


def _url_of(listening: socket.socket, certificate: Certificate | None) -> str:
    scheme = "http" if certificate is None else "https"
    return f"{scheme}://{Address(*listening.getsockname()[:2])}"
