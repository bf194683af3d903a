"""Gauges that are read when a scrape comes: how the instance stands at that moment."""

from __future__ import annotations

from gateway.core import Core
from gateway.fleet.replica import State
from gateway.server import Listener


def watch(core: Core, inference: Listener) -> None:
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
    _watch_access(core)
    gauge("gateway_record_drops", "Records lost since the start", (), lambda: [((), core.records.dropped)])


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
