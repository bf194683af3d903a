"""Rows by name: in the table's order, once each, and a name that is not there is told with those that are."""

from types import SimpleNamespace

import pytest

from loadtests.bench.named import named

TABLE = [SimpleNamespace(name=name) for name in ("one", "two", "three")]


@pytest.mark.parametrize(
    ("names", "found"), [([], []), (["two"], ["two"]), (["three", "one", "three"], ["one", "three"])]
)
def test_rows_come_in_the_order_of_the_table_and_once(names, found):
    assert [row.name for row in named(TABLE, iter(names), "row", ValueError)] == found


def test_a_name_without_a_row_is_told_with_those_that_have_one():
    with pytest.raises(LookupError, match=r"no row 'four'; there are: one, two, three"):
        named(TABLE, ["one", "four", "five"], "row", LookupError)
