"""A JSON Web Token, read strictly and judged (RFC 7519, RFC 8725, RFC 9068). Pure: keys and the time are given.

A token is read once, by the gateway's own strict parser, and the signature is checked over exactly the octets that were
read. PyJWT's ``decode`` would read header and claims a second time with a parser that keeps the last of two equal
members, so only its keys and its signature check are used.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from gateway.policy.issuers import IssuerPolicy
from gateway.wire.json import JsonFault, parse_object

if TYPE_CHECKING:  # keys bring their cryptography with them; where there is no issuer, nobody waits for it
    from jwt import PyJWK

MAX_TOKEN = 8_192
"""Longer texts are refused unread. A 2 MB token would cost 69 ms before it is refused."""

_MAX_DEPTH = 8
_MAX_SUBJECT = 255  # OpenID Connect Core 1.0, section 2
_MAX_ISSUER = 1_024
_MAX_TOKEN_ID = 256
_MAX_AUDIENCES = 16
_LATEST = float(2**53)

_KID = re.compile(r"[!-~]{1,128}").fullmatch
# Extensions that must be understood (RFC 7515, section 4.1.11), and an unencoded payload (RFC 7797): none is.
_CRITICAL = ("crit", "b64")
# Claims of ID tokens, logout tokens and security events. Their ``typ`` is often the same ``JWT`` as an access token's.
_FOREIGN = frozenset({"nonce", "at_hash", "c_hash", "s_hash", "events"})

KeysById: TypeAlias = "Mapping[str, Mapping[str, PyJWK]]"
"""``kid`` to algorithm to key: a key verifies only what it is held under."""


class Reason(StrEnum):
    """Why a token was refused; a closed set, so that it may be a label."""

    MALFORMED = "malformed"
    ISSUER = "issuer"
    ALGORITHM = "algorithm"
    KEY = "key"
    SIGNATURE = "signature"
    EXPIRED = "expired"
    NOT_YET = "not_yet"
    AUDIENCE = "audience"
    TYPE = "type"
    LIFETIME = "lifetime"
    CLAIMS = "claims"
    DENIED = "denied"


class TokenFault(Exception):
    """The token is not good. Carries a reason, never a part of the token."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason
        super().__init__(reason.value)


@dataclass(frozen=True, slots=True, repr=False)
class Unverified:
    """What a token says of itself. Nothing in it may be believed; ``issuer`` and ``kid`` only choose what is tried."""

    issuer: str
    algorithm: str
    kid: str
    header: Mapping[str, Any]
    claims: Mapping[str, Any]
    signed: bytes
    signature: bytes


@dataclass(frozen=True, slots=True, repr=False)
class Claims:
    """What a good token says: its subject, the Unix second after which it is void, and all its members."""

    subject: str
    expires_at: float
    members: Mapping[str, Any]


def read(token: str) -> Unverified:
    """Take a token apart: three parts of canonical base64url, two JSON objects without equal members.

    Canonical means that one signature has one text: padding or stray bits would make a second token of it. Raises
    ``TokenFault``. ``jku``, ``x5u``, ``jwk`` and ``x5c`` are not looked at: a token does not say which key to trust.
    """
    if len(token) > MAX_TOKEN or token.count(".") != 2:
        raise TokenFault(Reason.MALFORMED)
    signed, _, last = token.rpartition(".")
    first, _, second = signed.partition(".")
    header, claims, signature = _object(_decode(first)), _object(_decode(second)), _decode(last)
    if any(name in header for name in _CRITICAL):
        raise TokenFault(Reason.MALFORMED)
    algorithm, kid, issuer = header.get("alg"), header.get("kid"), claims.get("iss")
    if type(algorithm) is not str:
        raise TokenFault(Reason.ALGORITHM)
    if type(kid) is not str or _KID(kid) is None:
        raise TokenFault(Reason.KEY)
    if not _is_text(issuer, _MAX_ISSUER):
        raise TokenFault(Reason.ISSUER)
    return Unverified(issuer, algorithm, kid, header, claims, signed.encode(), signature)


