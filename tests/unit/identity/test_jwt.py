"""One token: how it is read, and what makes it good. Attacks stand in tests/security/test_jwt_attacks.py."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gateway.identity.jwk import parse_keys
from gateway.identity.jwt import MAX_TOKEN, Claims, Reason, TokenFault, read, screen, verify
from gateway.policy.issuers import ClaimRule, IssuerPolicy
from tests.issuer import b64, jwk_of, private_key, raw_token

NOW = 1_800_000_000
ISSUER = "https://id.test"
POLICY = IssuerPolicy(
    "corp",
    ISSUER,
    ("gateway", "gateway-2"),
    ("RS256", "PS256", "ES256", "ES384", "EdDSA"),
    ClaimRule(fixed=("t",)),
    ClaimRule(),
    denied_subjects=frozenset({"mallory"}),
    denied_tokens=frozenset({"stolen"}),
)
SOUND = {"iss": ISSUER, "sub": "alice", "aud": "gateway", "iat": NOW, "exp": NOW + 600}
GONE = object()


def keys(*algorithms: str):
    published = [jwk_of(private_key(name).public_key(), name, name) for name in algorithms]
    return parse_keys(json.dumps({"keys": published}).encode(), POLICY.algorithms).keys


KEYS = keys("RS256", "PS256", "ES256", "ES384", "EdDSA")


def made(algorithm: str = "ES256", header=None, **claims) -> str:
    head = {"alg": algorithm, "kid": algorithm, "typ": "at+jwt", **(header or {})}
    body = {**SOUND, **claims}
    return raw_token(
        {name: value for name, value in head.items() if value is not GONE},
        {name: value for name, value in body.items() if value is not GONE},
        private_key(algorithm),
        algorithm,
    )


def judged(token: str, policy: IssuerPolicy = POLICY, now: float = NOW) -> Claims | Reason:
    try:
        return verify(read(token), policy, KEYS, now)
    except TokenFault as fault:
        return fault.reason


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "ES384", "EdDSA"])
def test_a_good_token_says_who_its_subject_is_and_until_when(algorithm):
    assert judged(made(algorithm)) == Claims("alice", NOW + 600.0, SOUND)


def test_what_a_token_says_of_itself_does_not_print():
    token = made(sub="somebody@example.com")
    for held in (read(token), judged(token)):
        assert not any(part in repr(held) for part in ("somebody", "ES256", ISSUER))


@pytest.mark.parametrize(
    "text", ["", "..", "a.b", "a.b.c.d", "a.b.c.d.e", "gw_live_x", "é.é.é", "\0.\0.\0", "\ud800.a.b"]
)
def test_what_is_no_token(text):
    assert judged(text) is Reason.MALFORMED


def test_a_token_of_the_greatest_size_and_one_beyond():
    def padded(length):
        return made(x="a" * length)

    sizes = range(5_700, 6_300)
    good = max(length for length in sizes if len(padded(length)) <= MAX_TOKEN)
    assert isinstance(judged(padded(good)), Claims)
    assert judged(padded(good + 4)) is Reason.MALFORMED


@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize("change", ["{}=", "{}==", "{}!", " {}", "{}\n", "{}A", "+{}", "/{}", "{}.", ""])
def test_each_part_has_one_text(part, change):
    parts = made().split(".")
    parts[part] = change.format(parts[part])
    assert judged(".".join(parts)) is not None
    assert not isinstance(judged(".".join(parts)), Claims)


def test_stray_bits_behind_the_last_octet_are_refused():
    header, claims, signature = made("EdDSA").split(".")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    stray = signature[:-1] + alphabet[alphabet.index(signature[-1]) | 1]
    assert stray != signature
    assert judged(f"{header}.{claims}.{stray}") is Reason.MALFORMED


@pytest.mark.parametrize("member", ["alg", "kid", "typ"])
def test_a_header_needs_its_members(member):
    reasons = {"alg": Reason.ALGORITHM, "kid": Reason.KEY, "typ": Reason.TYPE}
    assert judged(made(header={member: GONE})) is reasons[member]


@pytest.mark.parametrize("member", ["iss", "sub", "aud", "exp", "iat"])
def test_claims_need_their_members(member):
    reasons = {"iss": Reason.ISSUER, "aud": Reason.AUDIENCE}
    assert judged(made(**{member: GONE})) is reasons.get(member, Reason.CLAIMS)


def test_times_with_their_leeway():
    token = made(nbf=NOW)
    assert isinstance(judged(token, now=NOW - 30), Claims)
    assert judged(token, now=NOW - 31) is Reason.NOT_YET
    assert isinstance(judged(token, now=NOW + 629.9), Claims)
    assert judged(token, now=NOW + 630) is Reason.EXPIRED
    assert judged(made(nbf=NOW + 31)) is Reason.NOT_YET
    assert isinstance(judged(made(nbf=NOW + 30)), Claims)
    assert isinstance(judged(made(iat=NOW + 0.5, exp=NOW + 1.5)), Claims)


def test_a_lifetime_beyond_the_policy_is_refused():
    assert isinstance(judged(made(exp=NOW + 86_400)), Claims)
    assert judged(made(exp=NOW + 86_401)) is Reason.LIFETIME
    assert judged(made(iat=NOW, exp=NOW)) is Reason.LIFETIME
    assert judged(made(iat=NOW + 20, exp=NOW + 10)) is Reason.LIFETIME


def test_the_policy_names_types():
    assert isinstance(judged(made(header={"typ": "application/AT+JWT"})), Claims)
    assert isinstance(judged(made(header={"typ": "JWT"})), Claims)
    assert judged(made(header={"typ": "JWT"}), replace(POLICY, types=("at+jwt",))) is Reason.TYPE
    kelvin = replace(POLICY, types=("key+jwt",))
    assert isinstance(judged(made(header={"typ": "Key+JWT"}), kelvin), Claims)
    assert judged(made(header={"typ": "\u212aey+jwt"}), kelvin) is Reason.TYPE  # its lower case is a plain k
    untyped = replace(POLICY, types=("",))
    assert isinstance(judged(made(header={"typ": GONE}), untyped), Claims)


def test_the_policy_names_algorithms_and_denies():
    assert judged(made("ES256"), replace(POLICY, algorithms=("RS256",))) is Reason.ALGORITHM
    assert judged(made(sub="mallory")) is Reason.DENIED
    assert judged(made(jti="stolen")) is Reason.DENIED
    assert isinstance(judged(made(jti="mine")), Claims)


def test_what_needs_no_key_is_refused_without_one():
    token = read(made())
    screen(token, POLICY)
    for other in (replace(POLICY, issuer="https://id.test/"), replace(POLICY, algorithms=("RS256",))):
        with pytest.raises(TokenFault):
            screen(token, other)


def test_a_fault_holds_no_part_of_the_token():
    token = made(sub="somebody@example.com").replace(".", ".!", 1)
    with pytest.raises(TokenFault) as caught:
        read(token)
    assert str(caught.value) == "malformed"
    assert caught.value.__context__ is None


def test_a_nested_token_is_no_object():
    inner = b64(made().encode())
    assert judged(f"{b64(b'{}')}.{inner}.AA") is Reason.MALFORMED
