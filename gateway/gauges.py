"""What is read when a scrape comes: how the instance stands at that moment, and what others have counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping

from gateway.admission.outcomes import Outcome
from gateway.core import Core
from gateway.errors import CODES, EngineFailure
from gateway.fleet.life import TRANSITIONS, State
from gateway.fleet.replica import Replica
from gateway.identity.jwt import Reason
from gateway.loadshare import LoadShare
from gateway.model import Priority
from gateway.server import Listener
from gateway.telemetry.metrics import Metrics, Reader
from gateway.trial import Trials
from gateway.wire.certificate import Certificate

_MOST_MODELS = 256


def watch(core: Core, inference: Listener) -> None:
    """What every instance shows, read when a scrape comes."""
    gauge = core.metrics.gauge
    start_at_zero(core.metrics)
    _watch_fleet(core)
    _watch_models(core)
    gauge(
        "gateway_queue_depth",
        "Requests that wait in the gateway's queue for a place at a replica",
        ("model", "priority"),
        lambda: [((model, priority), count) for (model, priority), count in core.gate.depths().items()],
    )
    for name, meaning, read in (
        (
            "gateway_client_connections",
            "Open client connections of the inference listener",
            lambda: inference.connections,
        ),
        (
            "gateway_body_memory_bytes",
            "Bytes of request bodies that the inference listener holds",
            lambda: inference.bodies.held,
        ),
        (
            "gateway_body_memory_limit_bytes",
            "How many it may hold; what comes beyond them is refused",
            lambda: inference.bodies.whole,
        ),
    ):
        gauge(name, meaning, (), _single(read))
    _watch_access(core)
    _watch_standing(core)


def start_at_zero(metrics: Metrics) -> None:
    """Have counters of closed sets begin at 0: of a series that begins at 1, ``increase()`` never sees the first."""
    counters = (
        (metrics.refusals, [(code,) for code in CODES]),
        (metrics.retries, [(reason,) for reason in sorted(_reasons(EngineFailure))]),
        (metrics.token_refusals, [(reason.value,) for reason in Reason]),
        (metrics.transitions, [(sign.value, after.value) for (_, sign), after in TRANSITIONS.items()]),
        (metrics.queue_outcomes, [(priority.value, outcome.value) for priority in Priority for outcome in Outcome]),
        (metrics.strangers, [()]),
    )
    for counter, cells in counters:
        for labels in cells:
            counter.add(*labels, amount=0.0)


def _reasons(failure: type[EngineFailure]) -> set[str]:
    """How an engine can fail: the reasons of a class of failures and of those derived from it."""
    return {failure.reason}.union(*map(_reasons, failure.__subclasses__()))


def _watch_fleet(core: Core) -> None:
    gauge, registry, loop = core.metrics.gauge, core.registry, asyncio.get_running_loop()

    def by_replica(read: Callable[[Replica], float]) -> Reader:
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


def _watch_models(core: Core) -> None:
    registry, aliases = core.registry, core.aliases

    def leading() -> dict[str, int]:
        """How many aliases lead to each model that one leads to."""
        targets = (target.model for revision in aliases.table.current.values() for target in revision.targets)
        return dict(Counter(targets).most_common(_MOST_MODELS))

    def replicas() -> list[tuple[tuple[str, ...], float]]:
        found = Counter((model, each.life.state) for each in registry.replicas for model in each.seen.models)
        models = dict.fromkeys((*leading(), *registry.listed_models()))
        return [((model, state.value), found[model, state]) for model in [*models][:_MOST_MODELS] for state in State]

    core.metrics.gauge(
        "gateway_model_replicas",
        f"Replicas by served model and state, of {_MOST_MODELS} models at most, those of aliases first",
        ("model", "state"),
        replicas,
    )
    core.metrics.gauge(
        "gateway_model_aliases",
        "Aliases that lead to a model; where there is none, callers cannot ask for it",
        ("model",),
        lambda: [((model,), count) for model, count in leading().items()],
    )


def watch_trials(metrics: Metrics, trials: Trials) -> None:
    """What became of trials without anybody's doing."""
    metrics.counter(
        "gateway_canary_aborts",
        "Trials (canaries) that this instance ended by itself",
        ("alias",),
        lambda: [((alias,), count) for alias, count in trials.aborts.items()],
    )


def watch_certificate(metrics: Metrics, certificate: Certificate) -> None:
    """Until when clients will accept the listeners."""
    metrics.gauge(
        "gateway_certificate_expires_timestamp_seconds",
        "When the certificate of the listeners ends, in Unix seconds",
        (),
        lambda: [((), certificate.expires_at)],
    )


def watch_share(metrics: Metrics, share: LoadShare) -> None:
    """What instances tell each other of their load."""
    for name, meaning, read in (
        ("gateway_load_share_age_seconds", "Since other instances were last asked for what they have", share.age),
        ("gateway_load_share_instances", "Other instances that have told what they have", lambda: share.instances),
    ):
        metrics.gauge(name, meaning, (), _single(read))
    metrics.counter(
        "gateway_load_share_refused",
        "Reports and hints of others that were not believed",
        (),
        _single(lambda: share.refused),
    )


def _single(read: Callable[[], float]) -> Reader:
    return lambda: [((), read())]


def _by_source(read: Callable[[], Mapping[str, float]]) -> Reader:
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
    gauge, counter, policies, tokens = core.metrics.gauge, core.metrics.counter, core.policies, core.tokens
    gauge(
        "gateway_policy_valid",
        "0 while the policy files hold faults and the last valid policy stands",
        (),
        _single(lambda: float(policies.valid)),
    )
    counter("gateway_policy_changes", "Policies put in force after the first", (), _single(lambda: policies.epoch))
    counter("gateway_policy_faults", "Policy files that were refused", (), _single(lambda: policies.faults))
    gauge(
        "gateway_issuer_keys_age_seconds",
        "Since an issuer's keys were last fetched",
        ("issuer",),
        lambda: [((name,), age) for name, age in tokens.ages().items()],
    )
    gauge(
        "gateway_issuer_keys_faults",
        "1 for an issuer whose keys could not be fetched when that was last tried",
        ("issuer",),
        lambda: [((name,), float(name in faults)) for faults in [tokens.faults()] for name in tokens.ages()],
    )


def _watch_standing(core: Core) -> None:
    """What the instance has of the store, and what it could not get rid of."""
    gauge, counter, aliases, limits = core.metrics.gauge, core.metrics.counter, core.aliases, core.limits
    gauge(
        "gateway_alias_generation",
        "Generation of the alias table in use",
        (),
        _single(lambda: aliases.table.generation),
    )
    gauge(
        "gateway_alias_table_degraded",
        "1 while the alias table is the one that was kept, because the store was not read since the start",
        (),
        _single(lambda: float(aliases.degraded)),
    )
    gauge(
        "gateway_store_age_seconds",
        "Since the state store was last heard of; revocations are not seen meanwhile",
        (),
        _single(core.keys.age),
    )
    gauge(
        "gateway_limits_alone",
        "1 while the store of limits is lost and the instance grants its share of them",
        (),
        _single(lambda: float(limits.alone())),
    )
    counter(
        "gateway_limits_dropped",
        "Corrections and releases of limits that were lost while their store was",
        (),
        _single(limits.dropped),
    )
    counter("gateway_record_drops", "Request records that were lost", (), _single(lambda: core.records.dropped))
