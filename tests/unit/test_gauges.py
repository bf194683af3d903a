"""What a scrape says of the fleet and of what else an instance stands on."""

from __future__ import annotations

import asyncio
import math
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway import errors, gauges
from gateway.admission.limit import UNLIMITED
from gateway.admission.outcomes import Outcome
from gateway.errors import CODES
from gateway.fleet.life import TRANSITIONS, Sign, State
from gateway.fleet.look import Seen
from gateway.fleet.registry import Registry
from gateway.fleet.replica import Replica
from gateway.fleet.signals import Reading, Signal
from gateway.identity.jwt import Reason
from gateway.model import AliasTable, EngineSpec, Priority, Revision, Target
from gateway.policy.fleet import FleetPolicy
from gateway.telemetry.metrics import Metrics
from gateway.wire.bodymemory import BodyMemory

ONE, TWO = "127.0.0.1:8001", "127.0.0.1:8002"
Samples = dict[tuple[str, ...], float]


class Site:
    """A core of which only what is scraped is there."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.now = loop.time
        self.metrics = Metrics()
        self.registry = Registry(self._make, FleetPolicy, now=loop.time)
        self.one, self.two = (self.registry.add(EngineSpec(f"http://{at}"), "configuration") for at in (ONE, TWO))
        self.ages, self.faults = {"dns": 3.0, "file": 0.5}, {"dns": 1, "file": 0}
        self.aliases = SimpleNamespace(table=AliasTable(7), degraded=True)
        discovery = SimpleNamespace(ages=lambda: self.ages, faults=lambda: self.faults)
        core: Any = SimpleNamespace(
            metrics=self.metrics,
            registry=self.registry,
            fleet=SimpleNamespace(discovery=discovery),
            gate=SimpleNamespace(depths=lambda: {("m", Priority.BULK): 3}),
            aliases=self.aliases,
            limits=SimpleNamespace(alone=lambda: True, dropped=lambda: 8),
            records=SimpleNamespace(dropped=2),
            policies=SimpleNamespace(valid=False, epoch=4, faults=5),
            keys=SimpleNamespace(age=lambda: 1.5),
            tokens=SimpleNamespace(ages=lambda: {"works": 9.0, "fails": math.inf}, faults=lambda: {"fails": "http"}),
        )
        listener: Any = SimpleNamespace(connections=11, bodies=BodyMemory(1_000))
        listener.bodies.take(30)
        gauges.watch(core, listener)

    def _make(self, spec: EngineSpec, origin: str, told: Any, spare: Any) -> Replica:
        link: Any = SimpleNamespace(close=lambda: None, give_up=lambda _: None, open_connections=6)
        return Replica(spec, lambda _: link, FleetPolicy, told, spare, origin=origin, now=self.now, random=lambda: 0.5)

    def scrape(self, name: str) -> Samples:
        """The values of a family, by its labels' values in the order of their names."""
        text = self.metrics.render().decode()
        families = [family for family in text_string_to_metric_families(text) if family.name == name]
        assert len(families) == 1
        assert families[0].documentation
        return {tuple(v for _, v in sorted(each.labels.items())): each.value for each in families[0].samples}


@pytest.fixture
def site() -> Any:
    """A site whose loop has ended: gauges are read without one."""

    async def make() -> Site:
        return Site()

    return asyncio.run(make())


def test_each_replica_is_in_exactly_one_state(site):
    site.two.take(Sign.HEALTHY)
    found = site.scrape("gateway_replica_state")
    assert found.keys() == {(at, state.value) for at in (ONE, TWO) for state in State}
    assert {key for key, value in found.items() if value} == {(ONE, "found"), (TWO, "warming")}
    assert set(found.values()) == {0.0, 1.0}


def test_what_is_counted_of_each_replica(site):
    for sign in (Sign.HEALTHY, Sign.WARM, Sign.FAILING):
        site.two.take(sign)
    site.one.enter()
    site.one.share, site.two.exposed = 0.25, ("10.0.0.1:8002", "10.0.0.2:8002")
    assert site.scrape("gateway_in_flight") == {(ONE,): 1.0, (TWO,): 0.0}
    site.one.bound(8)
    assert site.scrape("gateway_replica_room") == {(ONE,): 8.0, (TWO,): float(UNLIMITED)}
    assert site.scrape("gateway_upstream_connections") == {(ONE,): 6.0, (TWO,): 6.0}
    assert site.scrape("gateway_replica_share") == {(ONE,): 0.25, (TWO,): 1.0}
    assert site.scrape("gateway_replica_ejections") == {(ONE,): 0.0, (TWO,): 1.0}
    assert site.scrape("gateway_engine_exposed") == {(ONE,): 0.0, (TWO,): 2.0}


def test_signals_are_shown_as_last_seen_with_their_age_and_the_missing_ones_raise_a_flag(site):
    assert site.scrape("gateway_engine_signal") == site.scrape("gateway_engine_signal_missing") == {}
    assert site.scrape("gateway_engine_signals_age_seconds") == {(ONE,): math.inf, (TWO,): math.inf}
    values = MappingProxyType({Signal.RUNNING: 3.0, Signal.KV_USE: 0.5})
    site.one.reading, site.one.read_at = Reading(values, frozenset({Signal.WAITING})), site.now() - 5.0
    assert site.scrape("gateway_engine_signal") == {(ONE, "running"): 3.0, (ONE, "kv_use"): 0.5}
    assert site.scrape("gateway_engine_signal_missing") == {(ONE, "waiting"): 1.0}
    assert 5.0 <= site.scrape("gateway_engine_signals_age_seconds")[ONE,] < 60.0


