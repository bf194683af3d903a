"""The composition root: builds every object of one instance, starts it and takes it down. Nothing else builds."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import uvloop

from gateway.admin.build import build_admin
from gateway.admin.presence import Presence
from gateway.admin.state import AdminState
from gateway.control import Control, Report
from gateway.errors import GatewayError, Refusal
from gateway.fleet.probe import new_client
from gateway.fleet.registry import Registry
from gateway.fleet.replica import State
from gateway.identity.keyring import KeyRing
from gateway.identity.secrets import Secrets, load_secrets, tenant_salt
from gateway.model import Dialect
from gateway.policy.guards import Guards, load_guards
from gateway.process import harden_process, tune_collector
from gateway.proxy import Proxy, ProxyLimits
from gateway.routes import ROUTES
from gateway.server import Listener, bind
from gateway.settings import Settings
from gateway.steps.guard import open_door
from gateway.steps.observe import Observer
from gateway.stores.aliases import AliasView
from gateway.stores.interfaces import StateStore
from gateway.stores.open import open_store
from gateway.supervise import Supervisor
from gateway.telemetry.log import LineWriter
from gateway.telemetry.metrics import Metrics
from gateway.wire.asgi import run_asgi
from gateway.wire.deadline import Sweeper
from gateway.wire.errorbody import error_answer
from gateway.wire.exchange import Exchange
from gateway.wire.headers import header_lines, judge_head
from gateway.wire.inbound import InboundLimits
from gateway.wire.upstream import UpstreamLimits

_SYNC_INTERVAL = 0.5
_ADMIN_BODY = 64 * 1024
_ADMIN_CONNECTIONS = 256


class Records(Protocol):
    """Where request records go, and how many were lost."""

    dropped: int

    def write(self, record: dict[str, Any]) -> None:
        """Take one record; never waits."""
        ...


@dataclass(frozen=True, slots=True)
class Core:
    """What one instance is made of, below its listeners."""

    settings: Settings
    guards: Guards
    held: Secrets
    sweeper: Sweeper
    store: StateStore
    keys: KeyRing
    aliases: AliasView
    registry: Registry
    metrics: Metrics
    records: Records
    observer: Observer
    supervisor: Supervisor


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
            core = self._core = await _build(self.settings, self._env, self._records, self._stack)
            await self._open(core)
        except BaseException:
            await self.close()
            raise

    async def _open(self, core: Core) -> None:
        settings, supervisor = self.settings, core.supervisor
        control = Control(core.store, core.keys, core.aliases, core.registry, self._report)
        client = new_client()
        self._stack.push_async_callback(client.aclose)
        await control.first(client)
        admin_socket = self._bind(settings.admin.host, settings.admin.port)
        inference_socket = self._bind(settings.listen.host, settings.listen.port)
        self.url, self.admin_url = _url_of(inference_socket), _url_of(admin_socket)
        inference = self._inference = _inference_listener(core)
        admin = _admin_listener(core, inference, control)
        _watch(core, inference)
        self._stack.push_async_callback(supervisor.close)
        self._stack.callback(admin.close)
        self._stack.callback(inference.close)
        supervisor.run_every("sync", _SYNC_INTERVAL, control.sync)
        supervisor.run_every("probe", settings.probe_interval, lambda: control.probe(client))
        await admin.start(admin_socket)
        await inference.start(inference_socket)
        self._stack.callback(Presence(settings.state_folder, self.admin_url).close)

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


async def _build(
    settings: Settings, env: Mapping[str, str], records: Records, stack: contextlib.AsyncExitStack
) -> Core:
    loop = asyncio.get_running_loop()
    guards = load_guards(settings.policies / "guards.yaml")
    store = await open_store(settings.state)
    stack.push_async_callback(store.close)
    held = load_secrets(settings.state_folder, env, secrets.SystemRandom())
    sweeper = Sweeper(loop)
    stack.callback(sweeper.close)
    registry = Registry(loop, sweeper, settings.engines, _upstream_limits(settings))
    stack.callback(registry.close)
    keys = KeyRing(store, {1: held.pepper})
    stack.push_async_callback(keys.close)
    metrics = Metrics()
    observer = Observer(loop, records, metrics, time.perf_counter)
    stack.callback(observer.close)
    return Core(
        settings=settings,
        guards=guards,
        held=held,
        sweeper=sweeper,
        store=store,
        keys=keys,
        aliases=AliasView(store),
        registry=registry,
        metrics=metrics,
        records=records,
        observer=observer,
        supervisor=Supervisor(loop),
    )


def _inference_listener(core: Core) -> Listener:
    settings = core.settings
    dice = random.Random(secrets.randbits(128))  # noqa: S311 - it spreads load and numbers requests, it keeps no secret
    proxy = Proxy(
        door=open_door(ROUTES, frozenset(settings.hosts), core.guards.header_count),
        keys=core.keys,
        guards=core.guards,
        aliases=core.aliases,
        fleet=core.registry,
        observer=core.observer,
        metrics=core.metrics,
        salt=_salter(core.guards, core.held),
        random=dice.random,
        new_id=lambda: f"req_{dice.getrandbits(96):024x}",
        limits=ProxyLimits(attempts=settings.attempts, total=settings.timeouts.total),
    )
    return Listener(
        asyncio.get_running_loop(),
        core.sweeper,
        proxy.handle,
        limits=_inbound_limits(core),
        max_connections=settings.max_connections,
        on_fault=lambda error: core.metrics.refusals.add(error.spec.code),
    )


def _salter(guards: Guards, held: Secrets) -> Callable[[str], str | None]:
    """The prefix-cache salt of a tenant, remembered: tenants are the operator's, so they are few."""
    salts: dict[str, str] = {}

    def salt(tenant: str) -> str | None:
        if tenant not in salts:
            salts[tenant] = tenant_salt(held.salt, tenant)
        return salts[tenant]

    return salt if guards.isolation == "tenant" else lambda tenant: None


