"""What an operator may do at the admin listener: a closed set of verbs, and short names for the usual sets of them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class Verb(StrEnum):
    """One thing that the admin API does. A role lists those that it grants; each admin route asks for one."""

    KEYS_READ = "keys:read"
    KEYS_WRITE = "keys:write"
    ALIASES_READ = "aliases:read"
    ALIASES_WRITE = "aliases:write"
    FLEET_READ = "fleet:read"
    FLEET_WRITE = "fleet:write"
    POLICY_READ = "policy:read"
    AUDIT_READ = "audit:read"


ALL_VERBS: frozenset[str] = frozenset(Verb)
_READ = frozenset(verb for verb in Verb if verb.endswith(":read"))
VERB_SETS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "viewer": _READ,
        "operator": _READ | {Verb.ALIASES_WRITE, Verb.FLEET_WRITE},
        "admin": ALL_VERBS,
    }
)
"""What a role may name in place of single verbs."""
