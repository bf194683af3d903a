"""Whatever the policy and the principal: what narrows never adds, and all who ask are told the same."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import Refusal
from gateway.model import Limits, Principal, Priority
from gateway.policy.access import Access, parse_access
from gateway.policy.document import PolicyFault
from gateway.policy.explain import explain
from gateway.policy.globs import compile_globs
from gateway.policy.grants import LIMIT_BOUNDS, Role, Tenant
from gateway.policy.verbs import ALL_VERBS
from gateway.steps.authorize import authorize

# The same examples each time, however slow the machine is.
STEADY = settings(derandomize=True, deadline=None)
CANARY = "CANARY"

# So few letters that globs and names often meet.
aliases = st.text("ab", min_size=1, max_size=3)
globs = st.text("ab*?", min_size=1, max_size=3) | st.just("*")
glob_lists = st.lists(globs, max_size=4).map(tuple)
role_names = st.sampled_from(["user", "team", "batch", "ghost"])
tenant_names = st.sampled_from(["acme", "beta", "unlisted"])
figures = st.none() | st.integers(1, 1_000)
limits = st.builds(Limits, figures, figures, figures, figures)
verbs = st.frozensets(st.sampled_from(sorted(ALL_VERBS)))
priorities = st.none() | st.sampled_from(Priority)
roles = st.builds(Role, glob_lists.map(compile_globs), verbs, limits, st.booleans(), priorities)
tenants = st.builds(Tenant, st.none() | glob_lists.map(compile_globs), limits, st.floats(0.01, 1_000))
accesses = st.builds(
    Access,
    roles=st.fixed_dictionaries({}, optional={"user": roles, "team": roles, "batch": roles}),
    default_roles=st.lists(role_names, max_size=2).map(tuple),
    tenants=st.fixed_dictionaries({}, optional={"acme": tenants, "beta": tenants}),
    unlisted_tenants=st.sampled_from(["allow", "deny"]),
    limits=limits,
)
principals = st.builds(
    Principal,
    id=st.sampled_from(["key-1", "key-2"]),
    tenant=tenant_names,
    roles=st.lists(role_names, max_size=3, unique=True).map(tuple),
    aliases=st.just(("*",)) | glob_lists,
    limits=limits,
)


def covers(written: tuple[str, ...], alias: str) -> bool:
    """What globs mean, said another way."""
    signs = {"*": ".*", "?": "."}
    return any(
        re.fullmatch("".join(signs.get(c, re.escape(c)) for c in glob), alias, re.DOTALL) is not None
        for glob in written
    )


@STEADY
@given(accesses, principals, aliases)
def test_an_alias_may_be_called_exactly_when_every_list_covers_it(
    access: Access, principal: Principal, alias: str
) -> None:
    held = principal.roles or access.default_roles
    by_roles = any(covers(access.roles[name].globs.texts, alias) for name in held if name in access.roles)
    tenant = access.tenants.get(principal.tenant)
    by_tenant = access.unlisted_tenants == "allow" if tenant is None else True
    if tenant is not None and tenant.globs is not None:
        by_tenant = covers(tenant.globs.texts, alias)
    expected = by_roles and covers(principal.aliases, alias) and by_tenant
    assert access.grant(principal).may_call(alias) is expected


@STEADY
@given(accesses, principals, role_names, aliases)
def test_a_further_role_never_removes_an_alias_or_a_verb(
    access: Access, principal: Principal, role: str, alias: str
) -> None:
    """The first one may: it takes the place of the default roles."""
    principal = replace(principal, roles=principal.roles or ("team",))
    before = access.grant(principal)
    after = access.grant(replace(principal, roles=(*principal.roles, role)))
    assert after.may_call(alias) or not before.may_call(alias)
    assert after.verbs >= before.verbs
    assert after.callable >= before.callable


@STEADY
@given(accesses, principals, glob_lists, aliases)
def test_globs_of_a_tenant_or_a_credential_never_add_an_alias(
    access: Access, principal: Principal, narrowing: tuple[str, ...], alias: str
) -> None:
    open_to_all = replace(principal, aliases=("*",))
    narrowed = access.grant(replace(principal, aliases=narrowing))
    assert access.grant(open_to_all).may_call(alias) or not narrowed.may_call(alias)
    listed = {name: replace(tenant, globs=None) for name, tenant in access.tenants.items()}
    listed.setdefault("acme", Tenant())
    before = replace(access, tenants=listed)
    tenant = replace(listed["acme"], globs=compile_globs(narrowing))
    after = replace(access, tenants=MappingProxyType(listed | {"acme": tenant}))
    of_acme = replace(principal, tenant="acme")
    assert before.grant(of_acme).may_call(alias) or not after.grant(of_acme).may_call(alias)


@STEADY
@given(accesses, principals, st.lists(aliases, max_size=6, unique=True))
def test_what_is_listed_is_what_may_be_called_and_what_is_explained(
    access: Access, principal: Principal, names: list[str]
) -> None:
    grant = access.grant(principal)
    listed = {name for name in names if grant.may_call(name)}
    called = set()
    for name in names:
        with contextlib.suppress(Refusal):
            authorize(grant, name)
            called.add(name)
    told = {name: explain(access, principal, name, exists=True) for name in names}
    assert listed == called == {name for name in names if told[name].allowed}
    for explanation in told.values():
        assert explanation.allowed is all(check.passed for check in explanation.checks)
        assert explanation.allowed is (explanation.code is None)
        assert (explanation.standing.priority, explanation.weight) == (grant.priority, grant.weight)
        assert (explanation.code == "alias_forbidden") is (not grant.callable)


@STEADY
@given(accesses, principals)
def test_budgets_and_the_explained_limits_are_the_same_figures(access: Access, principal: Principal) -> None:
    grant = access.grant(principal)
    told = explain(access, principal, "a", exists=True).limits
    stated = [
        (budget.holder, limit, getattr(budget.limits, limit))
        for budget in grant.budgets
        for limit in LIMIT_BOUNDS
        if getattr(budget.limits, limit) is not None
    ]
    assert stated == [(one.holder, one.limit, one.value) for one in told]
    assert [budget.holder.partition(":")[0] for budget in grant.budgets] in (
        [], ["principal"], ["tenant"], ["principal", "tenant"],
    )  # fmt: skip


@STEADY
@given(accesses, st.lists(principals, min_size=1, max_size=8))
def test_a_grant_is_the_same_whenever_it_is_asked_for(access: Access, asked: list[Principal]) -> None:
    fresh = [replace(access).grant(principal) for principal in asked]
    assert [access.grant(principal) for principal in asked + asked] == fresh + fresh
    assert all(access.grant(principal).principal == principal for principal in asked)


# --- files

scalars = st.sampled_from(
    [None, True, 0, -1, 7, 1.5, 10**20, CANARY, f"{CANARY} *", f"https://{CANARY}\x85/", "*", "user"]
)
values = st.recursive(
    scalars,
    lambda held: (
        st.lists(held, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["aliases", "admin", "limits", "claim", "values", "fixed", "file", "url", "concurrency", "x"]
            ),
            held,
            max_size=3,
        )
    ),
    max_leaves=8,
)
entries = st.dictionaries(
    st.sampled_from(["aliases", "admin", "limits", "issuer", "audiences", "algorithms", "jwks", "tenant", "roles"]),
    values,
    max_size=5,
)
sections = st.dictionaries(st.sampled_from(["user", "acme", "main"]), entries | values, max_size=2) | values
files = st.dictionaries(
    st.sampled_from(
        ["roles", "default_roles", "tenants", "unlisted_tenants", "limits", "issuers", "failures", "outage", "estimate"]
    ),
    sections,
    max_size=9,
)


@STEADY
@given(files)
def test_any_file_is_a_policy_or_faults_that_quote_no_value(tree: dict[str, Any]) -> None:
    found: Access | PolicyFault
    try:
        found = parse_access(yaml.safe_dump(tree, sort_keys=False), "access.yaml")
    except PolicyFault as fault:
        found = fault
    if isinstance(found, Access):
        found.grant(Principal("key-1", "acme")).may_call("a")
    else:
        assert found.faults
        assert CANARY not in str(found)
        assert all(one.line > 0 for one in found.faults)


@STEADY
@given(st.text(max_size=200))
def test_any_text_is_judged_without_another_error(text: str) -> None:
    with pytest.raises(PolicyFault):
        parse_access(text, "access.yaml")
