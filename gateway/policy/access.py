"""``access.yaml``: who may call which alias, how much of it, who may operate the gateway, and whose tokens count.

An alias may be called when all of these cover it: the globs of the principal's roles together, the globs that its
credential is narrowed to, and those of its tenant if the tenant lists some. What no rule grants is not granted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gateway.model import NO_LIMITS, Credential, Limits, Principal, Priority
from gateway.policy.document import Document, Fault, Option, PolicyFault, flag, read_options, whole, word
from gateway.policy.globs import EVERYTHING, EXPECTED_GLOB, NOTHING, Globs, compile_globs, is_glob
from gateway.policy.grants import (
    LIMIT_BOUNDS,
    Grant,
    Grants,
    Role,
    Tenant,
    budget,
    own_figures,
    own_standing,
    tenant_figures,
)
from gateway.policy.issuerfile import read_issuers
from gateway.policy.issuers import IssuerPolicy
from gateway.policy.reading import Item, items, named, number, one_of, optional
from gateway.policy.verbs import VERB_SETS, Verb

_MAX_ROLES = 256
_MAX_TENANTS = 10_000
_MAX_GLOBS = 256
_GLOB = Item(is_glob, EXPECTED_GLOB)
_LIMITS: Mapping[str, Option] = MappingProxyType(
    {name: optional(whole(1, most)) for name, most in LIMIT_BOUNDS.items()}
)
_OUTAGE: Mapping[str, Option] = MappingProxyType(
    {"limit_share": number(0, 1, 0.5), "key_grace": number(0, 86_400, 300.0)}
)
_ESTIMATE: Mapping[str, Option] = MappingProxyType(
    {"output_tokens": whole(1, 1 << 20, 1_024), "bytes_per_token": whole(1, 64, 4)}
)
_SINGLE: Mapping[str, Option] = MappingProxyType(
    {"unlisted_tenants": word(("allow", "deny"), "allow"), "failures": whole(1, 1_000_000, 60)}
)
_ROLE: Mapping[str, Option] = MappingProxyType(
    {"pins": flag(False), "priority": optional(word(Priority, Priority.STANDARD))}
)
_TENANT: Mapping[str, Option] = MappingProxyType({"weight": number(0.01, 1_000, 1.0)})
_TOP = ("roles", "default_roles", "tenants", "limits", "issuers", "outage", "estimate", *_SINGLE)
_ROLE_KEYS = ("aliases", "admin", "limits", *_ROLE)
_TENANT_KEYS = ("aliases", "limits", *_TENANT)


@dataclass(frozen=True, slots=True)
class Outage:
    """What still works without the shared store.

    ``limit_share`` is the fraction of each limit that one instance grants; ``key_grace`` the seconds that known keys
    work.
    """

    limit_share: float = 0.5
    key_grace: float = 300.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a request is taken to cost before its engine has counted.

    ``output_tokens`` are reserved for one that names no maximum; its input is its bytes over ``bytes_per_token``.
    """

    output_tokens: int = 1_024
    bytes_per_token: int = 4


@dataclass(frozen=True, slots=True)
class Access:
    """All of ``access.yaml``.

    ``default_roles`` are those of a key without any; ``unlisted_tenants`` is ``allow`` or ``deny``; ``limits``
    are the figures of a principal that neither it nor its roles state; ``failures`` is how many attempts to
    authenticate may fail per source in a minute.
    """

    roles: Mapping[str, Role]
    default_roles: tuple[str, ...] = ()
    tenants: Mapping[str, Tenant] = field(default_factory=lambda: MappingProxyType({}))
    unlisted_tenants: str = "deny"
    limits: Limits = NO_LIMITS
    issuers: tuple[IssuerPolicy, ...] = ()
    failures: int = 60
    outage: Outage = Outage()
    estimate: Estimate = Estimate()
    _grants: Grants = field(default_factory=Grants, init=False, repr=False, compare=False)

    def grant(self, principal: Principal) -> Grant:
        """What ``principal`` may do. Remembered for as long as this policy is, within a bound."""
        return self._grants.get(principal, self._decide)

    def roles_held(self, principal: Principal) -> dict[str, Role]:
        """The roles that count for a principal.

        Default roles are for keys, which an operator makes one by one: whom an issuer gives a token is up to the
        issuer, so that a token has what its claims are mapped to and nothing else.
        """
        names, is_key = principal.roles, principal.credential is Credential.KEY
        return self.roles_of(names) if names or is_key else {}

    def roles_of(self, names: Iterable[str]) -> dict[str, Role]:
        """The roles that count for somebody who holds ``names``; one that the policy does not know grants nothing."""
        return {name: self.roles[name] for name in tuple(names) or self.default_roles if name in self.roles}

    def verbs_of(self, names: Iterable[str]) -> frozenset[str]:
        """The admin verbs of somebody who holds the roles ``names``."""
        return verbs_in(self.roles_of(names))

    def admits(self, tenant: str) -> bool:
        """Whether principals of that tenant may do anything at all."""
        return tenant in self.tenants or self.unlisted_tenants == "allow"

    def tenant_globs(self, name: str) -> Globs:
        """The globs that a tenant is narrowed to."""
        if not self.admits(name):
            return NOTHING
        tenant = self.tenants.get(name)
        return EVERYTHING if tenant is None or tenant.globs is None else tenant.globs

    def _decide(self, principal: Principal) -> Grant:
        roles, tenant = self.roles_held(principal), self.tenants.get(principal.tenant)
        granted = NOTHING
        for role in roles.values():
            granted |= role.globs
        layers = (granted, compile_globs(principal.aliases), self.tenant_globs(principal.tenant))
        figures = {
            f"principal:{principal.id}": own_figures(principal, roles, self.limits),
            f"tenant:{principal.tenant}": tenant_figures(principal.tenant, tenant),
        }
        return Grant(
            principal=principal,
            callable=all(globs.texts for globs in layers),
            budgets=tuple(budget(holder, stated) for holder, stated in figures.items() if stated),
            verbs=verbs_in(roles) if self.admits(principal.tenant) else frozenset(),
            layers=tuple(globs for globs in layers if not globs.everything),
            pins=any(role.pins for role in roles.values()),
            priority=own_standing(roles).priority,
            weight=1.0 if tenant is None else tenant.weight,
        )


