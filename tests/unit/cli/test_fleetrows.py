"""Replicas, orders and what is to be said of them, in words."""

from __future__ import annotations

from typing import Any

from gateway.admin.fleetviews import DrainView, FleetList, OrderView, ReplicaView, SourceView
from gateway.cli.fleetrows import (
    COLUMNS,
    few,
    order_cells,
    outlook,
    remarks,
    replica_cells,
    replica_fields,
    warnings,
    why,
)

BASE: dict[str, Any] = {
    "id": "127.0.0.1:8001",
    "url": "http://127.0.0.1:8001",
    "server_name": None,
    "origin": "configuration",
    "labels": {},
    "state": "ready",
    "since": 0.0,
    "reason": "its warmup has settled",
    "remark": "",
    "prospect": "a drain",
    "engine": "vllm",
    "version": "0.32.0",
    "verdict": "",
    "warmth": "",
    "models": ["model-a"],
    "max_model_len": 4_096,
    "in_flight": 2,
    "room": None,
    "share": 1.0,
    "ejections": 0,
    "back_in": None,
    "exposed": [],
    "drain": None,
    "removed": False,
    "signals": {"running": 3.0, "waiting": 1.0, "kv_use": 0.25},
    "signals_age": 0.5,
    "missing": [],
}


def view(**more: Any) -> ReplicaView:
    return ReplicaView(**{**BASE, **more})


def fleet(*replicas: ReplicaView, **more: Any) -> FleetList:
    values = {"watched": True, "generation": 1, "next": None, "sources": [], "orders": [], **more}
    return FleetList(replicas=list(replicas), **values)


def test_a_replica_is_a_row():
    assert replica_cells(view()) == (
        "127.0.0.1:8001",
        "ready",
        "1970-01-01 00:00:00Z",
        "model-a",
        "2",
        "3",
        "1",
        "25%",
        "its warmup has settled; next: a drain",
    )
    assert len(replica_cells(view())) == len(COLUMNS)
    unknown = replica_cells(view(models=[], signals={}, signals_age=None, reason=""))
    assert unknown[3:] == ("-", "2", "-", "-", "-", "-; next: a drain")


def test_an_order_is_a_row_as_long():
    order = OrderView(
        id="gpu.example:443",
        url="https://gpu.example:443",
        added=True,
        draining=True,
        labels={},
        author="ops",
        at=0.0,
        note="new",
        fault="",
    )
    cells = order_cells(order)
    assert len(cells) == len(COLUMNS)
    assert cells[:3] == ("gpu.example:443", "ordered", "1970-01-01 00:00:00Z")
    assert cells[-1] == "added and drained by ops at 1970-01-01 00:00:00Z: new"
    refused = order.model_copy(update={"fault": "expected it to be listed", "note": "", "draining": False})
    assert order_cells(refused)[-1] == ("added by ops at 1970-01-01 00:00:00Z; not used here: expected it to be listed")


def test_why_and_what_next():
    assert why(view(remark="it sleeps")) == "its warmup has settled (last seen: it sleeps)"
    assert why(view(remark="its warmup has settled")) == "its warmup has settled"
    assert why(view(reason="", remark="it sleeps")) == "it sleeps"
    assert outlook(view(back_in=4.6)) == "a drain (in 5 s)"
    assert outlook(view(back_in=0.0)) == "a drain (its time is over)"
    assert "listed no more" in outlook(view(removed=True, back_in=3.0))
    assert few(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert few(["a", "b", "c"]) == "a, b, c"


def test_all_that_is_known_is_shown():
    drain = DrainView(author="ops", at=0.0, note="new driver")
    fields = dict(replica_fields(view(drain=drain, labels={"gpu": "a100"}, removed=True, room=1, server_name="h")))
    assert fields["drain"] == "by ops at 1970-01-01 00:00:00Z: new driver"
    assert (fields["labels"], fields["listed in"], fields["room"]) == ("gpu=a100", "configuration, no more", "1")
    assert (fields["url"], fields["engine"]) == ("http://127.0.0.1:8001 (certificate of h)", "vllm 0.32.0")
    assert (fields["signal kv_use"], fields["signals seen"]) == ("0.25", "0 s ago")
    bare = dict(replica_fields(view(version=None, signals={}, signals_age=None, max_model_len=None)))
    assert (bare["engine"], bare["context"], bare["drain"], bare["room"]) == ("vllm", "-", "-", "no bound")
    assert "signals seen" not in bare


def test_an_engine_that_is_exposed_is_warned_of_first_and_loudly():
    quiet = view(id="127.0.0.1:1", missing=["kv_use"], verdict="its version is old")
    loud = view(id="127.0.0.1:2", exposed=["192.0.2.1:8001"])
    lines = remarks(fleet(quiet, loud))
    assert lines[0].startswith("WARNING: the engine of 127.0.0.1:2 also answers at 192.0.2.1:8001")
    assert "--host 127.0.0.1" in lines[0]
    assert [line for line in lines[1:] if line.startswith("WARNING")] == []
    assert "127.0.0.1:1: its version is old." in lines
    assert any("does not give kv_use" in line for line in lines)
    assert remarks(fleet(view())) == []


def test_old_signals_are_told_of_a_replica_that_serves_by_them():
    assert "its signals are 16 s old" in warnings(view(signals_age=16.0))[0]
    assert warnings(view(signals_age=14.0)) == []
    assert warnings(view(signals_age=99.0, state="gone")) == []
    assert warnings(view(signals={}, signals_age=None)) == []


def test_what_is_said_of_a_fleet_without_a_ready_replica():
    assert "every request is refused with 503" in remarks(fleet(view(state="ejected")))[0]
    assert remarks(fleet(view(state="ejected"), view(state="probation"))) == []
    assert "'gateway fleet add URL'" in remarks(fleet())[0]
    (alone,) = remarks(fleet(watched=False))
    assert "No gateway was asked" in alone


def test_sources_and_a_store_that_fail_are_told():
    sources = [
        SourceView(kind="dns", age=99.0, faults=7, trouble="not believed for 99 s"),
        SourceView(kind="file", age=1.0, faults=2, trouble=""),
    ]
    lines = remarks(fleet(view(), sources=sources, generation=None))
    assert lines == [
        "Engines from dns: not believed for 99 s.",
        "The state store cannot be read now: orders are not shown. Those that are known stand.",
    ]
