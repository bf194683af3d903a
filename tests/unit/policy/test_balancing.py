"""The section of routing.yaml that says how replicas are chosen."""

from __future__ import annotations

from importlib import resources

import pytest
import yaml

from gateway.fleet.balance.strategies import STRATEGIES
from gateway.policy.balancing import NAMES, Balancing
from gateway.policy.document import PolicyFault
from gateway.policy.routing import parse_routing

SHIPPED = resources.files("policies").joinpath("routing.yaml").read_text(encoding="utf-8")


def parse(text: str) -> Balancing:
    return parse_routing(text, "routing.yaml").balancing


def faults(text: str) -> set[tuple[str, int]]:
    with pytest.raises(PolicyFault) as found:
        parse(text)
    return {(fault.where, fault.line) for fault in found.value.faults}


def test_what_is_not_written_has_the_default():
    assert parse("") == parse("balancing: {}") == Balancing("estimate", None, {})


def test_the_shipped_file_shows_every_setting_and_its_default():
    assert list(yaml.safe_load(SHIPPED)["balancing"]) == ["strategy", "dry_run", "aliases"]
    assert parse(SHIPPED) == Balancing()
    assert all(f"  #   {name} " in SHIPPED for name in NAMES)


def test_the_strategies_that_may_be_named_are_those_that_there_are():
    assert set(NAMES) == set(STRATEGIES)


@pytest.mark.parametrize("name", NAMES)
def test_each_may_be_chosen_for_all_for_one_alias_and_beside(name):
    policy = parse(f"balancing:\n  strategy: {name}\n  dry_run: {name}\n  aliases: {{org/general-7b: {name}}}\n")
    assert policy == Balancing(name, name, {"org/general-7b": name})


def test_an_alias_has_its_own_and_all_others_the_one_for_all():
    policy = parse("balancing: {strategy: session, aliases: {one: estimate, two: round-robin}}")
    assert [policy.of(alias) for alias in ("one", "two", "three", "")] == [
        "estimate",
        "round-robin",
        "session",
        "session",
    ]


def test_none_asks_none_beside():
    assert parse("balancing: {dry_run: none}").dry_run is None


def test_a_policy_cannot_be_changed_afterwards():
    with pytest.raises(TypeError):
        parse("balancing: {aliases: {one: estimate}}").aliases["two"] = "session"  # type: ignore[index]


def test_every_fault_is_told_with_its_line():
    text = """
balancing:
  strategy: hunter2
  dry_run: off
  aliases:
    one: hunter3
    "no alias": estimate
    two: none
    three: [estimate]
    four: {a: b}
    good: session
  nonsense: 1
"""
    assert faults(text) == {
        ("balancing.strategy", 3),
        ("balancing.dry_run", 4),
        ("balancing.aliases.one", 6),
        ("balancing.aliases.no alias", 7),
        ("balancing.aliases.two", 8),
        ("balancing.aliases.three", 9),
        ("balancing.aliases.four", 10),
        ("balancing.nonsense", 12),
    }
    with pytest.raises(PolicyFault) as found:
        parse(text)
    assert "hunter" not in str(found.value)
    assert ", ".join(NAMES) in str(found.value)


@pytest.mark.parametrize(
    "section",
    ["1", "[]", "estimate", "{strategy: null}", "{strategy: 1}", "{strategy: Estimate}", "{strategy: [estimate]}",
     "{dry_run: null}", "{dry_run: {}}", "{aliases: []}", "{aliases: estimate}", "{aliases: null}",
     "{aliases: {a: null}}", "{aliases: {a: 1}}", "{aliases: {a@3: estimate}}", "{aliases: {'': estimate}}",
     "{aliases: {a: estimate, a: session}}"],
)  # fmt: skip
def test_what_is_no_such_section_is_refused(section):
    assert faults(f"balancing: {section}")


def test_so_many_aliases_and_no_more():
    text = "balancing:\n  aliases:\n" + "".join(f"    alias-{number}: session\n" for number in range(1_000))
    assert len(parse(text).aliases) == 1_000
    assert faults(text + "    one-more: session\n") == {("balancing.aliases", 3)}  # where they begin
