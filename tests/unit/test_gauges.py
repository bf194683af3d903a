"""What a scrape says of the fleet and of what else an instance stands on."""

from __future__ import annotations

import asyncio
import math
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway import gauges
from gateway.admission.limit import UNLIMITED
from gateway.fleet.life import Sign, State
from gateway.fleet.registry import Registry
from gateway.fleet.replica import Replica
from gateway.fleet.signals import Reading, Signal
from gateway.model import EngineSpec, Priority
from gateway.policy.fleet import FleetPolicy
from gateway.telemetry.metrics import Metrics

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
        discovery = SimpleNamespace(ages=lambda: self.ages, faults=lambda: self.faults)
        core: Any = SimpleNamespace(
            metrics=self.metrics,
            registry=self.registry,
            fleet=SimpleNamespace(discovery=discovery),
            gate=SimpleNamespace(depths=lambda: {("m", Priority.BULK): 3}),
            aliases=SimpleNamespace(table=SimpleNamespace(generation=7)),
            records=SimpleNamespace(dropped=2),
            policies=SimpleNamespace(valid=False, epoch=4, faults=5),
            keys=SimpleNamespace(age=lambda: 1.5),
            tokens=SimpleNamespace(ages=lambda: {"https://issuer.example": 9.0}),
        )
        listener: Any = SimpleNamespace(connections=11)
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


def test_the_rest_of_an_instance(site):
    names = {
        "gateway_client_connections": {(): 11.0},
        "gateway_alias_generation": {(): 7.0},
        "gateway_record_drops": {(): 2.0},
        "gateway_policy_valid": {(): 0.0},
        "gateway_policy_epoch": {(): 4.0},
        "gateway_policy_faults": {(): 5.0},
        "gateway_store_age_seconds": {(): 1.5},
        "gateway_issuer_keys_age_seconds": {("https://issuer.example",): 9.0},
    }
    assert {name: site.scrape(name) for name in names} == names
