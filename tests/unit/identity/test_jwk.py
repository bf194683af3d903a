"""An issuer's key set: what is taken, what is left out, and what refuses the whole set."""

from __future__ import annotations

import json

import pytest

from gateway.identity.jwk import MAX_KEYS, KeySet, KeySetFault, KeySetReason, parse_keys
from gateway.policy.issuers import ALGORITHMS
from tests.issuer import WEAK, b64, jwk_of, private_key

RSA = jwk_of(private_key("RS256").public_key(), "RS256", "rsa")
P256 = jwk_of(private_key("ES256").public_key(), "ES256", "p256")
P384 = jwk_of(private_key("ES384").public_key(), "ES384", "p384")
P521 = jwk_of(private_key("ES512").public_key(), "ES512", "p521")
ED = jwk_of(private_key("EdDSA").public_key(), "EdDSA", "ed")


def without(jwk, *names):
    return {name: value for name, value in jwk.items() if name not in names}


def parsed(*jwks, algorithms=ALGORITHMS) -> KeySet:
    return parse_keys(json.dumps({"keys": jwks}).encode(), algorithms)


def offers(*jwks, algorithms=ALGORITHMS) -> dict[str, set[str]]:
    return {kid: set(keys) for kid, keys in parsed(*jwks, algorithms=algorithms).keys.items()}


def fault(*jwks) -> KeySetReason:
    with pytest.raises(KeySetFault) as caught:
        parsed(*jwks)
    assert caught.value.__context__ is None
    return caught.value.reason


def test_a_set_of_every_kind():
    assert offers(RSA, P256, P384, P521, ED) == {
        "rsa": {"RS256"}, "p256": {"ES256"}, "p384": {"ES384"}, "p521": {"ES512"}, "ed": {"EdDSA"},
    }  # fmt: skip


def test_a_key_that_states_no_algorithm_has_those_of_its_kind_that_the_policy_allows():
    plain = without(RSA, "alg", "use")
    assert offers(plain, algorithms=("RS256", "PS512", "ES256")) == {"rsa": {"RS256", "PS512"}}
    assert offers(without(P384, "alg"), algorithms=("ES256", "ES384")) == {"p384": {"ES384"}}


@pytest.mark.parametrize(
    "other",
    [
        {**RSA, "use": "enc"},
        {**RSA, "use": ["sig"]},
        {**RSA, "key_ops": ["encrypt"]},
        {**RSA, "key_ops": "verify"},
        {**RSA, "alg": "RSA-OAEP"},
        {**RSA, "alg": "HS256"},
        {**RSA, "alg": "ES256"},
        {**RSA, "alg": "none"},
        {**RSA, "alg": "rs256"},
        {**RSA, "alg": ["RS256"]},
        {**P256, "alg": "ES384"},
        {**ED, "alg": "Ed25519"},
        {"kty": "AKP", "alg": "ML-DSA-44", "kid": "pq", "pub": "AA"},
        {"kty": 7},
        {"kty": ["RSA"]},
        {},
        {"kty": "OKP", "crv": "X25519", "use": "enc", "x": b64(b"x" * 32), "kid": "x"},
    ],
)
def test_a_key_for_something_else_is_left_out(other):
    assert offers({**other, "kid": "other"}, P256) == {"p256": {"ES256"}}