def screen(token: Unverified, policy: IssuerPolicy) -> None:
    """What can be refused without a key: issuer, algorithm, type (an absent one is empty). Raises ``TokenFault``."""
    if token.issuer != policy.issuer:
        raise TokenFault(Reason.ISSUER)
    if token.algorithm not in policy.algorithms:
        raise TokenFault(Reason.ALGORITHM)
    kind = token.header.get("typ", "")
    if type(kind) is not str or not kind.isascii() or kind.lower().removeprefix("application/") not in policy.types:
        raise TokenFault(Reason.TYPE)


def verify(token: Unverified, policy: IssuerPolicy, keys: KeysById, now: float) -> Claims:
    """The claims of a token that is good at ``now`` (Unix seconds) by the policy of its issuer and that issuer's keys.

    The signature comes before the claims: whoever cannot sign learns nothing of what they must say. Raises
    ``TokenFault``.
    """
    screen(token, policy)
    by_algorithm = keys.get(token.kid)
    if by_algorithm is None:
        raise TokenFault(Reason.KEY)
    key = by_algorithm.get(token.algorithm)
    if key is None:
        raise TokenFault(Reason.ALGORITHM)
    if not key.Algorithm.verify(token.signed, key.key, token.signature):
        raise TokenFault(Reason.SIGNATURE)
    if not _FOREIGN.isdisjoint(token.claims):
        raise TokenFault(Reason.TYPE)
    expires_at = _check_times(token.claims, policy, now)
    _check_audience(token.claims.get("aud"), policy)
    return Claims(_subject(token.claims, policy), expires_at, token.claims)


def _check_times(claims: Mapping[str, Any], policy: IssuerPolicy, now: float) -> float:
    expires_at, issued_at, not_before = claims.get("exp"), claims.get("iat"), claims.get("nbf", 0)
    if not (_is_time(expires_at) and _is_time(issued_at) and _is_time(not_before)):
        raise TokenFault(Reason.CLAIMS)
    if now >= expires_at + policy.leeway:
        raise TokenFault(Reason.EXPIRED)
    if max(issued_at, not_before) > now + policy.leeway:
        raise TokenFault(Reason.NOT_YET)
    if not 0 < expires_at - issued_at <= policy.max_lifetime:
        raise TokenFault(Reason.LIFETIME)
    return float(expires_at)


def _check_audience(value: Any, policy: IssuerPolicy) -> None:
    """Every audience that the token names must be one of the policy's.

    A token that is also for somebody else is one that this somebody can present here.
    """
    named = [value] if type(value) is str else value
    if type(named) is not list or not 0 < len(named) <= _MAX_AUDIENCES:
        raise TokenFault(Reason.AUDIENCE)
    if not all(type(name) is str and name in policy.audiences for name in named):
        raise TokenFault(Reason.AUDIENCE)


def _subject(claims: Mapping[str, Any], policy: IssuerPolicy) -> str:
    subject, token_id = claims.get("sub"), claims.get("jti", "-")
    if not (_is_text(subject, _MAX_SUBJECT) and _is_text(token_id, _MAX_TOKEN_ID)):
        raise TokenFault(Reason.CLAIMS)
    if subject in policy.denied_subjects or token_id in policy.denied_tokens:
        raise TokenFault(Reason.DENIED)
    return subject


def _is_text(value: Any, longest: int) -> TypeGuard[str]:
    return type(value) is str and 0 < len(value) <= longest


def _is_time(value: Any) -> TypeGuard[float]:
    """A NumericDate: a number, which ``True`` is not, and one that arithmetic keeps exact."""
    return (type(value) is int or type(value) is float) and 0 <= value < _LATEST


def _decode(part: str) -> bytes:
    """Base64url without padding. What does not come out the same when encoded again is refused."""
    data = _decode_leniently(part)
    if not data or base64.urlsafe_b64encode(data).rstrip(b"=").decode() != part:
        raise TokenFault(Reason.MALFORMED)
    return data


def _decode_leniently(part: str) -> bytes:
    """Nothing for what cannot be decoded: the error would hold the token, and stay reachable as a fault's context."""
    try:
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except ValueError:
        return b""


def _object(data: bytes) -> dict[str, Any]:
    try:
        return parse_object(data, max_depth=_MAX_DEPTH)
    except JsonFault:
        raise TokenFault(Reason.MALFORMED) from None
