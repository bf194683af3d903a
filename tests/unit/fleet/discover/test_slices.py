"""What EndpointSlices say, well-formed and not."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.fleet.discover.slices import MAX_SLICES, changed, engines_of, read_slice, version_of
from gateway.fleet.discover.sources import MAX_ENGINES, DiscoveryFault
from gateway.model import EngineSpec


def endpoint(address: str = "10.0.0.1", **conditions: Any) -> dict[str, Any]:
    return {"addresses": [address], "conditions": conditions}


def piece(*endpoints: Any, name: str = "nodes-x", **more: Any) -> dict[str, Any]:
    ports = [{"name": "https", "port": 8443, "protocol": "TCP"}]
    return {"metadata": {"name": name}, "addressType": "IPv4", "endpoints": list(endpoints), "ports": ports, **more}


@pytest.mark.parametrize(
    ("conditions", "counts"),
    [
        ({"ready": True}, True),
        ({"ready": True, "serving": True, "terminating": False}, True),
        ({"ready": False}, False),
        ({"ready": False, "serving": True, "terminating": True}, False),
        ({"ready": True, "serving": True, "terminating": True}, False),  # publishNotReadyAddresses
        ({"ready": True, "serving": False}, False),  # publishNotReadyAddresses
        ({}, True),
        ({"ready": None, "serving": None, "terminating": None}, True),
    ],
)
def test_ready_endpoints_count_and_terminating_ones_leave(conditions, counts):
    _, places = read_slice(piece(endpoint(**conditions)), 8443)
    assert places == ({("10.0.0.1", 8443)} if counts else set())


def test_conditions_may_be_missing_and_only_the_first_address_counts():
    assert read_slice(piece({"addresses": ["10.0.0.1", "10.0.0.2"]}), 1) == ("nodes-x", {("10.0.0.1", 1)})


def test_a_port_by_name_is_the_slices_own():
    assert read_slice(piece(endpoint()), "https")[1] == {("10.0.0.1", 8443)}
    assert read_slice(piece(endpoint()), "grpc")[1] == set()
    for ports in (
        None,
        [],
        [{"name": "https"}],
        [{"name": "https", "port": True}],
        [{"name": "https", "port": 0}],
        [7],
    ):
        assert read_slice(piece(endpoint(), ports=ports), "https")[1] == set()


def test_names_as_addresses_are_not_believed():
    assert read_slice(piece(endpoint("attacker.example"), addressType="FQDN"), 1)[1] == set()


@pytest.mark.parametrize(
    "item",
    [
        None,
        [],
        "x",
        {},
        {"metadata": {}},
        {"metadata": {"name": 7}},
        piece(None),
        piece("x"),
        piece({}),
        piece({"addresses": []}),
        piece({"addresses": [7]}),
        piece({"addresses": "10.0.0.1"}),
        piece({"addresses": ["10.0.0.1"], "conditions": []}),
        {**piece(), "endpoints": {}},
    ],
)
def test_what_is_no_slice_is_a_fault(item):
    with pytest.raises(DiscoveryFault, match="does not answer as the Kubernetes API does"):
        read_slice(item, 8443)


def test_a_slice_without_endpoints_is_one():
    assert read_slice({**piece(), "endpoints": None}, 8443) == ("nodes-x", frozenset())


def test_slices_come_change_and_go():
    slices = changed({}, "ADDED", piece(endpoint(), name="a"), 1)
    slices = changed(slices, "ADDED", piece(endpoint("10.0.0.2"), name="b"), 1)
    slices = changed(slices, "MODIFIED", piece(endpoint("10.0.0.3"), name="a"), 1)
    assert slices == {"a": {("10.0.0.3", 1)}, "b": {("10.0.0.2", 1)}}
    slices = changed(slices, "DELETED", piece(name="b"), 1)
    assert slices == {"a": {("10.0.0.3", 1)}}
    assert changed(slices, "DELETED", piece(name="b"), 1) == slices
    for kind in ("PATCHED", None, 7):
        with pytest.raises(DiscoveryFault):
            changed(slices, kind, piece(), 1)


def test_engines_are_those_of_all_slices_each_once():
    one, two = frozenset({("10.0.0.2", 2), ("10.0.0.1", 2)}), frozenset({("10.0.0.1", 2), ("10.0.0.1", 1)})
    assert [spec.url for spec in engines_of([one, two], "nodes.serving.svc")] == [
        "https://10.0.0.1:1",
        "https://10.0.0.1:2",
        "https://10.0.0.2:2",
    ]
    assert engines_of([one], "n.s.svc")[0] == EngineSpec("https://10.0.0.1:2", server_name="n.s.svc")
    assert engines_of([], "n.s.svc") == ()


def test_an_endpoint_on_this_host_is_not_believed():
    with pytest.raises(DiscoveryFault, match="loopback"):
        engines_of([frozenset({("127.0.0.1", 6443)})], "nodes.serving.svc")


def test_slices_and_endpoints_have_a_number():
    slices = {str(n): frozenset[tuple[str, int]]() for n in range(MAX_SLICES)}
    with pytest.raises(DiscoveryFault, match="more than 1024 slices"):
        changed(slices, "ADDED", piece(name="one more"), 1)
    assert len(changed(slices, "MODIFIED", piece(name="7"), 1)) == MAX_SLICES
    places = frozenset((f"10.0.{n // 256}.{n % 256}", 1) for n in range(MAX_ENGINES + 1))
    with pytest.raises(DiscoveryFault, match="more than 1024 endpoints"):
        engines_of([places], "nodes.serving.svc")


def test_a_version_is_a_text():
    assert version_of({"metadata": {"resourceVersion": "7"}}) == "7"
    for item in (None, {}, {"metadata": {"resourceVersion": 7}}, {"metadata": []}):
        with pytest.raises(DiscoveryFault):
            version_of(item)
