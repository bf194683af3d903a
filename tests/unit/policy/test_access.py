"""access.yaml: the default file, what a policy grants to whom, and that every fault of a file is reported at once."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from gateway.model import Budget, Credential, Limits, Principal, Priority
from gateway.policy.access import Access, Estimate, Outage, load_access, parse_access
from gateway.policy.document import PolicyFault
from gateway.policy.verbs import ALL_VERBS, VERB_SETS

TEXT = resources.files("policies").joinpath("access.yaml").read_text(encoding="utf-8")
DEFAULT = parse_access(TEXT, "access.yaml")

POLICY = parse_access(
    """
roles:
  user: {aliases: ["*"]}
  team: {aliases: ["team-*", shared], limits: {tokens_per_minute: 500, concurrency: 4}}
  batch: {aliases: [batch], limits: {tokens_per_minute: 900}}
  viewer: {admin: viewer}
  keeper: {admin: [viewer, "keys:write"]}
default_roles: [user]
tenants:
  acme: {aliases: ["*-a", shared, batch], limits: {requests_per_minute: 60}}
  free: {}
limits: {requests_per_minute: 10, concurrency: 2}
""",
    "access.yaml",
)


def who(*roles: str, tenant: str = "default", aliases: tuple[str, ...] = ("*",)) -> Principal:
    return Principal("key-1", tenant, roles=roles, aliases=aliases)


def faults_of(text: str) -> str:
    with pytest.raises(PolicyFault) as caught:
        parse_access(text, "x.yaml")
    return str(caught.value)


# --- the default file


def test_with_the_default_file_a_key_without_roles_calls_everything_and_operates_nothing() -> None:
    grant = DEFAULT.grant(who(tenant="anybody"))
    assert grant.callable
    assert grant.may_call("anything")
    assert (grant.budgets, grant.verbs) == ((), frozenset())
    assert (DEFAULT.issuers, DEFAULT.unlisted_tenants, DEFAULT.failures) == ((), "allow", 60)
    assert (DEFAULT.outage, DEFAULT.estimate) == (Outage(0.5, 300.0), Estimate(1_024, 4))


@pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
def test_with_the_default_file_who_operates_calls_nothing_unless_it_may_do_both(role: str) -> None:
    grant = DEFAULT.grant(who(role))
    assert (grant.verbs, grant.callable, grant.may_call("a")) == (VERB_SETS[role], False, False)
    both = DEFAULT.grant(who(role, "user"))
    assert (both.verbs, both.callable, both.may_call("a")) == (VERB_SETS[role], True, True)


def test_the_examples_in_the_default_file_are_valid_together() -> None:
    lines = TEXT.splitlines()
    opened = [re.sub(r"^( *)# ((?: {2,}|)(?:[a-z_-]+: ?.*))$", r"\1\2", line) for line in lines]
    access = parse_access("\n".join(opened), "access.yaml")
    assert set(access.roles) == {"user", "viewer", "operator", "admin", "batch", "on-call"}
    assert set(access.tenants) == {"acme", "research"}
    assert access.limits == Limits(600, 200_000, 20_000_000, 32)
    assert access.roles["batch"].priority is Priority.BULK
    assert (access.tenants["acme"].weight, access.tenants["research"].weight) == (3.0, 1.0)
    assert [issuer.name for issuer in access.issuers] == ["corporate"]


# --- what may be called


@pytest.mark.parametrize(
    ("principal", "callable_ones"),
    [
        (who(), {"team-a", "team-b", "shared", "batch", "other"}),
        (who("team"), {"team-a", "team-b", "shared"}),
        (who("team", "batch"), {"team-a", "team-b", "shared", "batch"}),
        (who("team", "user"), {"team-a", "team-b", "shared", "batch", "other"}),
        (who("team", tenant="acme"), {"team-a", "shared"}),
        (who(tenant="acme"), {"team-a", "shared", "batch"}),
        (who(tenant="free"), {"team-a", "team-b", "shared", "batch", "other"}),
        (who("team", tenant="acme", aliases=("s*",)), {"shared"}),
        (who("team", tenant="acme", aliases=("b*",)), set()),
        (who(aliases=()), set()),
        (who("ghost"), set()),
        (who("ghost", "batch"), {"batch"}),
        (who("viewer"), set()),
    ],
)
def test_an_alias_may_be_called_when_roles_credential_and_tenant_all_cover_it(
    principal: Principal, callable_ones: set[str]
) -> None:
    grant = POLICY.grant(principal)
    names = ("team-a", "team-b", "shared", "batch", "other")
    assert {name for name in names if grant.may_call(name)} == callable_ones


@pytest.mark.parametrize(
    ("principal", "can"),
    [(who(), True), (who("ghost"), False), (who("viewer"), False), (who(aliases=()), False), (who("team"), True)],
)
def test_a_grant_says_when_nothing_can_be_called_at_all(principal: Principal, can: bool) -> None:
    assert POLICY.grant(principal).callable is can


def test_the_first_role_takes_the_place_of_the_default_ones() -> None:
    assert POLICY.grant(who()).may_call("other")
    assert not POLICY.grant(who("batch")).may_call("other")


def test_an_unlisted_tenant_may_do_nothing_where_those_are_denied() -> None:
    strict = replace(POLICY, unlisted_tenants="deny")
    grant = strict.grant(who("user", "keeper", tenant="other"))
    assert (grant.callable, grant.may_call("shared"), grant.verbs) == (False, False, frozenset())
    assert strict.grant(who("user", "keeper", tenant="free")).verbs == VERB_SETS["viewer"] | {"keys:write"}
    assert strict.grant(who(tenant="acme")).may_call("shared")


def test_a_policy_that_nobody_wrote_grants_nothing() -> None:
    grant = Access(roles={}).grant(who("user"))
    assert (grant.callable, grant.may_call("a"), grant.verbs) == (False, False, frozenset())


# --- limits and verbs


def test_budgets_are_the_principals_own_and_its_tenants() -> None:
    own = Budget("principal:key-1", Limits(10, None, None, 2))
    assert POLICY.grant(who()).budgets == (own,)
    assert POLICY.grant(who(tenant="free")).budgets == (own,)
    assert POLICY.grant(who("team", "batch", tenant="acme")).budgets == (
        Budget("principal:key-1", Limits(10, 900, None, 4)),
        Budget("tenant:acme", Limits(60)),
    )
    keyed = replace(who("team"), limits=Limits(concurrency=1, tokens_per_day=7))
    assert POLICY.grant(keyed).budgets == (Budget("principal:key-1", Limits(10, 500, 7, 1)),)


def test_without_a_figure_there_is_no_budget() -> None:
    unlimited = replace(POLICY, limits=Limits())
    assert unlimited.grant(who()).budgets == ()
    assert unlimited.grant(who(tenant="acme")).budgets == (Budget("tenant:acme", Limits(60)),)


def test_verbs_of_roles_are_those_that_a_key_with_them_would_have() -> None:
    assert POLICY.verbs_of(("keeper", "ghost")) == VERB_SETS["viewer"] | {"keys:write"}
    assert POLICY.verbs_of(()) == frozenset()
    assert replace(POLICY, default_roles=("viewer",)).verbs_of(()) == VERB_SETS["viewer"]
    assert parse_access("roles: {all: {admin: admin}}\ndefault_roles: []", "x").verbs_of(("all",)) == ALL_VERBS


# --- what counts where a request has to wait


CLASSED = parse_access(
    """
