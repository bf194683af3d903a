"""What others have is believed only if it can be true, fades with age, and takes no more memory than it may."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.balance.shared import (
    EXPIRY,
    MAX_INSTANCES,
    MAX_REPLICAS,
    MAX_REPORT,
    WHOLE,
    Heard,
    ReportFault,
    SharedLoad,
    pack,
    unpack,
    weight,
)

NOW = 1_000.0
POINTS = st.integers(0, 2**64 - 1)
FIGURES = st.tuples(st.integers(0, 1_000_000), st.integers(0, 10**12))


def record(point: int = 7, requests: int = 1, tokens: int = 100) -> bytes:
    return struct.pack("<QIQ", point, requests, tokens)


def heard(*reports: bytes, age: float = 0.0) -> SharedLoad:
    table = SharedLoad()
    table.hear([Heard(report, age) for report in reports], NOW)
    return table


# --- reports


@given(st.dictionaries(POINTS, FIGURES, max_size=20))
def test_a_report_says_what_its_instance_has(figures):
    busy = {point: each for point, each in figures.items() if any(each)}
    report = pack(figures)
    assert (unpack(report) if busy else report) == (busy or b"")
    assert len(report) <= MAX_REPORT


def test_an_instance_that_has_nothing_has_no_report():
    assert pack({}) == pack({7: (0, 0)}) == b""


def test_of_too_many_replicas_those_with_the_most_are_told():
    report = pack({point: (1, point) for point in range(MAX_REPLICAS + 100)})
    assert len(report) == MAX_REPORT
    assert set(unpack(report)) == set(range(100, MAX_REPLICAS + 100))


@given(st.integers(), st.integers())
def test_whatever_is_counted_here_makes_a_report_that_others_believe(requests, tokens):
    report = pack({7: (requests, tokens)})
    assert not report or all(figure >= 0 for figure in unpack(report)[7])


@pytest.mark.parametrize(
    "report",
    [
        b"",
        b"x",
        b"\x02" + record(),  # of a newer version
        b"\x01" + record()[:-1],
        b"\x01" + record() + b"\x00",
        b"\x01" + record() * 2,
        b"\x01" + record(requests=1_000_001),
        b"\x01" + record(requests=2**32 - 1),  # -1, for who writes it so
        b"\x01" + record(tokens=10**12 + 1),
        b"\x01" + struct.pack("<QId", 7, 1, math.nan),
        b"\x01" + struct.pack("<QId", 7, 1, math.inf),
        b"\x01" + struct.pack("<Qiq", 7, -1, 5),
        b"\x01" + b"".join(record(point) for point in range(MAX_REPLICAS + 1)),
        b"\x01" + b"\xff" * 10_000_000,
        b'{"127.0.0.1:8000": [1, NaN]}',
    ],
)
def test_what_is_no_report_is_dropped_whole_and_counted(report):
    with pytest.raises(ReportFault):
        unpack(report)
    table = heard(report, pack({7: (2, 300)}))
    assert table.refused == 1
    assert table.totals(NOW) == {7: (2, 300)}


@given(st.binary(max_size=200))
def test_any_bytes_are_a_report_or_are_refused(report):
    try:
        told = unpack(report)
    except ReportFault:
        return
    assert all(0 <= requests <= 1_000_000 and 0 <= tokens <= 10**12 for requests, tokens in told.values())


@pytest.mark.parametrize("age", [math.nan, -1.0, -math.inf])
def test_a_report_without_an_age_is_not_believed(age):
    table = heard(pack({7: (2, 300)}), age=age)
    assert (table.refused, len(table)) == (1, 0)


def test_no_more_instances_are_kept_than_there_may_be():
    table = heard(*[pack({7: (1, 10)})] * (MAX_INSTANCES + 30))
    assert len(table) == MAX_INSTANCES
    assert table.refused == 30
    assert table.others(7, NOW) == (MAX_INSTANCES, 10 * MAX_INSTANCES)


# --- the table


def test_figures_of_all_others_add_up_by_replica():
    table = heard(pack({7: (2, 300), 8: (1, 50)}), pack({7: (1, 4_000)}))
    assert table.totals(NOW) == {7: (3, 4_300), 8: (1, 50)}
    assert table.others(7, NOW) == (3, 4_300)
    assert table.others(9, NOW) == (0, 0)


def test_who_is_not_heard_of_any_more_has_nothing():
    table = heard(pack({7: (2, 300)}), pack({8: (1, 50)}))
    table.hear([Heard(pack({8: (1, 60)}), 0.0)], NOW + 0.1)
    assert table.totals(NOW + 0.1) == {8: (1, 60)}


def test_what_is_not_renewed_counts_whole_at_first_and_then_fades():
    table = heard(pack({7: (10, 10_000)}), age=0.05)
    assert table.others(7, NOW + WHOLE - 0.06) == (10, 10_000)
    halfway = NOW - 0.05 + (WHOLE + EXPIRY) / 2
    assert table.others(7, halfway) == (5, pytest.approx(5_000, abs=1))
    assert table.others(7, NOW + EXPIRY - 0.04) == (0, 0)
    assert len(table) == 0


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_the_older_counts_never_more(one, other):
    younger, older = min(one, other), max(one, other)
    assert 0.0 <= weight(older) <= weight(younger) <= 1.0


@given(st.floats(0, EXPIRY), st.floats(0, 0.01))
def test_there_is_no_age_at_which_anything_jumps(age, later):
    assert weight(age) - weight(age + later) <= later / (EXPIRY - WHOLE) + 1e-9


def test_from_the_expiry_on_nothing_counts():
    assert weight(EXPIRY) == weight(math.inf) == weight(math.nan) == 0.0
    assert weight(0.0) == weight(-5.0) == 1.0


@given(
    st.lists(st.tuples(st.dictionaries(POINTS, FIGURES, min_size=1, max_size=3), st.floats(0, 2)), max_size=4),
    st.lists(st.floats(0, 2), min_size=2, max_size=2),
)
def test_what_is_known_of_a_replica_only_gets_less_until_the_others_are_heard_again(reports, times):
    table = SharedLoad()
    table.hear([Heard(pack(figures) or pack({1: (1, 1)}), age) for figures, age in reports], NOW)
    before, after = table.totals(NOW + min(times)), table.totals(NOW + max(times))
    for point, (requests, tokens) in after.items():
        assert requests <= before[point][0]
        assert tokens <= before[point][1]
