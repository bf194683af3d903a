"""The issuers of access.yaml: every bound of an issuer, and where what it says must be known to the policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.policy.access import Access, parse_access
from gateway.policy.document import PolicyFault
from gateway.policy.issuers import ALGORITHMS, ClaimRule, IssuerPolicy

SOUND: dict[str, Any] = {
    "issuer": "https://id.example.com/realms/main",
    "audiences": ["gateway"],
    "algorithms": ["RS256"],
    "tenant": {"fixed": "acme"},
}


def policy(*issuers: dict[str, Any], source: str = "access.yaml", **more: Any) -> Access:
    written = {
        "roles": {"user": {"aliases": ["*"]}, "ops": {"admin": "operator"}},
        "default_roles": ["user"],
        "tenants": {"acme": {}, "beta": {}},
        "issuers": {f"issuer{n}": issuer for n, issuer in enumerate(issuers)},
        **more,
    }
    return parse_access(yaml.safe_dump(written, sort_keys=False), source)


def issuer(source: str = "access.yaml", **members: Any) -> IssuerPolicy:
    return policy(SOUND | members, source=source).issuers[0]


def faults(*issuers: dict[str, Any], **more: Any) -> list[tuple[str, str]]:
    with pytest.raises(PolicyFault) as caught:
        policy(*issuers, **more)
    assert all(fault.line > 0 for fault in caught.value.faults)
    return [(fault.where, fault.expected) for fault in caught.value.faults]


def test_an_issuer_with_only_what_it_must_say() -> None:
    assert issuer() == IssuerPolicy(
        name="issuer0",
        issuer="https://id.example.com/realms/main",
        audiences=("gateway",),
        algorithms=("RS256",),
        tenant=ClaimRule(fixed=("acme",)),
        roles=ClaimRule(),
    )


def test_an_issuer_with_all_that_it_can_say() -> None:
    found = issuer(
        jwks={"url": "https://id.example.com/keys?appid=1"},
        tenant={"claim": ["https://example.com/tenant"], "values": ["acme", "beta"]},
        roles={"claim": "realm_access.roles", "values": {"LLM users": "user", "x": "ops"}, "fixed": ["user"]},
        types=["at+jwt"],
        leeway=0,
        max_lifetime=3600,
        denied_subjects=["a b", "a b"],
        denied_tokens=["t"],
    )
    assert found.jwks_url == "https://id.example.com/keys?appid=1"
    assert found.tenant == ClaimRule(("https://example.com/tenant",), {"acme": "acme", "beta": "beta"})
    assert found.roles == ClaimRule(("realm_access", "roles"), {"LLM users": "user", "x": "ops"}, ("user",))
    assert (found.types, found.leeway, found.max_lifetime) == (("at+jwt",), 0.0, 3600.0)
    assert (found.denied_subjects, found.denied_tokens) == ({"a b"}, {"t"})


def test_keys_come_from_discovery_an_address_or_a_file_beside_the_policy() -> None:
    assert (issuer(jwks="discovery").jwks_url, issuer(jwks="discovery").keys_file) == (None, None)
    for file, path in (("keys.json", "/etc/gateway/keys.json"), ("/run/keys.json", "/run/keys.json")):
        assert issuer(source="/etc/gateway/access.yaml", jwks={"file": file}).keys_file == Path(path)


@pytest.mark.parametrize(
    "url",
    [
        "https://id.example.com",
        "https://id.example.com/",
        "https://id.example.com:8443/a/b",
        "http://127.0.0.1:9000/x",
        "http://127.9.9.9",
        "http://localhost:1",
        "http://[::1]:1/a",
        "https://[2001:db8::1]/a",
    ],
)
def test_an_issuer_is_taken_to_the_letter(url: str) -> None:
    assert issuer(issuer=url).issuer == url


@pytest.mark.parametrize(
    "url",
    [
        "http://id.example.com",
        "http://10.0.0.1",
        "http://127.0.0.1.example.com",
        "http://localhost.example.com",
        "http://0x7f.1",
        "HTTPS://id.example.com",
        "ftp://id.example.com",
        "file:///etc/passwd",
        "id.example.com",
        "https://",
        "https:///a",
        "https://user@id.example.com",
        "https://user:secret@id.example.com",
        "https://id.example.com#a",
        "https://id.example.com/a b",
        "https://id.example.com\n",
        " https://id.example.com",
        "https://id.example.com/\\a",
        "https://id.exämple.com",
        "https://id.example.com/" + "a" * 2_000,
        7,
        None,
        ["https://id.example.com"],
    ],
)
def test_addresses_that_are_refused(url: Any) -> None:
    assert [where for where, _ in faults(SOUND | {"issuer": url})] == ["issuers.issuer0.issuer"]
    assert [where for where, _ in faults(SOUND | {"jwks": {"url": url}})] == ["issuers.issuer0.jwks"]


def test_a_query_is_for_keys_only() -> None:
    assert faults(SOUND | {"issuer": "https://id.example.com/?a=b"})


REFUSED: list[tuple[str, Any]] = [
    ("audiences", []),
    ("audiences", "gateway"),
    ("audiences", [""]),
    ("audiences", ["a b"]),
    ("audiences", [7]),
    ("audiences", ["a"] * 17),
    ("audiences", None),
    ("algorithms", []),
    ("algorithms", ["HS256"]),
    ("algorithms", ["RS256", "none"]),
    ("algorithms", ["rs256"]),
    ("algorithms", "RS256"),
    ("algorithms", [["RS256"]]),
    ("jwks", "keys"),
    ("jwks", {}),
    ("jwks", {"url": "https://a.test", "file": "a"}),
    ("jwks", {"file": ""}),
    ("jwks", {"file": "a\0b"}),
    ("jwks", {"path": "a"}),
    ("types", []),
    ("types", ["application/at+jwt"]),
    ("types", ["JWT"]),
    ("leeway", -1),
    ("leeway", 301),
    ("leeway", float("nan")),
    ("leeway", "30"),
    ("max_lifetime", 59),
    ("max_lifetime", float("inf")),
    ("max_lifetime", True),
    ("denied_subjects", "a"),
    ("denied_subjects", [7]),
    ("denied_subjects", ["a\nb"]),
    ("denied_tokens", [""]),
    ("tenant", "acme"),
    ("tenant", {}),
    ("tenant", {"fixed": []}),
    ("tenant", {"fixed": ["acme", "beta"]}),
    ("tenant", {"fixed": "acme", "claim": "t", "values": ["beta"]}),
    ("tenant", {"claim": "t"}),
    ("tenant", {"claim": "t", "values": {}}),
    ("tenant", {"values": ["acme"]}),
    ("roles", {"claim": "r"}),
    ("roles", {"values": {"a": "user"}}),
    ("roles", ["user"]),
    ("roles.claim", {"claim": "", "values": ["user"]}),
    ("roles.claim", {"claim": "a..b", "values": ["user"]}),
    ("roles.claim", {"claim": "https://example.com/roles", "values": ["user"]}),
    ("roles.claim", {"claim": [], "values": ["user"]}),
    ("roles.claim", {"claim": ["a"] * 9, "values": ["user"]}),
    ("roles.claim", {"claim": [7], "values": ["user"]}),
    ("roles.map", {"map": {}}),
    ("roles.values", {"claim": "r", "values": "user"}),
    ("roles.values.a", {"claim": "r", "values": {"a": ["user"]}}),
]


@pytest.mark.parametrize(("place", "value"), REFUSED)
def test_what_is_out_of_bounds_is_refused_at_its_place(place: str, value: Any) -> None:
    member = place.partition(".")[0]
    assert f"issuers.issuer0.{place}" in [where for where, _ in faults(SOUND | {member: value})]


@pytest.mark.parametrize("member", sorted(SOUND))
def test_what_must_be_said(member: str) -> None:
    rest = {name: value for name, value in SOUND.items() if name != member}
    ((where, expected),) = faults(rest)
    assert where == "issuers.issuer0"
    assert expected.startswith(f"expected {member}: ")


def test_roles_that_claims_map_to_must_be_known() -> None:
    expected = "expected one of the roles: user, ops"
    assert faults(SOUND | {"roles": {"fixed": ["user", "admin"]}}) == [("issuers.issuer0.roles.fixed[1]", expected)]
    mapped = {"claim": "r", "values": {"a": "user", "b.c": "root"}}
    assert faults(SOUND | {"roles": mapped}) == [("issuers.issuer0.roles.values.b.c", expected)]


def test_tenants_that_claims_map_to_must_be_known_where_unlisted_ones_are_denied() -> None:
    elsewhere = SOUND | {"tenant": {"fixed": "gamma"}}
    assert policy(elsewhere).issuers[0].tenant.fixed == ("gamma",)
    assert faults(elsewhere, unlisted_tenants="deny") == [
        ("issuers.issuer0.tenant.fixed[0]", "expected one of the tenants: acme, beta")
    ]
    bad = SOUND | {"tenant": {"claim": "t", "values": {"x": "no name"}}}
    assert [where for where, _ in faults(bad)] == ["issuers.issuer0.tenant.values.x"]


def test_two_entries_may_not_be_one_issuer() -> None:
    other = SOUND | {"issuer": "https://id.example.com/realms/other"}
    assert [one.name for one in policy(SOUND, other).issuers] == ["issuer0", "issuer1"]
    assert faults(SOUND, SOUND) == [("issuers.issuer1.issuer", "expected an issuer that no other entry has")]


def test_the_whole_list_of_algorithms_may_be_named() -> None:
    assert set(issuer(algorithms=sorted(ALGORITHMS)).algorithms) == ALGORITHMS
