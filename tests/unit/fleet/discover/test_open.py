"""From settings to sources."""

from __future__ import annotations

import sys
from pathlib import Path

from gateway.configvalues import Address, Pods
from gateway.fleet.discover.kubernetes import KubernetesSource
from gateway.fleet.discover.open import open_sources
from gateway.model import EngineSpec
from gateway.settings import DiscoverySettings, Settings

EVERYTHING = DiscoverySettings(
    file=Path("engines.yaml"),
    dns=(Address("a.test", 1), Address("localhost", 2)),
    srv=("_https._tcp.b.test",),
    kubernetes=Pods("serving", "nodes", "https"),
)


def settings(discovery: DiscoverySettings, *engines: EngineSpec) -> Settings:
    return Settings("sqlite:///x", Path("x"), Path("p"), engines=engines, discovery=discovery)


def test_sources_come_in_the_order_in_which_they_count():
    sources = open_sources(settings(EVERYTHING, EngineSpec("http://127.0.0.1:1")), {})
    assert [(str(source.name), source.place) for source in sources] == [
        ("configuration", "engines"),
        ("file", "engines.yaml"),
        ("dns", "a.test:1"),
        ("dns", "localhost:2"),
        ("dns", "_https._tcp.b.test"),
        ("kubernetes", "serving/nodes:https"),
    ]
    assert isinstance(sources[-1], KubernetesSource)


def test_nothing_set_is_no_source_and_asks_for_no_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gateway.fleet.discover.srv", None)
    assert open_sources(settings(DiscoverySettings()), {}) == ()
