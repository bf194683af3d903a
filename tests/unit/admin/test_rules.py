"""The access policy as operators see it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gateway.admin.news import PolicyNews
from gateway.admin.rules import explanation, policy_view, unknown_roles
from gateway.model import Limits
from gateway.policy.access import parse_access
from gateway.stores.interfaces import KeyRecord

ACCESS = parse_access(
    """
roles:
  user: {aliases: ["chat-*"], limits: {requests_per_minute: 60}}
  viewer: {admin: viewer, priority: bulk}
default_roles: [user]
limits: {concurrency: 8}
tenants: {acme: {aliases: ["chat-a*"], limits: {tokens_per_day: 1000}, weight: 2}}
""",
    "access.yaml",
)


def key(**fields):
    values = {"tenant": "acme", "roles": (), "aliases": ("*",), **fields}
    return KeyRecord(id="Ab12", name="app1", created_at=1_000.0, **values)


def told(alias, *, exists=True, now=1_000.0, **fields):
    return explanation(ACCESS, key(**fields), alias, exists=exists, now=now)


def test_a_call_that_goes_through_says_within_which_limits_and_whose():
    view = told("chat-a", limits=Limits(tokens_per_minute=7))
    assert (view.allowed, view.code, view.status, view.state) == (True, None, 200, "live")
    assert {(one.holder, one.limit, one.value, one.source) for one in view.limits} == {
        ("principal:Ab12", "requests_per_minute", 60, "role user"),
        ("principal:Ab12", "tokens_per_minute", 7, "key"),
        ("principal:Ab12", "concurrency", 8, "default"),
        ("tenant:acme", "tokens_per_day", 1000, "tenant acme"),
    }


def test_what_counts_where_a_call_has_to_wait_is_told():
    view = told("chat-a", roles=("user", "viewer"))
    assert (view.priority, view.priority_from, view.weight) == ("bulk", "role viewer", 2.0)
    other = told("chat-a", tenant="other")
    assert (other.priority, other.priority_from, other.weight) == ("standard", "default", 1.0)


def test_a_call_that_is_refused_says_by_which_list():
    view = told("chat-b")
    assert (view.allowed, view.code, view.status) == (False, "model_not_found", 404)
    assert [(one.rule, one.passed) for one in view.checks] == [("roles", True), ("credential", True), ("tenant", False)]
    assert told("chat-a", exists=False).code == "model_not_found"
    assert told("chat-a", roles=("viewer",)).code == "alias_forbidden"
    assert told("chat-a", roles=("gone",)).unknown_roles == ["gone"]


@pytest.mark.parametrize(
    ("state", "fields", "now"),
    [("expired", {"expires_at": 2_000.0}, 2_000.0), ("revoked", {"revoked_at": 1_500.0}, 1_600.0)],
)
def test_a_key_that_has_ended_is_answered_401_whatever_the_policy_says(state, fields, now):
    view = told("chat-a", now=now, **fields)
    assert (view.allowed, view.code, view.status, view.state) == (True, "invalid_api_key", 401, state)
    assert view.reason.startswith(f"The key is {state}. ")


def test_unknown_roles_are_answered_with_the_known_ones_and_no_echo():
    assert unknown_roles(ACCESS, ["user", "viewer"]) is None
    assert unknown_roles(ACCESS, []) is None
    said = unknown_roles(ACCESS, ["user", "canary"])
    assert said == "expected roles of the access policy, which knows user, viewer"


def test_a_long_list_of_known_roles_is_cut():
    roles = "".join(f"  r{number:03}: {{}}\n" for number in range(60))
    said = unknown_roles(parse_access(f"roles:\n{roles}default_roles: []\n", "access.yaml"), ["x"])
    assert said.endswith("r049 and 10 more")


def test_the_news_are_of_the_files_refused_and_of_the_policy_in_force():
    now = [1_000.0]
    policies = SimpleNamespace(valid=True, epoch=0)
    news = PolicyNews(lambda: now[0])
    assert policy_view(news, policies).model_dump() == {"valid": True, "epoch": 0, "loaded_at": 1_000.0, "faults": []}
    now[0], policies.valid = 2_000.0, False
    news.refused("access.yaml:3: roles: expected a mapping\nguards.yaml:1: file: expected YAML")
    view = policy_view(news, policies)
    assert (view.valid, view.loaded_at, len(view.faults)) == (False, 1_000.0, 2)
    policies.valid, policies.epoch = True, 1
    news.replaced(object())
    assert policy_view(news, policies).model_dump() == {"valid": True, "epoch": 1, "loaded_at": 2_000.0, "faults": []}


def test_what_the_news_keep_is_bounded():
    news = PolicyNews(lambda: 0.0)
    news.refused("x\n" * 10_000)
    assert len(policy_view(news, SimpleNamespace(valid=False, epoch=0)).faults) == 100
