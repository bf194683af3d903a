"""Different schemas in a time, per tenant, and what of a request is one."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import Refusal
from gateway.model import InferenceRequest
from gateway.policy.schemacap import SchemaCap, schema_digests
from gateway.routes import ROUTES


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def refused(cap: SchemaCap, tenant: str, digest: bytes) -> Refusal:
    with pytest.raises(Refusal) as caught:
        cap.admit(tenant, digest)
    return caught.value


def test_one_schema_may_be_used_for_ever() -> None:
    cap = SchemaCap(1, 3600, Clock())
    for _ in range(1000):
        cap.admit("a", b"1")


def test_one_too_many_is_refused_until_the_oldest_use_is_over() -> None:
    clock = Clock()
    cap = SchemaCap(2, 3600, clock)
    cap.admit("a", b"1")
    clock.now += 600
    cap.admit("a", b"2")
    refusal = refused(cap, "a", b"3")
    assert (refusal.spec.code, refusal.spec.status, refusal.retry_after) == ("rate_limited", 429, 3000)
    cap.admit("b", b"3")  # another tenant's
    clock.now += 400
    cap.admit("a", b"1")  # used anew: now the other is the oldest
    assert refused(cap, "a", b"3").retry_after == 3200
    clock.now += 3199.5
    assert refused(cap, "a", b"3").retry_after == 1
    clock.now += 0.5
    cap.admit("a", b"3")
    assert refused(cap, "a", b"2").retry_after == 400


def test_a_refused_schema_takes_no_place() -> None:
    clock = Clock()
    cap = SchemaCap(1, 10, clock)
    cap.admit("a", b"1")
    clock.now += 9
    refused(cap, "a", b"2")
    clock.now += 1
    cap.admit("a", b"3")


def test_a_limit_that_policy_lowers_holds_at_once() -> None:
    cap = SchemaCap(3, 3600, Clock())
    for digest in (b"1", b"2"):
        cap.admit("a", digest)
    cap.limit = 1
    refused(cap, "a", b"3")
    cap.admit("a", b"1")
    cap.limit = 3
    cap.admit("a", b"3")


def test_memory_is_bounded_by_tenants_seen_last() -> None:
    cap = SchemaCap(1, 3600, Clock(), tenants=2)
    cap.admit("a", b"1")
    cap.admit("b", b"1")
    cap.admit("a", b"1")
    cap.admit("c", b"1")  # b is forgotten, not a
    refused(cap, "a", b"2")
    cap.admit("b", b"2")


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def digests(path: str = "/v1/chat/completions", **payload: Any) -> list[bytes]:
    return schema_digests(InferenceRequest(ROUTES["POST", path], "m", payload))


def test_a_schema_is_the_same_wherever_it_stands() -> None:
    one = digests(structured_outputs={"json": SCHEMA})
    assert len(one) == 1
    assert len(one[0]) == 16
    assert digests(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}) == one
    assert digests(tools=[{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]) == one
    assert digests("/v1/responses", tools=[{"type": "function", "name": "f", "parameters": SCHEMA}]) == one
    assert digests("/v1/responses", text={"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}) == one
    assert digests("/v1/messages", tools=[{"name": "f", "input_schema": SCHEMA}]) == one
    assert digests("/v1/messages", output_config={"format": {"type": "json_schema", "schema": SCHEMA}}) == one


def test_each_schema_of_a_request_counts() -> None:
    tools = [{"type": "function", "function": {"name": f"f{n}", "parameters": {"minimum": n}}} for n in range(3)]
    found = digests(tools=tools, structured_outputs={"choice": ["a", "b"]})
    assert len(set(found)) == 4
    assert digests(structured_outputs={"choice": ["b", "a"]}) != digests(structured_outputs={"choice": ["a", "b"]})


def test_requests_without_a_schema() -> None:
    assert digests(messages=[]) == []
    assert digests(tools=None, text=None, response_format={"type": "json_object"}, structured_outputs={}) == []
    assert digests(tools=[{"type": "function", "function": {"name": "f"}}], text={"verbosity": "low"}) == []
