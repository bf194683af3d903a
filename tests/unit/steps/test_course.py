"""What a name comes to stands while nothing that it was worked out from has been replaced."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from gateway.model import AliasTable, Principal, Revision, Target
from gateway.policy.grants import Grant
from gateway.steps.course import course

ONE = Revision("chat", 3, (Target("served"),), "ops", 0.0)
TABLE = AliasTable(1, MappingProxyType({"chat": ONE}))
GRANT = Grant(Principal("k1", "team"), callable=True, budgets=(), verbs=frozenset(), layers=())


def policy(isolation: str = "tenant") -> Any:
    return SimpleNamespace(guards=SimpleNamespace(isolation=isolation, mask=lambda alias: f"mask of {alias}"))


def found(revision: Revision = ONE, **guards: Any) -> Any:
    return course("chat", TABLE, policy(**guards), GRANT, revision=revision, salt="salt")


def test_a_name_leads_to_a_model_its_rules_its_salt_and_a_header_line():
    way = found()
    assert (way.revision, way.model, way.mask, way.salt) == (ONE, "served", "mask of chat", "salt")
    assert way.lines == b"x-gateway-alias: chat@3\r\n"


def test_of_several_targets_none_is_everybodys():
    assert found(replace(ONE, targets=(Target("a"), Target("b")))).model is None


def test_tenants_that_share_a_cache_have_no_salt():
    assert found(isolation="none").salt is None


def test_it_stands_for_the_same_name_table_policy_and_grant():
    way = found()
    assert way.stands("chat", TABLE, way.policy, GRANT)


@pytest.mark.parametrize("changed", [{"name": "other"}, {"table": replace(TABLE)}, {"grant": replace(GRANT)}])
def test_it_falls_with_any_of_them_even_for_an_equal_one(changed):
    way = found()
    asked = {"name": "chat", "table": TABLE, "policy": way.policy, "grant": GRANT, **changed}
    assert not way.stands(**asked)
    assert not way.stands("chat", TABLE, policy(), GRANT)
