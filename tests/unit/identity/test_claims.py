"""From claims to a principal: only what the policy lists counts, and exactly one tenant comes out or nobody."""

from __future__ import annotations

import hashlib

import pytest

from gateway.identity.claims import MAX_VALUES, principal_id, principal_of
from gateway.identity.jwt import Claims, Reason, TokenFault
from gateway.model import NO_LIMITS, Credential, Principal
from gateway.policy.issuers import ClaimRule, IssuerPolicy

NOW = 1_000_000.0
TENANT = ClaimRule(("tenant",), {"acme": "t-acme", "globex": "t-globex"})
ROLES = ClaimRule(("realm_access", "roles"), {"dev": "user", "ops": "operator", "dev2": "user"})


def policy(tenant: ClaimRule = TENANT, roles: ClaimRule = ROLES) -> IssuerPolicy:
    return IssuerPolicy("corp", "https://id.test", ("gateway",), ("RS256",), tenant, roles)


def principal(members, rules: IssuerPolicy | None = None, expires_at: float = NOW + 3_600) -> Principal:
    return principal_of(Claims("alice", expires_at, members), rules or policy(), NOW)


def refused(members, rules: IssuerPolicy | None = None) -> bool:
    with pytest.raises(TokenFault) as caught:
        principal(members, rules)
    return caught.value.reason is Reason.CLAIMS


def with_roles(value):
    return {"tenant": "acme", "realm_access": {"roles": value}}


def test_a_principal_from_claims():
    assert principal(with_roles(["dev", "ops"])) == Principal(
        id="jwt_" + hashlib.sha256(b"corp\0alice").hexdigest()[:16],
        tenant="t-acme",
        name="corp",
        roles=("user", "operator"),
        aliases=("*",),
        expires_at=NOW + 60,
        limits=NO_LIMITS,
        credential=Credential.TOKEN,
    )


def test_the_id_tells_issuers_and_subjects_apart_and_names_nobody():
    ids = {principal_id(*pair) for pair in (("a", "b"), ("a", "c"), ("ab", ""), ("", "ab"), ("a", "b\0c"))}
    assert len(ids) == 5
    assert all(len(made) == 20 and "alice" not in made for made in ids)


def test_a_principal_never_outlives_its_token():
    assert principal(with_roles([]), expires_at=NOW + 10).expires_at == NOW + 10


@pytest.mark.parametrize(
    ("value", "roles"),
    [
        ("dev", ("user",)),
        (["ops", "dev"], ("operator", "user")),
        (["dev", "dev2"], ("user",)),
        (["unheard-of", "Dev", "dev ", " dev", "DEV", "user", "operator", ""], ()),
        ("dev ops", ()),
        ([], ()),
    ],
)
def test_a_role_is_what_the_policy_says_of_an_exact_value(value, roles):
    assert principal(with_roles(value)).roles == roles


def test_roles_may_be_absent_and_fixed_ones_are_given_to_all():
    assert principal({"tenant": "acme"}).roles == ()
    assert principal({"tenant": "acme", "realm_access": {}}).roles == ()
    fixed = policy(roles=ClaimRule(("realm_access", "roles"), {"ops": "operator"}, fixed=("user",)))
    assert principal({"tenant": "acme"}, fixed).roles == ("user",)
    assert principal(with_roles(["ops"]), fixed).roles == ("user", "operator")
    assert principal({"tenant": "acme", "roles": ["x"]}, policy(roles=ClaimRule())).roles == ()


@pytest.mark.parametrize(
    "value", [7, True, None, {"dev": 1}, ["dev", 7], ["dev", None], ["dev", ["ops"]], [{"a": "dev"}]]
)
def test_a_claim_of_another_type_refuses_the_token(value):
    assert refused(with_roles(value))
    assert refused({"tenant": value})


@pytest.mark.parametrize("middle", ["roles", ["roles"], 7, None])
def test_a_path_through_what_is_no_object_refuses_the_token(middle):
    assert refused({"tenant": "acme", "realm_access": middle})


def test_values_of_roles_beyond_the_bound_do_not_count():
    padding = [f"g{number}" for number in range(MAX_VALUES - 1)]
    assert principal(with_roles([*padding, "dev", "ops"])).roles == ("user",)


@pytest.mark.parametrize(
    "members", [{}, {"tenant": "other"}, {"tenant": []}, {"tenant": ["acme", "globex"]}, {"tenant": ""}]
)
def test_not_exactly_one_tenant_is_nobody(members):
    assert refused(members)


def test_one_tenant_among_unknown_values_is_one():
    assert principal({"tenant": ["x", "globex", "globex", "y"]}).tenant == "t-globex"


def test_a_tenant_that_could_be_hidden_behind_the_bound_is_refused():
    assert principal({"tenant": ["acme"] * MAX_VALUES}).tenant == "t-acme"
    assert refused({"tenant": ["acme"] * MAX_VALUES + ["globex"]})
    assert refused({"tenant": ["acme"] * (MAX_VALUES + 1)})


def test_a_fixed_tenant_and_another_by_claim_are_two():
    rules = policy(tenant=ClaimRule(("tenant",), {"globex": "t-globex"}, fixed=("t-acme",)))
    assert principal({}, rules).tenant == "t-acme"
    assert refused({"tenant": "globex"}, rules)
    assert principal({}, policy(tenant=ClaimRule(fixed=("t-acme",)))).tenant == "t-acme"


def test_a_claim_may_have_a_url_for_its_name():
    rules = policy(tenant=ClaimRule(("https://corp.test/tenant",), {"acme": "t-acme"}))
    assert principal({"https://corp.test/tenant": "acme"}, rules).tenant == "t-acme"
