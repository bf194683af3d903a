"""Lists and sections of a policy file: each item is judged by itself, with its own line."""

from __future__ import annotations

import pytest

from gateway.policy.document import Document, PolicyFault
from gateway.policy.reading import NAME, items, named, number, one_of, optional


def faults(document: Document) -> list[tuple[str, int, str]]:
    return [(fault.where, fault.line, fault.expected) for fault in document.faults]


def test_each_item_that_is_not_as_it_must_be_is_a_fault_of_its_own() -> None:
    document = Document("a:\n  - x\n  - y\n  - 3\n", "x.yaml")
    found = items(document, document.tree["a"], "a", one_of({"x": 1}, "letters"), 9)
    assert found == ("x",)
    assert faults(document) == [
        ("a[1]", 3, "expected one of the letters: x"),
        ("a[2]", 4, "expected one of the letters: x"),
    ]


@pytest.mark.parametrize("value", [None, "x", {"x": 1}, ["x", "x"]])
def test_what_is_no_list_or_too_long_is_one_fault(value: object) -> None:
    document = Document("a: 1\n", "x.yaml")
    assert items(document, value, "a", NAME, 1) == ()
    assert [fault.line for fault in document.faults] == [1]


def test_entries_are_given_with_their_path_and_bad_names_are_faults() -> None:
    document = Document("s:\n  good.name: 1\n  -bad: 2\n  a b: 3\n", "x.yaml")
    assert list(named(document, document.tree["s"], "s", 9)) == [("good.name", 1, "s.good.name")]
    assert [fault.line for fault in document.faults] == [3, 4]
    assert list(named(Document("", "x.yaml"), {}, "s", 0)) == []


def test_too_many_entries() -> None:
    document = Document("s: {a: 1, b: 2}\n", "x.yaml")
    assert len(list(named(document, document.tree["s"], "s", 1))) == 2
    with pytest.raises(PolicyFault, match=r"x\.yaml:1: s: expected at most 1 entries"):
        document.finish()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, 1.1, True, "1", None, 10**400])
def test_a_number_is_finite_and_within_bounds(value: object) -> None:
    assert number(0, 1, 0.5).read(value) is None


def test_numbers_that_are() -> None:
    assert [number(0, 1, 0.5).read(value) for value in (0, 1, 0.25)] == [0.0, 1.0, 0.25]
    assert number(0, 1, 0.5).default == 0.5


def test_an_optional_setting_is_none_when_it_is_not_written() -> None:
    setting = optional(number(0, 1, 0.5))
    assert (setting.default, setting.required) == (None, False)


@pytest.mark.parametrize("name", ["", "a" * 65, "-a", ".a", "a b", "a/b", "a\n", "é", 1, None])
def test_names_that_are_none(name: object) -> None:
    assert not NAME.accepts(name)
    assert NAME.accepts("a" * 64)