def _admin_listener(core: Core, inference: Listener, control: Control) -> Listener:
    app = build_admin(
        AdminState(
            store=core.store,
            pepper=core.held.pepper,
            admin_token=core.held.admin_token,
            changed=control.reload,
            render_metrics=lambda: _scraped(core),
            ready=lambda: core.registry.any_ready() and not inference.draining,
            served_models=core.registry.served_models,
        )
    )

    async def handle(exchange: Exchange) -> None:
        try:
            fault = judge_head(exchange.version, exchange.headers, exchange.head)
            if fault is not None:
                raise Refusal("invalid_request", fault, close=True)
            await run_asgi(app, exchange, _ADMIN_BODY)
        except GatewayError as error:
            headers, body = error_answer(error, Dialect.OPENAI)
            exchange.respond(error.spec.status, header_lines(headers), body, close=True)

    return Listener(
        asyncio.get_running_loop(),
        core.sweeper,
        handle,
        limits=_inbound_limits(core),
        max_connections=_ADMIN_CONNECTIONS,
    )


def _scraped(core: Core) -> bytes:
    core.observer.flush()
    return core.metrics.render()


def _watch(core: Core, inference: Listener) -> None:
    """Gauges that are read when a scrape comes."""
    replicas, gauge = core.registry.replicas, core.metrics.gauge
    gauge(
        "gateway_in_flight",
        "Requests in flight by replica",
        ("replica",),
        lambda: [((str(r.index),), r.in_flight) for r in replicas],
    )
    gauge(
        "gateway_replica_state",
        "1 for the state that the replica is in",
        ("replica", "state"),
        lambda: [((str(r.index), s.value), float(r.life.state is s)) for r in replicas for s in State],
    )
    gauge(
        "gateway_upstream_connections",
        "Open connections by replica",
        ("replica",),
        lambda: [((str(r.index),), r.open_connections) for r in replicas],
    )
    gauge(
        "gateway_client_connections",
        "Open client connections of the inference listener",
        (),
        lambda: [((), inference.connections)],
    )
    gauge(
        "gateway_alias_generation",
        "Generation of the alias table in use",
        (),
        lambda: [((), core.aliases.table.generation)],
    )
    gauge("gateway_record_drops", "Records lost since the start", (), lambda: [((), core.records.dropped)])


def _upstream_limits(settings: Settings) -> UpstreamLimits:
    times = settings.timeouts
    return UpstreamLimits(
        connect=times.connect,
        first_byte=times.first_byte,
        idle=times.idle,
        max_connections=settings.max_connections_per_replica,
    )


def _inbound_limits(core: Core) -> InboundLimits:
    return InboundLimits(
        head_bytes=core.guards.header_bytes,
        head_timeout=core.settings.request_head_timeout,
        body_timeout=core.settings.body_timeout,
        body_rate=core.settings.min_body_rate,
    )


def _url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(settings: Settings, env: Mapping[str, str], report: Report) -> int:
    """Run one instance until SIGTERM or SIGINT; the exit code. Raises what ``Gateway.start`` raises."""
    harden_process()
    records = LineWriter(sys.stdout.buffer)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(settings, env, report, records))
    finally:
        records.close()


async def _run(settings: Settings, env: Mapping[str, str], report: Report, records: Records) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    gateway = Gateway(settings, env, report, records)
    await gateway.start()
    try:
        tune_collector()
        for line in _greeting(gateway):
            report(line)
        failed = gateway.core.supervisor.failed
        failed.add_done_callback(lambda _: stop.set())
        await stop.wait()
        if failed.done():
            report(f"a control loop failed ({type(failed.result()).__name__}); stopping")
        report("stopping: finishing what is in hand")
        await gateway.drain()
        return 1 if failed.done() else 0
    finally:
        await gateway.close()


def _greeting(gateway: Gateway) -> list[str]:
    folder = gateway.settings.state_folder
    lines = [
        f"inference: {gateway.url}/v1   (base_url of an OpenAI client)",
        f"admin:     {gateway.admin_url}   token in {folder / 'admin-token'}, metrics at /metrics",
    ]
    if not gateway.settings.engines:
        lines.append("no engines: start again with --engine http://127.0.0.1:8000")
    lines.append("first key: gateway keys create NAME")
    return lines
