"""routing.yaml: the shipped file says the defaults, and every fault of a file is told at once."""

from __future__ import annotations

from dataclasses import fields
from importlib import resources

import pytest
import yaml

from gateway.policy.document import PolicyFault
from gateway.policy.fleet import FleetPolicy, Retries
from gateway.policy.routing import Canary, Routing, parse_routing

SHIPPED = resources.files("policies").joinpath("routing.yaml").read_text(encoding="utf-8")


def test_the_shipped_file_says_what_holds_without_it():
    assert parse_routing(SHIPPED, "routing.yaml") == parse_routing("", "routing.yaml") == Routing()


def test_what_is_written_counts():
    policy = parse_routing("canary: {abort: true, error_rate: 0.1, ttft_p95: 2}\nretries: {at_least: 0}", "x.yaml")
    assert policy == Routing(Canary(abort=True, error_rate=0.1, ttft_p95=2), FleetPolicy(retries=Retries(at_least=0)))


def test_the_shipped_file_shows_every_setting():
    tree = yaml.safe_load(SHIPPED)
    policy = Routing()
    for name, section in {"canary": policy.canary, **_fields(policy.fleet)}.items():
        assert list(tree[name]) == list(_fields(section))


def _fields(value):
    return {field.name: getattr(value, field.name) for field in fields(value)}


def test_every_fault_is_told_at_once_and_no_value_is_quoted():
    with pytest.raises(PolicyFault) as fault:
        parse_routing("canary: {abort: hunter2, error_rate: 7, nonsense: 1}\nmore: 2\nhealth: {hang: 0}", "x.yaml")
    assert {each.where for each in fault.value.faults} == {
        "canary.abort",
        "canary.error_rate",
        "canary.nonsense",
        "more",
        "health.hang",
    }
    assert "hunter2" not in str(fault.value)


@pytest.mark.parametrize("text", ["canary: {ttft_p95: 0.5}", "canary: {ttft_p95: .nan}", "canary: 1", "- a", "a: ["])
def test_what_is_no_policy_is_refused(text):
    with pytest.raises(PolicyFault):
        parse_routing(text, "x.yaml")
