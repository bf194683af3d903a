"""Replicas as they are shown."""

from __future__ import annotations

from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from gateway.admin.fleetshow import FleetHandle, replica_view, source_views
from gateway.admin.fleetviews import FleetPaging
from gateway.fleet.engines.vllm import VLLM
from gateway.fleet.life import Sign
from gateway.fleet.look import Seen
from gateway.fleet.replica import Replica
from gateway.fleet.signals import Reading, Signal
from gateway.model import EngineOrder, EngineOrders, EngineSpec
from gateway.policy.fleet import FleetPolicy


def made(url: str = "http://127.0.0.1:8001", origin: str = "configuration", **spec: Any) -> Replica:
    return Replica(
        EngineSpec(url, **spec),
        lambda _: SimpleNamespace(close=lambda: None),
        FleetPolicy,
        lambda _: None,
        lambda _: True,
        origin=origin,
        now=lambda: 100.0,
        random=lambda: 0.5,
        wall=lambda: 5_000.0,
    )


def ready(replica: Replica) -> Replica:
    for sign in (Sign.HEALTHY, Sign.WARM):
        assert replica.take(sign, "as told")
    return replica


def test_a_replica_that_nobody_has_met():
    view = replica_view(made(), None, 100.0)
    assert (view.state, view.since, view.reason, view.prospect) == ("found", 5_000.0, "", "an answer at its address")
    assert (view.signals, view.signals_age, view.missing, view.room, view.back_in) == ({}, None, [], None, None)
    assert (view.id, view.engine, view.drain) == ("127.0.0.1:8001", "generic", None)


def test_a_replica_that_serves():
    replica = ready(made("https://10.0.0.7:8443", "dns", labels={"gpu": "a100"}, server_name="gpu.example"))
    replica.adapter, replica.seen = VLLM, Seen(("model-a", "model-b"), 4_096, "0.32.0", "vllm")
    replica.reading = Reading(MappingProxyType({Signal.RUNNING: 3.0}), frozenset({Signal.WAITING, Signal.KV_USE}))
    replica.read_at, replica.exposed, replica.in_flight = 98.5, ("192.0.2.1:8443",), 2
    view = replica_view(replica, None, 100.0)
    assert (view.state, view.reason, view.origin, view.server_name) == ("ready", "as told", "dns", "gpu.example")
    assert (view.engine, view.version, view.models, view.max_model_len) == (
        "vllm",
        "0.32.0",
        ["model-a", "model-b"],
        4_096,
    )
    assert (view.signals, view.signals_age, view.missing) == ({"running": 3.0}, 1.5, ["kv_use", "waiting"])
    assert (view.exposed, view.in_flight, view.labels) == (["192.0.2.1:8443"], 2, {"gpu": "a100"})


def test_an_ejected_replica_says_when_it_may_be_tried():
    replica = ready(made())
    replica.take(Sign.FAILING, "three failures in a row")
    view = replica_view(replica, None, 100.0)
    assert (view.state, view.ejections) == ("ejected", 1)
    assert view.back_in == pytest.approx(replica.life.until - 100.0)
    assert replica_view(replica, None, replica.life.until + 5).back_in == 0.0
    replica.take(Sign.RESTED)
    assert replica_view(replica, None, 100.0).room == 1


def test_only_an_order_that_drains_is_a_drain():
    added = EngineOrder("http://127.0.0.1:8001", added=True, author="ops", at=5.0)
    drained = EngineOrder("http://127.0.0.1:8001", draining=True, author="ops", at=5.0, note="why")
    assert replica_view(made(), added, 0.0).drain is None
    drain = replica_view(made(), drained, 0.0).drain
    assert drain is not None
    assert (drain.author, drain.at, drain.note) == ("ops", 5.0, "why")


def test_a_reason_as_long_as_a_list_of_models_is_cut():
    replica = made()
    replica.take(Sign.HEALTHY, "serves " + ", ".join(["m" * 256] * 256))
    assert len(replica_view(replica, None, 0.0).reason) == 300


def test_pages_have_each_replica_once_by_url():
    ports = [*range(8000, 8250)]
    replicas = [made(f"http://127.0.0.1:{port}") for port in reversed(ports)]
    handle, seen, after = FleetHandle(replicas=lambda: replicas), [], ""
    while after is not None:
        page = handle.page(EngineOrders(3), FleetPaging(after=after))
        assert len(page.replicas) <= 100
        assert (page.watched, page.generation) == (True, 3)
        seen += [one.url for one in page.replicas]
        after = page.next
    assert seen == [f"http://127.0.0.1:{port}" for port in ports]
    assert handle.page(None, FleetPaging(limit=100, after="z")).next is None


def test_orders_about_others_are_listed_with_what_is_against_them():
    urls = ("http://127.0.0.1:8001", "https://gpu.example:443", "https://listed.example:443", "http://127.0.0.1:9")
    orders = EngineOrders(1, {url: EngineOrder(url, added=url.startswith("https"), draining=True) for url in urls})
    handle = FleetHandle(replicas=lambda: [made()], remote=("listed.example",))
    page = handle.page(orders, FleetPaging())
    assert [(one.url, bool(one.fault)) for one in page.orders] == [
        ("https://gpu.example:443", True),
        ("https://listed.example:443", False),
        ("http://127.0.0.1:9", False),
    ]
    assert handle.page(None, FleetPaging()).generation is None
    assert handle.page(None, FleetPaging()).orders == []


def test_what_is_listed_and_what_leaves():
    stays, leaves = made(), made("http://127.0.0.1:9", "dns")
    leaves.removed = True
    handle = FleetHandle(replicas=lambda: [stays, leaves], remote=("h",))
    assert handle.listed().origins == {stays.spec.url: "configuration"}
    assert (handle.listed().leaving, handle.listed().remote) == ([leaves.spec.url], ("h",))
    assert handle.find("127.0.0.1:9") is leaves
    assert FleetHandle().find("127.0.0.1:9") is None
    assert FleetHandle().page(EngineOrders(), FleetPaging()).replicas == []


def test_what_is_wrong_with_a_source_is_told_in_its_words():
    fine, bad = source_views({"dns": 13.0, "file": 13.1}, {"file": 1}, {"file": "engines.yaml: is no YAML"})
    assert (fine.kind, fine.faults, fine.trouble) == ("dns", 0, "")
    assert (bad.kind, bad.faults, bad.trouble) == ("file", 1, "engines.yaml: is no YAML")