def test_a_replica_that_is_forgotten_is_shown_no_more(site):
    site.registry.drop(site.one)
    for name in ("gateway_in_flight", "gateway_replica_share", "gateway_engine_signals_age_seconds"):
        assert site.scrape(name).keys() == {(TWO,)}
    assert {replica for replica, _ in site.scrape("gateway_replica_state")} == {TWO}


def test_sources_of_engines_say_how_old_their_word_is_and_whether_they_fail(site):
    assert site.scrape("gateway_discovery_age_seconds") == {("dns",): 3.0, ("file",): 0.5}
    assert site.scrape("gateway_discovery_faults") == {("dns",): 1.0, ("file",): 0.0}


def test_what_waits_is_counted_by_model_and_class(site):
    assert site.scrape("gateway_queue_depth") == {("m", "bulk"): 3.0}


def _leading(*targets: str) -> Revision:
    return Revision("general", 1, tuple(map(Target, targets)), "ops", 1.0)


def test_each_state_of_a_model_is_there_for_those_that_engines_serve_and_those_that_aliases_lead_to(site):
    site.one.seen, site.two.seen = Seen(("base", "adapter")), Seen(("base",))
    for sign in (Sign.HEALTHY, Sign.WARM):
        site.two.take(sign)
    site.aliases.table = AliasTable(1, {"general": _leading("base", "nowhere"), "other": _leading("base")})
    found = site.scrape("gateway_model_replicas")
    assert found.keys() == {(model, state.value) for model in ("base", "adapter", "nowhere") for state in State}
    assert {key: value for key, value in found.items() if value} == {
        ("base", "found"): 1.0,
        ("base", "ready"): 1.0,
        ("adapter", "found"): 1.0,
    }
    assert site.scrape("gateway_model_aliases") == {("base",): 2.0, ("nowhere",): 1.0}


def test_models_are_bounded_and_those_of_aliases_are_not_crowded_out(site):
    site.one.seen = Seen(tuple(f"adapter-{number}" for number in range(300)))
    site.aliases.table = AliasTable(1, {"general": _leading("zulu")})
    models = {model for model, _ in site.scrape("gateway_model_replicas")}
    assert len(models) == 256
    assert "zulu" in models
    many = {f"alias-{number}": _leading(f"model-{number}") for number in range(300)}
    site.aliases.table = AliasTable(2, many)
    assert len(site.scrape("gateway_model_aliases")) == 256
    assert len(site.scrape("gateway_model_replicas")) == 256 * len(State)


def test_counters_of_closed_sets_begin_at_zero(site):
    site.metrics.refusals.add("draining")
    assert site.scrape("gateway_refusals") == {(code,): float(code == "draining") for code in CODES}
    pairs = {(sign.value, after.value) for (_, sign), after in TRANSITIONS.items()}
    assert site.scrape("gateway_replica_transitions") == dict.fromkeys(pairs, 0.0)
    assert site.scrape("gateway_token_refusals") == {(reason.value,): 0.0 for reason in Reason}
    assert site.scrape("gateway_handshake_failures") == {(): 0.0}
    waits = {(outcome.value, priority.value) for outcome in Outcome for priority in Priority}
    assert site.scrape("gateway_queue_outcomes") == dict.fromkeys(waits, 0.0)


def test_every_way_in_which_an_engine_can_fail_is_counted_from_zero(site):
    reasons = {value.reason for value in vars(errors).values() if getattr(value, "reason", None)}
    assert len(reasons) > 8
    assert site.scrape("gateway_retries") == {(reason,): 0.0 for reason in reasons}


def test_what_was_counted_before_stays():
    metrics = Metrics()
    metrics.retries.add("reset")
    gauges.start_at_zero(metrics)
    assert metrics.retries.value("reset") == 1.0


def test_trials_that_ended_by_themselves_are_counted_from_zero():
    metrics = Metrics()
    trials: Any = SimpleNamespace(aborts={"general": 2, "other": 0})
    gauges.watch_trials(metrics, trials)
    page = metrics.render().decode()
    assert 'gateway_canary_aborts_total{alias="general"} 2.0' in page
    assert 'gateway_canary_aborts_total{alias="other"} 0.0' in page


def test_what_others_told_and_was_not_believed_is_a_counter():
    metrics = Metrics()
    share: Any = SimpleNamespace(age=lambda: 1.0, instances=2, refused=3)
    gauges.watch_share(metrics, share)
    assert "gateway_load_share_refused_total 3.0" in metrics.render().decode()


def test_the_rest_of_an_instance(site):
    names = {
        "gateway_client_connections": {(): 11.0},
        "gateway_body_memory_bytes": {(): 30.0},
        "gateway_body_memory_limit_bytes": {(): 1_000.0},
        "gateway_alias_generation": {(): 7.0},
        "gateway_alias_table_degraded": {(): 1.0},
        "gateway_record_drops": {(): 2.0},
        "gateway_policy_valid": {(): 0.0},
        "gateway_policy_changes": {(): 4.0},
        "gateway_policy_faults": {(): 5.0},
        "gateway_limits_alone": {(): 1.0},
        "gateway_limits_dropped": {(): 8.0},
        "gateway_store_age_seconds": {(): 1.5},
        "gateway_issuer_keys_age_seconds": {("works",): 9.0, ("fails",): math.inf},
        "gateway_issuer_keys_faults": {("works",): 0.0, ("fails",): 1.0},
    }
    assert {name: site.scrape(name) for name in names} == names
    counters = {"record_drops", "policy_changes", "policy_faults", "limits_dropped"}
    page = site.metrics.render().decode()
    assert all(f"# TYPE gateway_{name}_total counter" in page for name in counters)
