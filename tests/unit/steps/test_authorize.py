"""What a caller may call: one answer for what is not there and what is not its own."""

from __future__ import annotations

import pytest

from gateway.errors import Refusal
from gateway.model import AliasTable, Principal
from gateway.policy.access import parse_access
from gateway.policy.grants import Grant
from gateway.steps.authorize import authorize
from gateway.steps.resolve import resolve

POLICY = parse_access('roles: {user: {aliases: ["*"]}, none: {}}\ndefault_roles: [user]', "access.yaml")


def _grant(*globs: str, roles: tuple[str, ...] = ()) -> Grant:
    return POLICY.grant(Principal("key-1", "acme", roles=roles, aliases=globs))


@pytest.mark.parametrize("alias", ["mine", "team-a", "model[12]-x"])
def test_what_the_grant_covers_passes(alias):
    authorize(_grant("mine", "team-*", "model[12]*"), alias)


@pytest.mark.parametrize("alias", ["min", "mine2", "Mine", "team", "model1-x", "mine\n", ""])
def test_what_it_does_not_is_refused(alias):
    with pytest.raises(Refusal):
        authorize(_grant("mine", "team-*", "model[12]*"), alias)


def test_a_forbidden_alias_looks_like_one_that_does_not_exist():
    with pytest.raises(Refusal) as forbidden:
        authorize(_grant("mine-*"), "theirs")
    with pytest.raises(Refusal) as unknown:
        resolve("theirs", AliasTable())
    assert vars(forbidden.value) == vars(unknown.value)


@pytest.mark.parametrize("grant", [_grant(), _grant("*", roles=("none",)), _grant("*", roles=("ghost",))])
def test_a_credential_that_may_call_nothing_is_told_so(grant):
    assert not grant.may_call("a")
    with pytest.raises(Refusal) as refused:
        authorize(grant, "a")
    assert (refused.value.spec.code, refused.value.spec.status) == ("alias_forbidden", 403)
