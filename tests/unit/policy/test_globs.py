"""Alias globs: ``*`` and ``?`` alone are special, and a glob covers a whole name or nothing of it."""

from __future__ import annotations

import pytest

from gateway.admin.schemas import KeyOrder
from gateway.policy.globs import EVERYTHING, NOTHING, compile_globs, is_glob


@pytest.mark.parametrize(
    ("glob", "alias", "covered"),
    [
        ("*", "anything", True),
        ("*", "org/model:v1", True),
        ("**", "anything", True),
        ("internal-general", "internal-general", True),
        ("internal-general", "internal-general2", False),
        ("internal-general", "my-internal-general", False),
        ("internal-*", "internal-", True),
        ("internal-*", "internal-a/b", True),
        ("internal-*", "internal", False),
        ("internal-**", "internal-a", True),
        ("*-chat", "team-chat", True),
        ("*-chat", "team-chat-2", False),
        ("a*z", "az", True),
        ("a*z", "a-z-", False),
        ("*mid*", "a-mid-z", True),
        ("v?", "v1", True),
        ("v?", "v", False),
        ("v?", "v12", False),
        ("?*", "a", True),
        ("?*", "", False),
        ("Internal-*", "internal-a", False),
        ("internal-*", "Internal-a", False),
        ("INTERNAL", "internal", False),
        ("a.c", "abc", False),
        ("a.c", "a.c", True),
        ("a+", "aa", False),
        ("(a)", "a", False),
        ("a|b", "a", False),
        ("^a$", "a", False),
        ("a.*", "ab", False),
        ("internal-*", "internal-a\nb", True),
        ("a?c*e", "abc\nde", True),
        ("internal-a", "internal-a\n", False),
        ("*-a?", "x-ab\n", False),
        ("", "a", False),
        ("", "", True),
        ("model[12]", "model1", False),
        ("model[12]?", "model[12]x", True),
        ("model[12]?", "model1x", False),
        ("[a-z]*?", "prod", False),
    ],
)
def test_a_glob_means_star_and_question_mark_and_case_matters(glob: str, alias: str, covered: bool) -> None:
    globs = compile_globs((glob,))
    assert globs.covers(alias) is covered
    assert globs.covering(alias) == (glob if covered else None)


def test_of_several_globs_any_may_cover_and_the_first_one_is_named() -> None:
    globs = compile_globs(("a", "b-*", "*-c", "d?e", "b-1"))
    assert [globs.covers(alias) for alias in ("a", "b-1", "x-c", "dxe", "e")] == [True, True, True, True, False]
    assert globs.covering("b-1") == "b-*"
    assert globs.covering("e") is None


def test_a_union_covers_what_either_covers() -> None:
    both = compile_globs(("a", "b*")) | compile_globs(("*c", "d?d"))
    assert all(both.covers(alias) for alias in ("a", "bx", "xc", "dxd"))
    assert not both.covers("e")
    assert both.texts == ("a", "b*", "*c", "d?d")
    assert (both | EVERYTHING).covers("e")
    assert not NOTHING.covers("")


def test_many_stars_cost_no_time() -> None:
    """A pattern of an operator's own cannot hold up the event loop."""
    assert not compile_globs(("*a" * 31 + "*b",)).covers("a" * 64)


@pytest.mark.parametrize(
    "glob", ["*", "a", "team/x:1.0_b-*", "?" * 64, "model[12]", "a{b,c}", "a\\*", "a b", "", "a" * 65, "a\n", "é*", "@"]
)
def test_a_policy_takes_the_globs_that_a_key_may_have(glob: str) -> None:
    try:
        KeyOrder(name="app", aliases=[glob])
    except ValueError:
        assert not is_glob(glob)
    else:
        assert is_glob(glob)


def test_what_is_no_text_is_no_glob() -> None:
    assert not any(map(is_glob, (None, 1, True, ["*"], {"*": 1})))