def test_an_issuer_may_publish_no_key():
    assert parsed() == KeySet()


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"kty": "oct", "k": b64(b"k" * 32), "kid": "k", "alg": "HS256"}, KeySetReason.SYMMETRIC),
        ({"kty": "oct", "use": "enc"}, KeySetReason.SYMMETRIC),
        ({**RSA, "kid": "b", "k": "AA"}, KeySetReason.PRIVATE),
        (jwk_of(private_key("RS256"), "RS256", "b"), KeySetReason.PRIVATE),
        (jwk_of(private_key("ES256"), "ES256", "b"), KeySetReason.PRIVATE),
        (jwk_of(private_key("EdDSA"), "EdDSA", "b"), KeySetReason.PRIVATE),
        ({**jwk_of(private_key("RS256"), "RS256", "b"), "use": "enc"}, KeySetReason.PRIVATE),
        (jwk_of(private_key(WEAK).public_key(), "RS256", "b"), KeySetReason.WEAK),
        ({**RSA, "kid": "b", "e": b64(b"\x01" + b"\0" * 4 + b"\x01")}, KeySetReason.WEAK),
        ({**RSA, "kid": "b", "n": b64(b"\xff" * 1_500)}, KeySetReason.WEAK),
        ({**RSA, "kid": "b", "e": "AQ"}, KeySetReason.INVALID),
        ({**RSA, "kid": "b", "e": "Ag"}, KeySetReason.INVALID),
        ({**RSA, "kid": "b", "n": ""}, KeySetReason.INVALID),
        ({**RSA, "kid": "b", "n": 7}, KeySetReason.INVALID),
        ({**RSA, "kid": "b", "n": "é"}, KeySetReason.INVALID),
        ({**RSA, "kid": "b", "n": "A" * 5_000}, KeySetReason.INVALID),
        ({**P256, "kid": "b", "x": P256["y"]}, KeySetReason.INVALID),
        ({**P256, "kid": "b", "x": b64(b"\0" * 32), "y": b64(b"\0" * 32)}, KeySetReason.INVALID),
        (without({**P256, "kid": "b"}, "y"), KeySetReason.INVALID),
        ({**ED, "kid": "b", "x": "AA"}, KeySetReason.INVALID),
        ("not an object", KeySetReason.INVALID),
        (None, KeySetReason.INVALID),
        ({**P256, "kid": "b", "crv": "secp256k1"}, KeySetReason.CURVE),
        ({**P256, "kid": "b", "crv": ["P-256"]}, KeySetReason.CURVE),
        (without({**P256, "kid": "b"}, "crv"), KeySetReason.CURVE),
        ({**ED, "kid": "b", "crv": "Ed448"}, KeySetReason.CURVE),
        ({**RSA, "kid": "b", "crv": "P-256"}, KeySetReason.CURVE),
        (without(RSA, "kid"), KeySetReason.KID),
        ({**RSA, "kid": ""}, KeySetReason.KID),
        ({**RSA, "kid": 7}, KeySetReason.KID),
        ({**RSA, "kid": "k" * 129}, KeySetReason.KID),
        ({**RSA, "kid": "a\0b"}, KeySetReason.KID),
        ({**RSA, "kid": "a b"}, KeySetReason.KID),
        (P256, KeySetReason.DUPLICATE_KID),
        ({**RSA, "kid": "p256"}, KeySetReason.DUPLICATE_KID),
        ({**RSA, "kid": "p256", "use": "enc"}, KeySetReason.DUPLICATE_KID),
    ],
)
def test_what_refuses_the_whole_set(bad, reason):
    assert fault(P256, bad) is reason
    assert fault(bad, P256) is reason


def test_a_set_has_a_greatest_size():
    many = [{**ED, "kid": str(number)} for number in range(MAX_KEYS + 1)]
    assert len(offers(*many[:-1])) == MAX_KEYS
    assert fault(*many) is KeySetReason.TOO_MANY_KEYS


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b"null", b"\xff", b'{"keys": {}}', b'{"keys": null}', b'{"keys":[],"keys":[]}',
     b'{"keys":[NaN]}',     b'{"keys":' + b"[" * 40 + b"]" * 40 + b"}"],
)  # fmt: skip
def test_what_is_no_key_set(body):
    with pytest.raises(KeySetFault) as caught:
        parse_keys(body, ALGORITHMS)
    assert caught.value.reason is KeySetReason.NOT_JSON


def test_marks_tell_another_key_under_the_same_kid():
    before, same = parsed(P256), parsed({**P256, "x5t": "changed"})
    other = parsed(jwk_of(private_key("ES256", 1).public_key(), "ES256", "p256"))
    assert before.marks == same.marks
    assert before.keys.keys() == other.keys.keys()
    assert not before.marks & other.marks
    assert parsed(P256, ED).marks > before.marks


def test_a_set_cannot_be_changed():
    keys = parsed(P256).keys
    with pytest.raises(TypeError):
        keys["p256"] = {}
    with pytest.raises(TypeError):
        keys["p256"]["ES256"] = None