roles:
  plain: {aliases: ["*"]}
  chat: {aliases: ["*"], priority: interactive}
  batch: {aliases: ["*"], priority: bulk, pins: true}
  usual: {aliases: ["*"], priority: standard}
default_roles: [batch]
tenants:
  acme: {weight: 2.5, aliases: [a]}
  tiny: {weight: 0.01}
  huge: {weight: 1000}
""",
    "access.yaml",
)


@pytest.mark.parametrize(
    ("roles", "priority"),
    [
        ((), Priority.BULK),
        (("plain",), Priority.STANDARD),
        (("plain", "batch"), Priority.BULK),
        (("batch", "chat", "usual"), Priority.INTERACTIVE),
        (("batch", "usual"), Priority.STANDARD),
        (("ghost",), Priority.STANDARD),
        (("ghost", "batch"), Priority.BULK),
    ],
)
def test_a_principal_has_the_best_priority_that_its_roles_state(roles: tuple[str, ...], priority: Priority) -> None:
    assert CLASSED.grant(who(*roles)).priority is priority


@pytest.mark.parametrize(("tenant", "weight"), [("acme", 2.5), ("tiny", 0.01), ("huge", 1_000.0), ("other", 1.0)])
def test_a_tenant_has_the_weight_that_is_written_else_one(tenant: str, weight: float) -> None:
    assert CLASSED.grant(who(tenant=tenant)).weight == weight


def test_priorities_and_weights_that_are_none_are_faults() -> None:
    report = faults_of(
        """
roles:
  one: {priority: urgent}
  two: {priority: [bulk]}
  three: {priority: null}
default_roles: []
tenants:
  four: {weight: 0}
  five: {weight: .inf}
  six: {weight: true, priority: bulk}