def verbs_in(roles: Mapping[str, Role]) -> frozenset[str]:
    """The admin verbs that roles give together."""
    return frozenset[str]().union(*(role.verbs for role in roles.values()))


def load_access(path: Path) -> Access:
    """The access policy of the file at ``path``. Raises ``PolicyFault`` with every fault, or ``OSError``."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise PolicyFault(str(path), [Fault("file", 0, "expected UTF-8")]) from None
    return parse_access(text, str(path))


def parse_access(text: str, source: str) -> Access:
    """The access policy that ``text`` says. Raises ``PolicyFault`` with every fault.

    ``source`` names the file in faults, and files that an issuer names are relative to its folder.
    """
    document = Document(text, source)
    top = document.mapping(document.tree, "", _TOP)
    single = _written(document, top, "", _SINGLE)
    # What a file cut short would lose must be written: an empty file is not a policy that grants nothing.
    for name in ("roles", "default_roles"):
        if name not in top:
            document.fault("", f"expected {name}")
    roles = {name: _role(document, entry, where) for name, entry, where in _section(document, top, "roles", _MAX_ROLES)}
    tenants = {
        name: _tenant(document, entry, where) for name, entry, where in _section(document, top, "tenants", _MAX_TENANTS)
    }
    known = one_of(roles, "roles")
    access = Access(
        roles=MappingProxyType(roles),
        default_roles=items(document, top.get("default_roles", []), "default_roles", known, _MAX_ROLES),
        tenants=MappingProxyType(tenants),
        unlisted_tenants=single["unlisted_tenants"],
        limits=_limits(document, top, ""),
        issuers=read_issuers(
            document,
            top.get("issuers", {}),
            roles=roles,
            tenants=tenants if single["unlisted_tenants"] == "deny" else None,
        ),
        failures=single["failures"],
        outage=Outage(**read_options(document, top.get("outage", {}), "outage", _OUTAGE)),
        estimate=Estimate(**read_options(document, top.get("estimate", {}), "estimate", _ESTIMATE)),
    )
    document.finish()
    return access


def _section(document: Document, top: Mapping[str, Any], name: str, most: int) -> Iterable[tuple[str, Any, str]]:
    return named(document, top.get(name, {}), name, most)


def _role(document: Document, value: Any, where: str) -> Role:
    written = document.mapping(value, where, _ROLE_KEYS)
    globs = items(document, written.get("aliases", []), f"{where}.aliases", _GLOB, _MAX_GLOBS)
    verbs = _verbs(document, written.get("admin", []), f"{where}.admin")
    single = _written(document, written, where, _ROLE)
    priority = None if single["priority"] is None else Priority(single["priority"])
    return Role(compile_globs(globs), verbs, _limits(document, written, where), single["pins"], priority)


def _tenant(document: Document, value: Any, where: str) -> Tenant:
    written = document.mapping(value, where, _TENANT_KEYS)
    limits = _limits(document, written, where)
    weight = _written(document, written, where, _TENANT)["weight"]
    if "aliases" not in written:
        return Tenant(None, limits, weight)
    globs = items(document, written["aliases"], f"{where}.aliases", _GLOB, _MAX_GLOBS)
    if written["aliases"] == []:
        document.fault(f"{where}.aliases", "expected at least one glob; leave aliases out to narrow nothing")
    return Tenant(compile_globs(globs), limits, weight)


def _written(
    document: Document, written: Mapping[str, Any], where: str, options: Mapping[str, Option]
) -> dict[str, Any]:
    return read_options(document, {name: written[name] for name in options if name in written}, where, options)


def _limits(document: Document, written: Mapping[str, Any], where: str) -> Limits:
    path = f"{where}.limits" if where else "limits"
    return Limits(**read_options(document, written.get("limits", {}), path, _LIMITS))


def _verbs(document: Document, value: Any, where: str) -> frozenset[str]:
    """Verbs out of single ones and the names of sets; one name alone may stand without a list."""
    known = {**VERB_SETS, **{verb.value: frozenset[str]({verb}) for verb in Verb}}
    names = [value] if isinstance(value, str) else value
    listed = items(document, names, where, one_of(known, "sets and verbs"), len(known))
    return frozenset[str]().union(*(known[name] for name in listed))
