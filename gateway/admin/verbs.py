"""Which admin verb each route of the admin plane needs: the one table, and the check that it is whole.

The gate authorises by it before a body is read. A route without a row, or a row without a route, and there is no admin
plane: nobody can add a door and forget its lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from starlette.routing import Match
from starlette.types import Scope

from gateway.errors import Refusal
from gateway.policy.verbs import ALL_VERBS, Verb

OPEN = "open"
"""In place of a verb: whoever reaches the listener may. Such an answer holds no text, no name and no key."""

TABLE: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("GET", "/healthz"): OPEN,
        ("GET", "/readyz"): OPEN,
        ("GET", "/metrics"): OPEN,
        ("GET", "/admin/keys"): Verb.KEYS_READ,
        ("POST", "/admin/keys"): Verb.KEYS_WRITE,
        ("GET", "/admin/keys/{key_id}"): Verb.KEYS_READ,
        ("POST", "/admin/keys/{key_id}/revoke"): Verb.KEYS_WRITE,
        ("POST", "/admin/keys/{key_id}/rotate"): Verb.KEYS_WRITE,
        ("GET", "/admin/aliases"): Verb.ALIASES_READ,
        ("GET", "/admin/aliases/{name:path}"): Verb.ALIASES_READ,
        ("PUT", "/admin/aliases/{name:path}"): Verb.ALIASES_WRITE,
        ("DELETE", "/admin/aliases/{name:path}"): Verb.ALIASES_WRITE,
        ("GET", "/admin/alias-history/{name:path}"): Verb.ALIASES_READ,
        ("GET", "/admin/alias-diff/{name:path}"): Verb.ALIASES_READ,
        ("GET", "/admin/alias-compare/{name:path}"): Verb.ALIASES_READ,
        ("POST", "/admin/alias-rollback/{name:path}"): Verb.ALIASES_WRITE,
        ("POST", "/admin/alias-canary/{name:path}"): Verb.ALIASES_WRITE,
        ("POST", "/admin/alias-promote/{name:path}"): Verb.ALIASES_WRITE,
        ("POST", "/admin/alias-abort/{name:path}"): Verb.ALIASES_WRITE,
        ("GET", "/admin/fleet"): Verb.FLEET_READ,
        ("GET", "/admin/fleet/{replica_id:path}"): Verb.FLEET_READ,
        ("POST", "/admin/fleet"): Verb.FLEET_WRITE,
        ("POST", "/admin/fleet-remove/{replica_id:path}"): Verb.FLEET_WRITE,
        ("POST", "/admin/fleet-drain/{replica_id:path}"): Verb.FLEET_WRITE,
        ("POST", "/admin/fleet-undrain/{replica_id:path}"): Verb.FLEET_WRITE,
        ("POST", "/admin/fleet-warm/{replica_id:path}"): Verb.FLEET_WRITE,
        ("GET", "/admin/fleet-explain"): Verb.FLEET_READ,
        ("GET", "/admin/fleet-explain/{request_id:path}"): Verb.FLEET_READ,
        ("GET", "/admin/instances"): Verb.ALIASES_READ,
        ("GET", "/admin/audit"): Verb.AUDIT_READ,
        ("GET", "/admin/audit/verify"): Verb.AUDIT_READ,
        ("GET", "/admin/policy"): Verb.POLICY_READ,
        ("GET", "/admin/policy/explain"): Verb.POLICY_READ,
    }
)


class RouteLike(Protocol):
    """What the check reads of a route of the framework."""

    @property
    def path(self) -> str | None: ...
    @property
    def methods(self) -> set[str] | None: ...
    def matches(self, scope: Scope) -> tuple[Match, Any]:
        """Whether the route is the one for a request."""
        ...


class Doors:
    """The routes of an application with the verb of each."""

    def __init__(self, routes: Sequence[RouteLike], table: Mapping[tuple[str, str], str] = TABLE) -> None:
        """Raises ``ValueError`` when routes and table differ, or a verb is not of the closed set."""
        rows = [row for route in routes for row in _rows(route)]
        faults = [*_faults(rows, table)]
        if faults:
            raise ValueError("; ".join(faults))
        self._routes = tuple(routes)
        self._table = table

    def verb(self, scope: Scope) -> str | Refusal:
        """The verb that a request needs, ``OPEN``, or, when no route is for it, what to answer to whoever is known.

        The application's own routes are asked, in their own order: gate and router cannot read a path differently. A
        path with control characters has no route: a pattern's end matches before a line feed as well.
        """
        code = "not_found"
        for route in self._routes if scope["path"].isprintable() else ():
            match, _ = route.matches(scope)
            if match is Match.FULL:
                return self._table[scope["method"], str(route.path)]
            if match is Match.PARTIAL:
                code = "method_not_allowed"
        return Refusal(code)


def _rows(route: RouteLike) -> list[tuple[str, str]]:
    return [(method, str(route.path)) for method in sorted(route.methods or {"ANY"})]


def _faults(rows: Sequence[tuple[str, str]], table: Mapping[tuple[str, str], str]) -> Iterable[str]:
    yield from (f"{method} {path} has no verb" for method, path in sorted(set(rows) - set(table)))
    yield from (f"{method} {path} has a verb and no route" for method, path in sorted(set(table) - set(rows)))
    yield from (f"{verb} is no admin verb" for verb in sorted(set(table.values()) - ALL_VERBS - {OPEN}))
    yield from (f"{method} {path} is there twice" for method, path in sorted(rows) if rows.count((method, path)) > 1)