"""
    )
    expected = "expected one of interactive, standard, bulk"
    for line in (
        f"x.yaml:3: roles.one.priority: {expected}",
        f"x.yaml:4: roles.two.priority: {expected}",
        f"x.yaml:5: roles.three.priority: {expected}",
        "x.yaml:8: tenants.four.weight: expected a number between 0.01 and 1000",
        "x.yaml:9: tenants.five.weight: expected a number",
        "x.yaml:10: tenants.six.weight: expected a number",
        "x.yaml:10: tenants.six.priority: not known; expected one of aliases, limits, weight",
    ):
        assert line in report, report
    assert "urgent" not in report


def test_grants_of_one_policy_are_not_those_of_another() -> None:
    principal = who("viewer")
    assert POLICY.grant(who("team")).may_call("shared")
    other = parse_access('roles: {viewer: {aliases: ["*"]}}\ndefault_roles: []', "x.yaml")
    assert not POLICY.grant(principal).may_call("a")
    assert other.grant(principal).may_call("a")
    assert POLICY.grant(principal) is POLICY.grant(principal)
    assert not replace(POLICY, roles={}).grant(who("team")).may_call("shared"), "a changed copy remembers nothing"


# --- faults


def test_all_faults_of_a_file_are_reported_together_with_their_lines() -> None:
    report = faults_of(
        """
roles:
  user: {aliases: ["*", "model[12]", 7]}
  bad name: {}
  odd: {}
  more: {alias: [], admin: [viewer, "keys:destroy"], limits: {requests_per_minute: 0, tokens: 5}}
  odd: {}
default_roles: [user, missing]
tenants:
  acme:
    aliases: []
  beta: {aliases: all, limits: {concurrency: 1.5}}
unlisted_tenants: sometimes
limits: {tokens_per_day: 1e6}
failures: -1
outage: {limit_share: 1.5, key_grace: .inf}
estimate: {bytes_per_token: 0}
issuers: []
extra: 1
"""
    )
    for line in (
        "x.yaml:3: roles.user.aliases[1]: expected an alias or a glob",
        "x.yaml:3: roles.user.aliases[2]: expected an alias or a glob",
        "x.yaml:4: roles.bad name: expected a name",
        "x.yaml:6: roles.more.alias: not known; expected one of admin, aliases, limits",
        "x.yaml:6: roles.more.admin[1]: expected one of the sets and verbs: viewer, operator, admin, keys:read",
        "x.yaml:6: roles.more.limits.requests_per_minute: expected a whole number between 1 and",
        "x.yaml:6: roles.more.limits.tokens: not known; expected one of concurrency",
        "x.yaml:5: roles.odd: written twice",
        "x.yaml:8: default_roles[1]: expected one of the roles: user, odd, more",
        "x.yaml:11: tenants.acme.aliases: expected at least one glob",
        "x.yaml:12: tenants.beta.aliases: expected a list of at most 256 items",
        "x.yaml:12: tenants.beta.limits.concurrency: expected a whole number",
        "x.yaml:13: unlisted_tenants: expected one of allow, deny",
        "x.yaml:14: limits.tokens_per_day: expected a whole number",
        "x.yaml:15: failures: expected a whole number between 1 and",
        "x.yaml:16: outage.limit_share: expected a number between 0 and 1",
        "x.yaml:16: outage.key_grace: expected a number between 0 and 86400",
        "x.yaml:17: estimate.bytes_per_token: expected a whole number",
        "x.yaml:18: issuers: expected a mapping",
        "x.yaml:19: extra: not known; expected one of default_roles",
    ):
        assert line in report, report


@pytest.mark.parametrize("text", ["", "[]", "roles: {}", "default_roles: []", "- a", "a: [", "roles: 1", "# roles:"])
def test_an_empty_or_cut_file_is_no_policy(text: str) -> None:
    faults_of(text)


def test_a_policy_may_grant_nothing_when_it_says_so() -> None:
    access = parse_access("roles: {}\ndefault_roles: []\n", "x.yaml")
    assert not access.grant(who()).callable


@pytest.mark.parametrize("text", ["roles: {u: {admin: wizard}}", "roles: {u: {admin: {viewer: true}}}"])
def test_admin_is_a_set_or_a_list(text: str) -> None:
    assert "roles.u.admin" in faults_of(f"{text}\ndefault_roles: []")


def test_load_names_the_file_and_reads_a_byte_order_mark_and_carriage_returns(tmp_path: Path) -> None:
    path = tmp_path / "access.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    assert load_access(path) == DEFAULT
    path.write_text("roles: {}\ndefault_roles: [user]\n", encoding="utf-8")
    with pytest.raises(PolicyFault, match=re.escape(f"{path}:2: default_roles[0]: expected one of the roles: there")):
        load_access(path)
    path.write_bytes(b"roles: \xff")
    with pytest.raises(PolicyFault, match="expected UTF-8"):
        load_access(path)


def test_default_roles_are_for_keys_a_token_has_what_its_claims_give_and_nothing_else() -> None:
    policy = replace(POLICY, default_roles=("user", "keeper"))
    key = policy.grant(Principal("k", "t"))
    token = policy.grant(Principal("jwt_1", "t", credential=Credential.TOKEN))
    assert key.may_call("anything")
    assert key.verbs
    assert (token.callable, token.may_call("anything"), token.verbs) == (False, False, frozenset())
    mapped = policy.grant(Principal("jwt_2", "t", roles=("user",), credential=Credential.TOKEN))
    assert mapped.may_call("anything")
