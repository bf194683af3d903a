"""The section of routing.yaml that says how many requests engines get, and who waits for how long."""

from __future__ import annotations

from dataclasses import fields
from importlib import resources

import pytest
import yaml

from gateway.model import Priority
from gateway.policy.admission import Admission, PerClass
from gateway.policy.document import PolicyFault
from gateway.policy.routing import parse_routing

SHIPPED = resources.files("policies").joinpath("routing.yaml").read_text(encoding="utf-8")


def parse(text: str) -> Admission:
    return parse_routing(text, "routing.yaml").admission


def faults(text: str) -> set[tuple[str, int]]:
    with pytest.raises(PolicyFault) as found:
        parse(text)
    return {(fault.where, fault.line) for fault in found.value.faults}


def test_what_is_not_written_has_the_default():
    assert parse("") == parse("admission: {}") == Admission()
    assert parse("admission: {wait: {bulk: 7}}").wait == PerClass(10, 30, 7)
    assert parse("admission: {share: {}, starve: {}}") == Admission()


def test_the_shipped_file_shows_every_setting_and_its_default():
    written = yaml.safe_load(SHIPPED)["admission"]
    assert list(written) == [field.name for field in fields(Admission)]
    assert list(written["wait"]) == list(written["share"]) == list(PerClass._fields) == [*Priority]
    assert parse(SHIPPED) == Admission()


def test_what_is_written_counts():
    text = """
admission:
  in_flight: 24
  queue: 0
  queue_bytes: 8 MiB
  wait: {interactive: 1, standard: 2.5, bulk: 3600}
  share: {interactive: 0.9, standard: 0.9, bulk: 0.01}
  starve: {standard: 0, bulk: 5}
  comments: 15
"""
    assert parse(text) == Admission(
        24, 0, 8 << 20, PerClass(1, 2.5, 3600), PerClass(0.9, 0.9, 0.01), PerClass(0, 0, 5), 15
    )


def test_a_limit_that_is_learned_is_no_figure():
    assert parse("admission: {in_flight: auto}").in_flight is None
    assert parse("admission: {in_flight: 1}").in_flight == 1


@pytest.mark.parametrize(("priority", "figure"), list(zip(Priority, (1, 2, 3), strict=True)))
def test_each_class_has_its_figure(priority, figure):
    assert PerClass(1, 2, 3).of(priority) == figure


def test_every_fault_is_told_with_its_line_and_no_value_is_quoted():
    text = """
admission:
  in_flight: hunter2
  queue: -1
  queue_bytes: 1 parsec
  wait: {interactive: 0, urgent: 1}
  share: {standard: 0.5, bulk: 2}
  starve: {interactive: 5, bulk: .nan}
  comments: 0.1
  nonsense: 1
"""
    assert faults(text) == {
        ("admission.in_flight", 3),
        ("admission.queue", 4),
        ("admission.queue_bytes", 5),
        ("admission.wait.interactive", 6),
        ("admission.wait.urgent", 6),
        ("admission.share.bulk", 7),
        ("admission.starve.interactive", 8),
        ("admission.starve.bulk", 8),
        ("admission.comments", 9),
        ("admission.nonsense", 10),
    }
    with pytest.raises(PolicyFault) as found:
        parse(text)
    assert "hunter" not in str(found.value)


@pytest.mark.parametrize(
    ("share", "where"),
    [("{standard: 0.5}", "bulk"), ("{interactive: 0.7, bulk: 0.6}", "standard"), ("{standard: 0.3}", "bulk")],
)
def test_no_class_may_fill_more_than_the_one_above_it(share, where):
    assert faults(f"admission:\n  share: {share}") == {(f"admission.share.{where}", 2)}


@pytest.mark.parametrize(
    "section",
    ["1", "[]", "auto", "{in_flight: 0}", "{in_flight: 1000001}", "{in_flight: true}", "{in_flight: null}",
     "{in_flight: 1.5}", "{in_flight: [1]}", "{queue: 1000001}", "{queue: auto}", "{wait: 30}", "{wait: null}",
     "{wait: {bulk: 3601}}", "{wait: {bulk: .inf}}", "{share: 1}", "{share: {bulk: 0}}", "{share: {bulk: true}}",
     "{starve: {bulk: -1}}", "{starve: []}", "{comments: -1}", "{comments: .inf}", "{comments: true}"],
)  # fmt: skip
def test_what_is_no_such_section_is_refused(section):
    assert faults(f"admission: {section}")
