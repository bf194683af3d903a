"""The sections of routing.yaml that say how replicas are looked after."""

from __future__ import annotations

from dataclasses import fields

import pytest

from gateway.policy.document import PolicyFault
from gateway.policy.fleet import FLEET_SECTIONS, Breaker, FleetPolicy, Health, Retries, Shape, Warmup
from gateway.policy.routing import parse_routing


def parse(text):
    return parse_routing(text, "routing.yaml").fleet


def faults(text):
    with pytest.raises(PolicyFault) as found:
        parse(text)
    return {(fault.where, fault.line) for fault in found.value.faults}


def test_what_is_not_written_has_the_default():
    assert parse("") == parse("{warmup: {}, health: {}, breaker: {}, retries: {}}") == FleetPolicy()


def test_the_sections_are_the_fields_of_the_policy():
    assert tuple(field.name for field in fields(FleetPolicy)) == FLEET_SECTIONS


def test_what_is_written_counts():
    written = parse(
        """
        warmup:
          shapes: [{prompt: 7}, {context: 0.5, output: 1}]
          concurrency: 4
          ratio: 2
          rounds: 3
          limit: 60
          unsettled: hold
          slow_start: 0
        health: {misses: 1, hang: 2, blind_hang: 3, canary_interval: 4, canary_limit: 5}
        breaker:
          {consecutive: 1, error_rate: 0.2, requests: 3, window: 4, eject: 5, eject_most: 6, share: 0.7, probation: 8}
        retries: {share: 0.1, at_least: 2, long_prompt: 3 KiB}
        """
    )
    assert written == FleetPolicy(
        Warmup((Shape(prompt=7, output=16), Shape(context=0.5, output=1)), 4, 2, 3, 60, "hold", 0),
        Health(1, 2, 3, 4, 5),
        Breaker(1, 0.2, 3, 4, 5, 6, 0.7, 8),
        Retries(0.1, 2, 3072),
    )


def test_an_operator_may_warm_nothing_up():
    assert parse("warmup: {shapes: []}").warmup == Warmup(shapes=())


def test_a_canary_and_ejection_for_errors_and_retries_can_be_switched_off():
    written = parse("{health: {canary_interval: 0}, breaker: {share: 0}, retries: {share: 0, at_least: 0}}")
    assert (written.health.canary_interval, written.breaker.share) == (0, 0)
    assert (written.retries.share, written.retries.at_least) == (0, 0)


def test_every_fault_is_told_at_once_with_its_line():
    text = """
warmup:
  shapes:
    - {prompt: 32}
    - {prompt: 0, output: 99999}
    - {prompt: 1, context: 0.5}
    - {output: 4}
    - 512
  unsettled: maybe
health: {hang: .nan, misses: 0}
breaker: {share: 1.5, requests: true}
retries: {long_prompt: many, attempts: 3}
"""
    assert faults(text) == {
        ("warmup.shapes[1].prompt", 5),
        ("warmup.shapes[1].output", 5),
        ("warmup.shapes[2]", 6),
        ("warmup.shapes[3]", 7),
        ("warmup.shapes[4]", 8),
        ("warmup.unsettled", 9),
        ("health.hang", 10),
        ("health.misses", 10),
        ("breaker.share", 11),
        ("breaker.requests", 11),
        ("retries.long_prompt", 12),
        ("retries.attempts", 12),
    }


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("warmup: {shapes: 3}", "warmup.shapes"),
        (f"warmup: {{shapes: [{'{prompt: 1}, ' * 17}]}}", "warmup.shapes"),
        ("warmup: {shapes: [{context: .inf}]}", "warmup.shapes[0].context"),
        ("warmup: {shapes: [{prompt: 1.5}]}", "warmup.shapes[0].prompt"),
        ("warmup: {ratio: 1}", "warmup.ratio"),
        ("warmup: {limit: -1}", "warmup.limit"),
        ("warmup:", "warmup"),
        ("health: {canary_interval: 0.01}", "health.canary_interval"),
        ("health: {canary_interval: false}", "health.canary_interval"),
        ("health: {hang: 130}", "health.blind_hang"),
        ("health: {blind_hang: 29}", "health.blind_hang"),
        ("breaker: {error_rate: 0}", "breaker.error_rate"),
        ("breaker: {eject: 400}", "breaker.eject_most"),
        ("retries: {share: '20%'}", "retries.share"),
        ("retries: []", "retries"),
    ],
)
def test_what_would_do_harm_is_refused(text, where):
    assert {each for each, _ in faults(text)} == {where}
