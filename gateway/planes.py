"""Both planes as listeners over one core: the handler of each, and what it is handed."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from gateway.admin.news import PolicyNews
from gateway.control import Control
from gateway.core import Core
from gateway.dispatch import Dispatch
from gateway.errors import GatewayError, Refusal
from gateway.identity.secrets import Secrets, split_key, tenant_salt
from gateway.model import Dialect
from gateway.proxy import Proxy, ProxyLimits
from gateway.routes import ROUTES
from gateway.server import Listener
from gateway.steps.guard import open_door
from gateway.trial import counted
from gateway.wire.asgi import App, run_asgi
from gateway.wire.errorbody import error_answer
from gateway.wire.exchange import Exchange
from gateway.wire.headers import header_lines, judge_head
from gateway.wire.inbound import InboundLimits

_ADMIN_BODY = 64 * 1024
_ADMIN_CONNECTIONS = 256
_ADMIN_BODIES = 16 * 1024 * 1024
_MAX_SALTS = 10_000


def inference_listener(core: Core) -> Listener:
    """The plane of the applications."""
    settings = core.settings
    dice = random.Random(secrets.randbits(128))  # noqa: S311 - it spreads load and numbers requests, it keeps no secret
    dispatch = Dispatch(
        core.registry, core.gate, core.policies, core.metrics, time.perf_counter, attempts=settings.attempts
    )
    proxy = Proxy(
        door=open_door(ROUTES, frozenset(settings.hosts), core.policies.policy.guards.header_count),
        callers=core.callers,
        failures=core.failures,
        policies=core.policies,
        limiter=core.limits.limiter,
        schemas=core.schemas,
        aliases=core.aliases,
        fleet=core.registry,
        dispatch=dispatch,
        observer=core.observer,
        salt=salter(core.held),
        split_key=split_key(core.held.salt),
        balancer=core.balancer,
        new_id=lambda: f"req_{dice.getrandbits(96):024x}",
        limits=ProxyLimits(total=settings.timeouts.total, hops=settings.trusted_hops),
    )
    return Listener(
        asyncio.get_running_loop(),
        core.sweeper,
        proxy.handle,
        limits=_inbound_limits(core),
        max_connections=settings.max_connections,
        body_memory=settings.body_memory,
        on_fault=lambda error: core.metrics.refusals.add(error.spec.code),
        on_stranger=core.metrics.strangers.add,
    )


def salter(held: Secrets) -> Callable[[str], str]:
    """The prefix-cache salt of a tenant, remembered for so many: a salt is a function of its tenant, so that forgetting
    costs nothing but time."""
    salts: dict[str, str] = {}

    def salt(tenant: str) -> str:
        found = salts.get(tenant)
        if found is None:
            if len(salts) >= _MAX_SALTS:
                salts.clear()
            found = salts[tenant] = tenant_salt(held.salt, tenant)
        return found

    return salt


async def admin_listener(core: Core, inference: Listener, control: Control, news: PolicyNews) -> Listener:
    """The plane of the operators. Made in a thread: the loop may have requests already."""
    now = asyncio.get_running_loop().time
    app = await asyncio.to_thread(_admin_application, core, inference, control, news, now)

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
        body_memory=_ADMIN_BODIES,
    )


def _admin_application(
    core: Core, inference: Listener, control: Control, news: PolicyNews, now: Callable[[], float]
) -> App:
    # FastAPI and the schemas are most of what a start would wait for, and no request of an application needs them.
    from gateway.admin.build import build_admin  # noqa: PLC0415
    from gateway.admin.fleetshow import FleetHandle, source_views  # noqa: PLC0415
    from gateway.admin.rules import policy_view  # noqa: PLC0415
    from gateway.admin.state import AdminState  # noqa: PLC0415

    policies, discovery = core.policies, core.fleet.discovery
    return build_admin(
        AdminState(
            store=core.store,
            pepper=core.held.pepper,
            pepper_version=core.held.pepper_version,
            admin_token=core.held.admin_token,
            changed=control.reload,
            render_metrics=lambda: _scraped(core),
            ready=lambda: core.registry.any_ready() and not inference.draining,
            served_models=core.registry.served_models,
            callers=core.callers,
            failures=core.failures,
            access=lambda: policies.policy.access,
            policy=lambda: policy_view(news, policies),
            compare=lambda alias: _counted(core, alias),
            fleet=FleetHandle(
                replicas=lambda: core.registry.replicas,
                sources=lambda: source_views(discovery.ages(), discovery.faults(), discovery.troubles()),
                remote=core.settings.remote_engines,
                decisions=core.balancer.decisions,
                now=now,
            ),
        )
    )


def _inbound_limits(core: Core) -> InboundLimits:
    return InboundLimits(
        head_bytes=core.policies.policy.guards.header_bytes,
        head_timeout=core.settings.request_head_timeout,
        body_timeout=core.settings.body_timeout,
        body_rate=core.settings.min_body_rate,
    )


def _counted(core: Core, alias: str) -> Mapping[str, Mapping[str, Any]]:
    core.observer.flush()
    return counted(core.metrics.revisions, core.aliases.table, alias)


def _scraped(core: Core) -> bytes:
    core.observer.flush()
    return core.metrics.render()
