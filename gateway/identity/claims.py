"""From a good token's claims to its principal, by the rules of its issuer's policy. Pure.

Only values that the policy lists count, each as it stands: what an issuer calls a group is no role of the gateway's
until a policy says so, and a token that does not come to exactly one tenant is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from gateway.identity.jwt import Claims, Reason, TokenFault
from gateway.model import Credential, Principal
from gateway.policy.issuers import ClaimRule, IssuerPolicy

MAX_VALUES = 64
"""Values of one claim that are looked at."""

RECHECK = 60.0
"""Seconds after which a token is verified anew, however long it is good for."""


def principal_of(claims: Claims, policy: IssuerPolicy, now: float) -> Principal:
    """Who a good token stands for at ``now`` (Unix seconds). Raises ``TokenFault``."""
    return Principal(
        id=principal_id(policy.name, claims.subject),
        tenant=_tenant(policy.tenant, claims.members),
        name=policy.name,
        roles=_names(policy.roles, _values(policy.roles.claim, claims.members)[:MAX_VALUES]),
        expires_at=min(claims.expires_at, now + RECHECK),
        credential=Credential.TOKEN,
    )


def principal_id(issuer_name: str, subject: str) -> str:
    """The recorded id of a subject: 64 bits of a hash, so that no record holds an address or a person's name."""
    return "jwt_" + hashlib.sha256(f"{issuer_name}\0{subject}".encode()).hexdigest()[:16]


def _tenant(rule: ClaimRule, members: Mapping[str, Any]) -> str:
    values = _values(rule.claim, members)
    # A second tenant could stand behind the last value that is looked at.
    if len(values) > MAX_VALUES:
        raise TokenFault(Reason.CLAIMS)
    names = _names(rule, values)
    if len(names) != 1:
        raise TokenFault(Reason.CLAIMS)
    return names[0]


def _names(rule: ClaimRule, values: list[Any]) -> tuple[str, ...]:
    """The policy's names for values, each once, in order. Raises ``TokenFault`` for a value that is not text."""
    if not all(type(value) is str for value in values):
        raise TokenFault(Reason.CLAIMS)
    mapped = (rule.values[value] for value in values if value in rule.values)
    return tuple(dict.fromkeys((*rule.fixed, *mapped)))


def _values(path: tuple[str, ...], members: Mapping[str, Any]) -> list[Any]:
    """The claim at a path as a list; empty when it is absent. Raises ``TokenFault`` for one of another type."""
    if not path:
        return []
    found: Any = members
    for name in path:
        if not isinstance(found, Mapping):
            raise TokenFault(Reason.CLAIMS)
        if name not in found:
            return []
        found = found[name]
    if type(found) is str:
        return [found]
    if type(found) is not list:
        raise TokenFault(Reason.CLAIMS)
    return found
