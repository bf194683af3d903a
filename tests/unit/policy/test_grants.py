"""One principal's grant: its figures, its budgets, and how few grants are remembered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.model import NO_LIMITS, Budget, Limits, Principal, Priority
from gateway.policy.globs import EVERYTHING, NOTHING, compile_globs
from gateway.policy.grants import (
    LIMIT_BOUNDS,
    Figure,
    Grant,
    Grants,
    Role,
    Standing,
    Tenant,
    budget,
    own_figures,
    own_standing,
    tenant_figures,
)

WHO = Principal("key-1", "acme")
SMALL = Role(limits=Limits(requests_per_minute=10, concurrency=9))
LARGE = Role(limits=Limits(requests_per_minute=20))


def decide(principal: Principal) -> Grant:
    return Grant(principal, True, (), frozenset(), ())


def test_the_bounds_name_every_limit() -> None:
    assert set(LIMIT_BOUNDS) == set(Limits.__slots__)


def test_a_grant_may_call_what_every_layer_covers() -> None:
    grant = replace(decide(WHO), layers=(compile_globs(("a*", "b")), compile_globs(("*z",))))
    assert [grant.may_call(alias) for alias in ("az", "a", "b", "z")] == [True, False, False, False]
    assert decide(WHO).may_call("anything")
    assert not replace(decide(WHO), layers=(EVERYTHING, NOTHING)).may_call("anything")


@pytest.mark.parametrize(
    ("own", "roles", "default", "figure"),
    [
        (5, {"s": SMALL, "l": LARGE}, 7, Figure("requests_per_minute", 5, "key")),
        (None, {"s": SMALL, "l": LARGE}, 99, Figure("requests_per_minute", 20, "role l")),
        (None, {"l": LARGE, "s": SMALL}, 99, Figure("requests_per_minute", 20, "role l")),
        (None, {"s": SMALL, "none": Role()}, 99, Figure("requests_per_minute", 10, "role s")),
        (None, {"none": Role()}, 7, Figure("requests_per_minute", 7, "default")),
        (None, {}, 7, Figure("requests_per_minute", 7, "default")),
        (None, {}, None, None),
    ],
)
def test_a_figure_is_the_keys_else_the_largest_of_its_roles_else_the_default(
    own: int | None, roles: dict[str, Role], default: int | None, figure: Figure | None
) -> None:
    principal = replace(WHO, limits=Limits(requests_per_minute=own))
    figures = own_figures(principal, roles, Limits(requests_per_minute=default))
    assert next((one for one in figures if one.limit == "requests_per_minute"), None) == figure


def test_each_figure_is_found_by_itself() -> None:
    principal = replace(WHO, limits=Limits(tokens_per_day=1))
    figures = own_figures(principal, {"s": SMALL, "l": LARGE}, Limits(2, 3, 4, 5))
    assert figures == (
        Figure("requests_per_minute", 20, "role l"),
        Figure("tokens_per_minute", 3, "default"),
        Figure("tokens_per_day", 1, "key"),
        Figure("concurrency", 9, "role s"),
    )
    assert budget("principal:key-1", figures) == Budget("principal:key-1", Limits(20, 3, 1, 9))


@pytest.mark.parametrize(
    ("stated", "standing"),
    [
        ({}, Standing(Priority.STANDARD, "default")),
        ({"a": None}, Standing(Priority.STANDARD, "default")),
        ({"a": None, "b": Priority.BULK}, Standing(Priority.BULK, "role b")),
        ({"a": Priority.BULK, "b": Priority.STANDARD}, Standing(Priority.STANDARD, "role b")),
        ({"a": Priority.INTERACTIVE, "b": Priority.INTERACTIVE}, Standing(Priority.INTERACTIVE, "role a")),
    ],
)
def test_a_priority_is_the_best_that_a_role_states_else_standard(
    stated: dict[str, Priority | None], standing: Standing
) -> None:
    assert own_standing({name: Role(priority=priority) for name, priority in stated.items()}) == standing


def test_a_tenants_figures() -> None:
    assert tenant_figures("acme", Tenant(limits=Limits(concurrency=3))) == (Figure("concurrency", 3, "tenant acme"),)
    assert tenant_figures("acme", Tenant()) == tenant_figures("acme", None) == ()
    assert budget("tenant:acme", ()).limits == NO_LIMITS


def test_a_grant_is_remembered_for_exactly_that_principal() -> None:
    grants = Grants()
    first = grants.get(WHO, decide)
    assert grants.get(WHO, decide) is first
    assert grants.get(replace(WHO), decide) is first
    narrower = replace(WHO, aliases=("a",))
    assert grants.get(narrower, decide).principal is narrower
    assert grants.get(WHO, decide).principal is WHO
    assert len(grants) == 1


def test_what_is_remembered_is_bounded_and_the_least_used_goes_first() -> None:
    grants = Grants(capacity=3)
    principals = [replace(WHO, id=f"key-{n}") for n in range(4)]
    kept = [grants.get(principal, decide) for principal in principals[:3]]
    grants.get(principals[0], decide)
    grants.get(principals[3], decide)
    assert len(grants) == 3
    assert grants.get(principals[0], decide) is kept[0]
    assert grants.get(principals[1], decide) is not kept[1]
