"""Why a call is allowed or not: the rule that decided, the limits it meets, and whose figures they are."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from gateway.model import Limits, Principal, Priority
from gateway.policy.access import parse_access
from gateway.policy.explain import AppliedLimit, Check, explain
from gateway.policy.grants import Standing

POLICY = parse_access(
    """
roles:
  user: {aliases: ["*"]}
  team: {aliases: [shared, "team-*"], limits: {tokens_per_minute: 500}}
  viewer: {admin: viewer}
  batch: {aliases: [shared], priority: bulk}
default_roles: [user]
tenants:
  acme: {aliases: ["*-a", shared], limits: {requests_per_minute: 60}, weight: 3}
  free: {}
limits: {requests_per_minute: 10}
""",
    "access.yaml",
)


def who(*roles: str, tenant: str = "acme", aliases: tuple[str, ...] = ("*",)) -> Principal:
    return Principal("key-1", tenant, roles=roles, aliases=aliases)


def test_what_is_allowed_names_each_glob_that_covers_it() -> None:
    told = explain(POLICY, who("viewer", "team", aliases=("x", "team*")), "team-a", exists=True)
    assert (told.allowed, told.code) == (True, None)
    assert told.checks == (
        Check("roles", True, "role team grants team-*"),
        Check("credential", True, "its own list has team*"),
        Check("tenant", True, "tenant acme lists *-a"),
    )
    assert told.reason == "Allowed: role team grants team-*; its own list has team*; tenant acme lists *-a."
    assert (told.roles, told.unknown_roles) == (("viewer", "team"), ())
    assert told.verbs == ("aliases:read", "audit:read", "fleet:read", "keys:read", "policy:read")


def test_limits_say_whose_they_are_and_where_each_figure_comes_from() -> None:
    principal = replace(who("team"), limits=Limits(concurrency=3))
    assert explain(POLICY, principal, "shared", exists=True).limits == (
        AppliedLimit("principal:key-1", "requests_per_minute", 10, "default"),
        AppliedLimit("principal:key-1", "tokens_per_minute", 500, "role team"),
        AppliedLimit("principal:key-1", "concurrency", 3, "key"),
        AppliedLimit("tenant:acme", "requests_per_minute", 60, "tenant acme"),
    )


def test_what_counts_where_it_has_to_wait() -> None:
    bulk = explain(POLICY, who("team", "batch"), "shared", exists=True)
    assert (bulk.standing, bulk.weight) == (Standing(Priority.BULK, "role batch"), 3.0)
    plain = explain(POLICY, who(tenant="free"), "shared", exists=True)
    assert (plain.standing, plain.weight) == (Standing(Priority.STANDARD, "default"), 1.0)


@pytest.mark.parametrize(
    ("principal", "alias", "code", "reason"),
    [
        (
            who("team", tenant="free"),
            "other",
            "model_not_found",
            "Not allowed: none of its roles grants it: team.",
        ),
        (who(), "other", "model_not_found", "Not allowed: tenant acme does not list it: *-a, shared."),
        (
            who(tenant="free", aliases=("a", "b-*")),
            "other",
            "model_not_found",
            "Not allowed: its own list does not have it: a, b-*.",
        ),
        (
            who("team", aliases=("a",)),
            "other",
            "model_not_found",
            "Not allowed: none of its roles grants it: team; its own list does not have it: a; "
            "tenant acme does not list it: *-a, shared.",
        ),
        (who("ghost"), "shared", "alias_forbidden", "Not allowed: no role of it is known to the policy."),
        (who("viewer"), "shared", "alias_forbidden", "Not allowed: none of its roles grants it: viewer."),
        (who(aliases=()), "shared", "alias_forbidden", "Not allowed: its own list does not have it: empty."),
    ],
)
def test_what_is_not_allowed_names_each_list_that_stands_against_it(
    principal: Principal, alias: str, code: str, reason: str
) -> None:
    told = explain(POLICY, principal, alias, exists=True)
    assert (told.allowed, told.code, told.reason) == (False, code, reason)


def test_an_alias_that_is_not_there() -> None:
    told = explain(POLICY, who(tenant="free"), "other", exists=False)
    assert (told.allowed, told.code) == (True, "model_not_found")
    assert told.reason.startswith("There is no such alias. It would be allowed: default role user grants *")


def test_unlisted_tenants() -> None:
    allowed = explain(POLICY, who(tenant="other"), "x", exists=True)
    assert allowed.checks[2] == Check("tenant", True, "tenant other is not listed, and unlisted tenants are allowed")
    denied = explain(replace(POLICY, unlisted_tenants="deny"), who(tenant="other"), "x", exists=True)
    assert (denied.code, denied.reason) == (
        "alias_forbidden",
        "Not allowed: tenant other is not listed, and unlisted tenants are denied.",
    )


def test_unknown_roles_are_named() -> None:
    told = explain(POLICY, who("ghost", "team"), "shared", exists=True)
    assert (told.roles, told.unknown_roles, told.allowed) == (("team",), ("ghost",), True)


def test_it_can_be_dumped_as_json() -> None:
    told = explain(POLICY, who("viewer", "user"), "shared", exists=True)
    dumped = json.loads(json.dumps(asdict(told)))
    assert (dumped["alias"], dumped["checks"][0]["rule"], dumped["verbs"][0]) == ("shared", "roles", "aliases:read")
