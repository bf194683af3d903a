"""Who may issue tokens, and what a token's claims make of its subject. Pure: no keys, no network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"})
"""What a policy may allow. No ``none``, and no HMAC: a gateway that could verify those could also forge them."""


@dataclass(frozen=True, slots=True)
class ClaimRule:
    """From a claim to names of the policy's: only values that ``values`` lists count, ``fixed`` is given to all.

    ``claim`` is a path of member names (``("realm_access", "roles")``), empty for none.
    """

    claim: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    fixed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IssuerPolicy:
    """One issuer that is trusted, and how far. Seconds.

    Keys come from ``keys_file`` (a JWKS on disk), else from ``jwks_url``, else from what the issuer's discovery
    document names. ``types`` are the accepted ``typ`` header values in lower case without ``application/``.
    ``denied_subjects`` and ``denied_tokens`` (``jti``) are refused whatever their signature says.
    """

    name: str
    issuer: str
    audiences: tuple[str, ...]
    algorithms: tuple[str, ...]
    tenant: ClaimRule
    roles: ClaimRule
    jwks_url: str | None = None
    keys_file: Path | None = None
    types: tuple[str, ...] = ("at+jwt", "jwt")
    leeway: float = 30.0
    max_lifetime: float = 86_400.0
    denied_subjects: frozenset[str] = frozenset()
    denied_tokens: frozenset[str] = frozenset()
