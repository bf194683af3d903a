"""What a principal may call: globs of ``*`` and ``?``, and one answer for what is not there and what is not yours."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.schemas import KeyOrder
from gateway.errors import Refusal
from gateway.model import AliasTable, Principal
from gateway.steps.authorize import authorize, may_call
from gateway.steps.resolve import resolve


def _principal(*globs: str) -> Principal:
    return Principal("key-1", "acme", aliases=globs)


@pytest.mark.parametrize(
    ("glob", "alias", "allowed"),
    [
        ("*", "anything", True),
        ("*", "org/model:v1", True),
        ("internal-general", "internal-general", True),
        ("internal-general", "internal-general2", False),
        ("internal-general", "my-internal-general", False),
        ("internal-*", "internal-", True),
        ("internal-*", "internal-a/b", True),
        ("internal-*", "internal", False),
        ("*-chat", "team-chat", True),
        ("*-chat", "team-chat-2", False),
        ("v?", "v1", True),
        ("v?", "v", False),
        ("v?", "v12", False),
        ("Internal-*", "internal-a", False),
        ("internal-*", "Internal-a", False),
        ("INTERNAL", "internal", False),
        ("a.c", "abc", False),
        ("a.c", "a.c", True),
        ("a+", "aa", False),
        ("(a)", "a", False),
        ("a|b", "a", False),
        ("^a$", "a", False),
        ("internal-*", "internal-a\nb", True),
        ("internal-a", "internal-a\n", False),
        ("", "a", False),
        ("", "", True),
    ],
)
def test_a_glob_means_star_and_question_mark_and_case_matters(glob, alias, allowed):
    assert may_call(_principal(glob), alias) is allowed


@pytest.mark.parametrize(
    ("glob", "alias"), [("model[12]", "model1"), ("model[!x]", "model1"), ("model[1]*", "model1-x"), ("[a-z]*", "prod")]
)
def test_a_bracket_in_a_grant_means_itself(glob, alias):
    """An engine may be named ``model[12]``; a grant for it may not open ``model1`` as well."""
    assert not may_call(_principal(glob), alias)
    assert may_call(_principal("model[12]*"), "model[12]-x")


@pytest.mark.parametrize("glob", ["model[12]", "a{b,c}", "a\\*", "a b", "", "a" * 65, "a\n", "é*"])
def test_a_grant_with_anything_but_names_and_the_two_signs_is_refused_when_it_is_made(glob):
    with pytest.raises(ValueError, match="aliases"):
        KeyOrder(name="app", aliases=[glob])


NAMES = st.text("ab-/.", min_size=1, max_size=8)
GLOBS = st.text("ab-/.*?", min_size=1, max_size=8)


@given(st.lists(GLOBS, max_size=4), NAMES)
def test_it_is_allowed_when_any_glob_covers_the_whole_name(globs, alias):
    def covers(glob: str) -> bool:
        parts = {"*": ".*", "?": "."}
        return re.fullmatch("".join(parts.get(c, re.escape(c)) for c in glob), alias, re.DOTALL) is not None

    assert may_call(_principal(*globs), alias) is any(map(covers, globs))


def test_many_stars_cost_no_time():
    """A pattern of an operator's own cannot hold up the event loop."""
    assert not may_call(_principal("*a" * 31 + "*b"), "a" * 64)


@given(st.lists(GLOBS, min_size=1, max_size=3), NAMES)
def test_authorize_refuses_exactly_what_may_not_be_called(globs, alias):
    principal = _principal(*globs)
    if may_call(principal, alias):
        authorize(principal, alias)
    else:
        with pytest.raises(Refusal):
            authorize(principal, alias)


def test_a_forbidden_alias_looks_like_one_that_does_not_exist():
    with pytest.raises(Refusal) as forbidden:
        authorize(_principal("mine-*"), "theirs")
    with pytest.raises(Refusal) as unknown:
        resolve("theirs", AliasTable())
    assert vars(forbidden.value) == vars(unknown.value)


def test_a_credential_that_may_call_nothing_is_told_so():
    assert not may_call(_principal(), "a")
    with pytest.raises(Refusal) as refused:
        authorize(_principal(), "a")
    assert refused.value.spec.code == "alias_forbidden"
