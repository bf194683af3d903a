"""Names of aliases: the grammar, and the alias that a served model gets by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.aliasorders import AliasOrder
from gateway.admin.schemas import alias_name
from gateway.policy.names import automatic_aliases, is_alias, is_model

GOOD = ["a", "chat", "Qwen/Qwen3-8B", "a.b_c:d-e", "..a", "a..", ".a/b", "x" * 64]
BAD = [
    "",
    "a@1",
    "a b",
    "x" * 65,
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "../up",
    "x/../y",
    "a/.",
    "a\n",
    "é",
    "'",
    '"',
    "*",
    "a?",
]
NAMES = st.text(st.sampled_from("ab./@'\n é"), max_size=12) | st.text(max_size=80)


@pytest.mark.parametrize("name", GOOD)
def test_what_may_be_an_alias(name):
    assert is_alias(name)
    assert alias_name(name) == name


@pytest.mark.parametrize("name", BAD)
def test_what_may_not(name):
    assert not is_alias(name)
    with pytest.raises(ValueError, match="expected an alias name, 1 to 64 of"):
        alias_name(name)


@pytest.mark.parametrize("value", [None, 7, b"a", ["a"]])
def test_what_is_no_text_is_no_name(value):
    assert not is_alias(value)
    assert not is_model(value)


@pytest.mark.parametrize("name", ["m", "/models/one", "plain@7", "it's", "x" * 256])
def test_what_an_alias_may_be_pointed_at(name):
    assert is_model(name)
    assert AliasOrder(model=name).model == name


@pytest.mark.parametrize("name", ["", "a b", "é", "a\n", "x" * 257])
def test_what_it_may_not(name):
    assert not is_model(name)
    with pytest.raises(ValueError, match="model"):
        AliasOrder(model=name)


def test_a_model_gets_its_own_name_and_a_path_the_one_without_its_slashes():
    named, rest = automatic_aliases(["chat", "/models/one", "//two", "Qwen/Qwen3-8B"])
    assert named == {
        "chat": "chat",
        "models/one": "/models/one",
        "two": "//two",
        "Qwen/Qwen3-8B": "Qwen/Qwen3-8B",
    }
    assert rest == ()


def test_an_engines_word_that_is_no_alias_makes_none():
    hostile = ["plain@7", "../up", "x/../y", "/../up", "/", "it's", '"', "x" * 200, "a b", "a\u202eb", "models/"]
    named, rest = automatic_aliases([*hostile, "fine"])
    assert named == {"fine": "fine"}
    assert sorted(rest) == sorted(hostile)


@pytest.mark.parametrize("order", [("/x", "x", "//x"), ("x", "//x", "/x"), ("//x", "/x", "x")])
def test_of_models_with_one_alias_the_one_that_is_called_so_gets_it(order):
    named, rest = automatic_aliases(order)
    assert named == {"x": "x"}
    assert rest == ("//x", "/x")


@given(models=st.lists(NAMES, unique=True, max_size=8))
def test_every_model_is_either_named_well_or_told(models):
    named, rest = automatic_aliases(models)
    assert all(is_alias(alias) and model.lstrip("/") == alias for alias, model in named.items())
    assert sorted([*named.values(), *rest]) == sorted(models)
    assert automatic_aliases(reversed(models)) == (named, rest)
