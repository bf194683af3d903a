"""What roles and tenants allow, and what they make of one principal: its grant. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from gateway.model import NO_LIMITS, Budget, Limits, Principal, Priority
from gateway.policy.globs import NOTHING, Globs
from gateway.recent import keep

LIMIT_BOUNDS: Mapping[str, int] = MappingProxyType(
    {
        "requests_per_minute": 10_000_000,
        "tokens_per_minute": 10**12,
        "tokens_per_day": 10**12,
        "concurrency": 1_000_000,
    }
)
"""The largest figure of each limit; the smallest is 1. Far below 2**53, which a shared store counts exactly up to."""


@dataclass(frozen=True, slots=True)
class Role:
    """What one role grants: aliases it may call, whether also in older revisions (``name@N``), admin verbs, figures in
    place of the default ones, and how soon its requests are served (``None``: it states nothing)."""

    globs: Globs = NOTHING
    verbs: frozenset[str] = frozenset()
    limits: Limits = NO_LIMITS
    pins: bool = False
    priority: Priority | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """What bounds all principals of a tenant together. ``globs`` ``None``: no narrowing.

    ``weight`` is its share of a model's tokens beside other tenants whose requests wait too, in relation to theirs.
    """

    globs: Globs | None = None
    limits: Limits = NO_LIMITS
    weight: float = 1.0


class Standing(NamedTuple):
    """How soon the requests of a principal are served, and where that comes from: ``role NAME`` or ``default``."""

    priority: Priority
    source: str


class Figure(NamedTuple):
    """One limit and where its figure comes from: ``key``, ``role NAME``, ``default`` or ``tenant NAME``."""

    limit: str
    value: int
    source: str


@dataclass(frozen=True, slots=True)
class Grant:
    """What a principal may do under one policy.

    ``callable`` is false when one of the lists that must all cover an alias is empty, so that none can be called.
    ``budgets`` are those with a limit, the principal's own first. ``verbs`` are admin verbs. ``layers`` are the lists
    that narrow: an alias may be called when each of them covers it. ``pins`` says whether an alias may be pinned to a
    revision that is not current. ``priority`` and ``weight`` count where its requests have to wait.
    """

    principal: Principal
    callable: bool
    budgets: tuple[Budget, ...]
    verbs: frozenset[str]
    layers: tuple[Globs, ...]
    pins: bool = False
    priority: Priority = Priority.STANDARD
    weight: float = 1.0

    def may_call(self, alias: str) -> bool:
        """Whether the alias is the principal's to call, be it there or not. It also decides what is listed."""
        for globs in self.layers:  # noqa: SIM110 - a generator would double the cost of the usual case
            if not globs.covers(alias):
                return False
        return True


class Grants:
    """The grants given last under one policy, by principal; at most ``capacity``."""

    def __init__(self, capacity: int = 10_000) -> None:
        self._capacity = capacity
        self._known: OrderedDict[str, Grant] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, principal: Principal, decide: Callable[[Principal], Grant]) -> Grant:
        """The grant of ``principal``: the one remembered for exactly these values, else what ``decide`` says."""
        # By id, because to hash all of a principal costs more than all else here. Two that share an id and differ (a
        # key that was changed, two tokens of one subject) replace each other.
        known = self._known.get(principal.id)
        if known is not None and (known.principal is principal or known.principal == principal):
            self._known.move_to_end(principal.id)
            return known
        grant = decide(principal)
        keep(self._known, principal.id, grant, self._capacity)
        return grant


def own_figures(principal: Principal, roles: Mapping[str, Role], default: Limits) -> tuple[Figure, ...]:
    """The limits of a principal: its own figure, else the largest that any of its roles states, else the default."""
    found = (_own_figure(limit, principal, roles, default) for limit in LIMIT_BOUNDS)
    return tuple(figure for figure in found if figure is not None)


def own_standing(roles: Mapping[str, Role]) -> Standing:
    """The best priority that any of the roles states, else standard."""
    stated = [Standing(role.priority, f"role {name}") for name, role in roles.items() if role.priority is not None]
    return min(stated, key=lambda standing: standing.priority.rank, default=Standing(Priority.STANDARD, "default"))


def tenant_figures(name: str, tenant: Tenant | None) -> tuple[Figure, ...]:
    """The limits that all principals of a tenant share."""
    if tenant is None:
        return ()
    stated = ((limit, getattr(tenant.limits, limit)) for limit in LIMIT_BOUNDS)
    return tuple(Figure(limit, value, f"tenant {name}") for limit, value in stated if value is not None)


def budget(holder: str, figures: tuple[Figure, ...]) -> Budget:
    """Figures as the budget of a holder."""
    return Budget(holder, Limits(**{figure.limit: figure.value for figure in figures}))


def _own_figure(limit: str, principal: Principal, roles: Mapping[str, Role], default: Limits) -> Figure | None:
    own: int | None = getattr(principal.limits, limit)
    if own is not None:
        return Figure(limit, own, "key")
    stated: dict[str, int | None] = {name: getattr(role.limits, limit) for name, role in roles.items()}
    figures = [Figure(limit, value, f"role {name}") for name, value in stated.items() if value is not None]
    if figures:
        return max(figures, key=lambda figure: figure.value)
    general: int | None = getattr(default, limit)
    return None if general is None else Figure(limit, general, "default")
