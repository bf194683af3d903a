"""Why a principal may call an alias or not, and which limits it would meet: the same rules as the request path, told.

For operators only. A caller learns nothing but 403 and 404.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.model import Principal
from gateway.policy.access import Access
from gateway.policy.globs import compile_globs
from gateway.policy.grants import Figure, Role, Standing, own_figures, own_standing, tenant_figures


@dataclass(frozen=True, slots=True)
class Check:
    """One of the lists that must cover the alias: ``roles``, ``credential`` or ``tenant``; ``because`` says why."""

    rule: str
    passed: bool
    because: str


@dataclass(frozen=True, slots=True)
class AppliedLimit:
    """A limit that a call counts against, whose budget it is, and where its figure comes from."""

    holder: str
    limit: str
    value: int
    source: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the gateway would answer to a call, and why.

    ``allowed`` is what the policy says; ``code`` is the error code of the answer, ``None`` when the call would go
    through (``model_not_found`` too when all is allowed and there is no such alias). ``roles`` are those that count,
    ``unknown_roles`` those that the policy does not know. ``standing`` and the tenant's ``weight`` count where the call
    has to wait for a place.
    """

    principal: str
    tenant: str
    alias: str
    allowed: bool
    code: str | None
    reason: str
    roles: tuple[str, ...]
    unknown_roles: tuple[str, ...]
    checks: tuple[Check, ...]
    limits: tuple[AppliedLimit, ...]
    verbs: tuple[str, ...]
    standing: Standing
    weight: float


def explain(access: Access, principal: Principal, alias: str, exists: bool) -> Explanation:
    """Tell what ``access`` makes of a call; ``exists`` says whether there is such an alias."""
    grant = access.grant(principal)
    roles = access.roles_held(principal)
    checks = (
        _roles_check(roles, alias, defaulted=not principal.roles),
        _credential_check(principal, alias),
        _tenant_check(access, principal.tenant, alias),
    )
    allowed = grant.may_call(alias)
    unknown = None if allowed and exists else "model_not_found"
    return Explanation(
        principal=principal.id,
        tenant=principal.tenant,
        alias=alias,
        allowed=allowed,
        code=unknown if grant.callable else "alias_forbidden",
        reason=_reason(checks, exists),
        roles=tuple(roles),
        unknown_roles=tuple(name for name in principal.roles if name not in access.roles),
        checks=checks,
        limits=_limits(access, principal, roles),
        verbs=tuple(sorted(str(verb) for verb in grant.verbs)),
        standing=own_standing(roles),
        weight=grant.weight,
    )


def _roles_check(roles: Mapping[str, Role], alias: str, *, defaulted: bool) -> Check:
    origin = "default role" if defaulted else "role"
    for name, role in roles.items():
        glob = role.globs.covering(alias)
        if glob is not None:
            return Check("roles", True, f"{origin} {name} grants {glob}")
    if not roles:
        return Check("roles", False, "no role of it is known to the policy")
    return Check("roles", False, f"none of its {origin}s grants it: {', '.join(roles)}")


def _credential_check(principal: Principal, alias: str) -> Check:
    glob = compile_globs(principal.aliases).covering(alias)
    if glob is not None:
        return Check("credential", True, f"its own list has {glob}")
    return Check("credential", False, f"its own list does not have it: {', '.join(principal.aliases) or 'empty'}")


def _tenant_check(access: Access, name: str, alias: str) -> Check:
    if not access.admits(name):
        return Check("tenant", False, f"tenant {name} is not listed, and unlisted tenants are denied")
    tenant = access.tenants.get(name)
    if tenant is None:
        return Check("tenant", True, f"tenant {name} is not listed, and unlisted tenants are allowed")
    if tenant.globs is None:
        return Check("tenant", True, f"tenant {name} lists no aliases")
    glob = tenant.globs.covering(alias)
    if glob is not None:
        return Check("tenant", True, f"tenant {name} lists {glob}")
    return Check("tenant", False, f"tenant {name} does not list it: {', '.join(tenant.globs.texts)}")


def _reason(checks: tuple[Check, ...], exists: bool) -> str:
    against = [check.because for check in checks if not check.passed]
    if against:
        return f"Not allowed: {'; '.join(against)}."
    granted = "; ".join(check.because for check in checks)
    return f"Allowed: {granted}." if exists else f"There is no such alias. It would be allowed: {granted}."


def _limits(access: Access, principal: Principal, roles: Mapping[str, Role]) -> tuple[AppliedLimit, ...]:
    own = own_figures(principal, roles, access.limits)
    shared = tenant_figures(principal.tenant, access.tenants.get(principal.tenant))
    return _applied(f"principal:{principal.id}", own) + _applied(f"tenant:{principal.tenant}", shared)


def _applied(holder: str, figures: tuple[Figure, ...]) -> tuple[AppliedLimit, ...]:
    return tuple(AppliedLimit(holder, *figure) for figure in figures)
