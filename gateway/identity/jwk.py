"""An issuer's published keys (RFC 7517), judged before any of them is used. Pure.

One set is taken whole or not at all. What is meant for something else (encryption, an algorithm that the policy does
not allow, a kind of key unknown here) is left out; what no issuer may publish, or what could not be told apart from
another key, refuses the set.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWK, PyJWTError

from gateway.identity.keyset import KeySet, KeySetFault, KeySetReason, parse_document
from gateway.wire.json import dump

MAX_KEYS = 32
RSA_BITS = range(2048, 8192 + 1)
"""Below, too weak (NIST SP 800-131A); above, a signature costs milliseconds of the event loop."""

_MAX_EXPONENT = 2**32 - 1
_MAX_MEMBER = 4_096
_KID = re.compile(r"[!-~]{1,128}").fullmatch
_PRIVATE = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})

# What each kind and curve can verify, and the members that make the key (RFC 7638, section 3.2).
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_ALGORITHMS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = MappingProxyType(
    {
        ("RSA", ""): _RSA,
        ("EC", "P-256"): ("ES256",),
        ("EC", "P-384"): ("ES384",),
        ("EC", "P-521"): ("ES512",),
        ("OKP", "Ed25519"): ("EdDSA",),
    }
)
_MEMBERS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"RSA": ("e", "kty", "n"), "EC": ("crv", "kty", "x", "y"), "OKP": ("crv", "kty", "x")}
)


def parse_keys(body: bytes, algorithms: Collection[str]) -> KeySet:
    """The usable keys of a JWKS document, for the algorithms of its issuer's policy. Raises ``KeySetFault``.

    An empty set is a set: an issuer that publishes no key has withdrawn them all.
    """
    listed = parse_document(body).get("keys")
    if type(listed) is not list:
        raise KeySetFault(KeySetReason.NOT_JSON)
    if len(listed) > MAX_KEYS:
        raise KeySetFault(KeySetReason.TOO_MANY_KEYS)
    _refuse_duplicate_kids(listed)
    keys: dict[str, Mapping[str, PyJWK]] = {}
    marks: set[tuple[str, str, bytes]] = set()
    for jwk in listed:
        usable = _usable_for(jwk, algorithms)
        if not usable:
            continue
        kid, members = _kid(jwk), _members(jwk)
        keys[kid] = MappingProxyType({algorithm: _build(members, algorithm) for algorithm in usable})
        mark = hashlib.sha256(dump(members)).digest()
        marks.update((kid, algorithm, mark) for algorithm in usable)
    return KeySet(MappingProxyType(keys), frozenset(marks))


def _refuse_duplicate_kids(listed: Iterable[Any]) -> None:
    kids = list(_texts(listed))
    if len(set(kids)) != len(kids):
        raise KeySetFault(KeySetReason.DUPLICATE_KID)


def _texts(listed: Iterable[Any]) -> Iterator[str]:
    for jwk in listed:
        if type(jwk) is not dict:
            raise KeySetFault(KeySetReason.INVALID)
        if type(kid := jwk.get("kid")) is str:
            yield kid


def _usable_for(jwk: Mapping[str, Any], algorithms: Collection[str]) -> tuple[str, ...]:
    """The allowed algorithms that a key may verify; none for a key that is not for this. Raises ``KeySetFault``."""
    kind, curve = jwk.get("kty"), jwk.get("crv", "")
    if kind == "oct":
        raise KeySetFault(KeySetReason.SYMMETRIC)
    if not _PRIVATE.isdisjoint(jwk):
        raise KeySetFault(KeySetReason.PRIVATE)
    if type(kind) is not str or kind not in _MEMBERS or not _is_for_signatures(jwk):
        return ()
    if type(curve) is not str or (kind, curve) not in _ALGORITHMS:
        raise KeySetFault(KeySetReason.CURVE)
    stated = jwk.get("alg")
    return tuple(
        algorithm
        for algorithm in _ALGORITHMS[kind, curve]
        if algorithm in algorithms and (stated is None or stated == algorithm)
    )


def _is_for_signatures(jwk: Mapping[str, Any]) -> bool:
    operations = jwk.get("key_ops", ["verify"])
    return jwk.get("use", "sig") == "sig" and type(operations) is list and "verify" in operations


def _kid(jwk: Mapping[str, Any]) -> str:
    kid = jwk.get("kid")
    if type(kid) is not str or _KID(kid) is None:
        raise KeySetFault(KeySetReason.KID)
    return kid


def _members(jwk: Mapping[str, Any]) -> dict[str, str]:
    """Only what makes the key: whatever else stands in a JWK must not reach a library's options."""
    members = {name: jwk.get(name) for name in _MEMBERS[jwk["kty"]]}
    if not all(type(value) is str and len(value) <= _MAX_MEMBER for value in members.values()):
        raise KeySetFault(KeySetReason.INVALID)
    return {name: str(value) for name, value in members.items()}


def _build(members: dict[str, str], algorithm: str) -> PyJWK:
    """The key itself, which checks that it is one (a point on its curve, an odd modulus). Raises ``KeySetFault``."""
    key = _try_build(members, algorithm)
    if key is None:
        raise KeySetFault(KeySetReason.INVALID)
    if isinstance(key.key, RSAPublicKey) and not _is_sound_rsa(key.key):
        raise KeySetFault(KeySetReason.WEAK)
    return key


def _try_build(members: dict[str, str], algorithm: str) -> PyJWK | None:
    try:
        return PyJWK(members, algorithm)
    except (PyJWTError, ValueError):
        return None


def _is_sound_rsa(key: RSAPublicKey) -> bool:
    return key.key_size in RSA_BITS and key.public_numbers().e <= _MAX_EXPONENT
