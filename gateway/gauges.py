"""Gauges that are read when a scrape comes: how the instance stands at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from gateway.core import Core
from gateway.fleet.life import State
from gateway.fleet.replica import Replica
from gateway.loadshare import LoadShare
from gateway.server import Listener
from gateway.telemetry.metrics import GaugeReader, Metrics
from gateway.wire.certificate import Certificate


def watch(core: Core, inference: Listener) -> None:
    """Gauges that are read when a scrape comes."""
    gauge = core.metrics.gauge
    _watch_fleet(core)
    gauge(
        "gateway_queue_depth",
        "Requests that wait in the gateway's queue for a place at a replica",
        ("model", "priority"),
        lambda: [((model, priority), count) for (model, priority), count in core.gate.depths().items()],
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
    _watch_access(core)
    gauge("gateway_record_drops", "Records lost since the start", (), lambda: [((), core.records.dropped)])


def _watch_fleet(core: Core) -> None:
    gauge, registry, loop = core.metrics.gauge, core.registry, asyncio.get_running_loop()

    def by_replica(read: Callable[[Replica], float]) -> GaugeReader:
        return lambda: [((replica.id,), read(replica)) for replica in registry.replicas]

    for name, meaning, read in _BY_REPLICA:
        gauge(name, meaning, ("replica",), by_replica(read))
    gauge(
        "gateway_engine_signals_age_seconds",
        "Since the engine's signals were last read",
        ("replica",),
        by_replica(lambda replica: loop.time() - replica.read_at),
    )
    gauge(
        "gateway_replica_state",
        "1 for the state that the replica is in",
        ("replica", "state"),
        lambda: [((r.id, s.value), float(r.life.state is s)) for r in registry.replicas for s in State],
    )
    gauge(
        "gateway_engine_signal",
        "What the engine last said of itself",
        ("replica", "signal"),
        lambda: [((r.id, s.value), v) for r in registry.replicas if r.reading for s, v in r.reading.values.items()],
    )
    gauge(
        "gateway_engine_signal_missing",
        "1 for a signal that the engine should give and does not",
        ("replica", "signal"),
        lambda: [((r.id, s.value), 1.0) for r in registry.replicas if r.reading for s in sorted(r.reading.missing)],
    )
    for name, meaning, read_origin in (
        ("gateway_discovery_age_seconds", "Since a source of engines was last read", core.fleet.discovery.ages),
        ("gateway_discovery_faults", "1 for a source of engines that cannot be read now", core.fleet.discovery.faults),
    ):
        gauge(name, meaning, ("source",), _by_source(read_origin))


def watch_certificate(metrics: Metrics, certificate: Certificate) -> None:
    """Until when clients will accept the listeners."""
    metrics.gauge(
        "gateway_certificate_expires_timestamp_seconds",
        "When the certificate of the listeners ends, in Unix seconds",
        (),
        lambda: [((), certificate.expires_at)],
    )


def watch_share(metrics: Metrics, share: LoadShare) -> None:
    """Gauges of what instances tell each other of their load."""
    for name, meaning, read in (
        ("gateway_load_share_age_seconds", "Since other instances were last asked for what they have", share.age),
        ("gateway_load_share_instances", "Other instances that have told what they have", lambda: share.instances),
        ("gateway_load_share_refused", "What others told and was not believed, since the start", lambda: share.refused),
    ):
        metrics.gauge(name, meaning, (), _single(read))


def _single(read: Callable[[], float]) -> GaugeReader:
    return lambda: [((), read())]


def _by_source(read: Callable[[], Mapping[str, float]]) -> GaugeReader:
    return lambda: [((name,), value) for name, value in read().items()]


_BY_REPLICA: tuple[tuple[str, str, Callable[[Replica], float]], ...] = (
    ("gateway_in_flight", "Requests in flight by replica", lambda replica: replica.in_flight),
    ("gateway_replica_room", "How many requests it may have at most, of this instance", lambda replica: replica.room),
    ("gateway_upstream_connections", "Open connections by replica", lambda replica: replica.open_connections),
    (
        "gateway_replica_share",
        "Part of a full share of traffic, below 1 in slow start",
        lambda replica: replica.share,
    ),
    (
        "gateway_replica_ejections",
        "Ejections that have not been forgiven",
        lambda replica: replica.life.ejections,
    ),
    (
        "gateway_engine_exposed",
        "Other addresses of this host at which the engine answers, around the gateway",
        lambda replica: len(replica.exposed),
    ),
)


def _watch_access(core: Core) -> None:
    gauge, policies, tokens = core.metrics.gauge, core.policies, core.tokens
    gauge(
        "gateway_policy_valid",
        "0 while the policy files hold faults and the last valid policy stands",
        (),
        lambda: [((), float(policies.valid))],
    )
    gauge("gateway_policy_epoch", "Policies put in force since the start", (), lambda: [((), policies.epoch)])
    gauge("gateway_policy_faults", "Policy files refused since the start", (), lambda: [((), policies.faults)])
    gauge(
        "gateway_store_age_seconds",
        "Since the state store was last heard of; revocations are not seen meanwhile",
        (),
        lambda: [((), core.keys.age())],
    )
    gauge(
        "gateway_issuer_keys_age_seconds",
        "Since an issuer's keys were last fetched",
        ("issuer",),
        lambda: [((name,), age) for name, age in tokens.ages().items()],
    )
