"""routing.yaml: the shipped file says the defaults, and every fault of a file is told at once."""

from __future__ import annotations

from importlib import resources

import pytest

from gateway.policy.document import PolicyFault
from gateway.policy.routing import Canary, Routing, parse_routing

SHIPPED = resources.files("policies").joinpath("routing.yaml").read_text(encoding="utf-8")


def test_the_shipped_file_says_what_holds_without_it():
    assert parse_routing(SHIPPED, "routing.yaml") == parse_routing("", "routing.yaml") == Routing()


def test_what_is_written_counts():
    policy = parse_routing("canary: {abort: true, error_rate: 0.1, ttft_p95: 2}", "x.yaml")
    assert policy == Routing(Canary(abort=True, error_rate=0.1, ttft_p95=2))


def test_every_fault_is_told_at_once_and_no_value_is_quoted():
    with pytest.raises(PolicyFault) as fault:
        parse_routing("canary: {abort: hunter2, error_rate: 7, nonsense: 1}\nmore: 2", "x.yaml")
    assert {each.where for each in fault.value.faults} == {
        "canary.abort",
        "canary.error_rate",
        "canary.nonsense",
        "more",
    }
    assert "hunter2" not in str(fault.value)


@pytest.mark.parametrize("text", ["canary: {ttft_p95: 0.5}", "canary: {ttft_p95: .nan}", "canary: 1", "- a", "a: ["])
def test_what_is_no_policy_is_refused(text):
    with pytest.raises(PolicyFault):
        parse_routing(text, "x.yaml")
