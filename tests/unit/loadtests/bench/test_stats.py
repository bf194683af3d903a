import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.bench import stats


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, None),
        ([7.0], 0.99, 7.0),
        ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0),
        ([1.0, 2.0, 3.0, 4.0], 0.51, 3.0),
        ([1.0, 2.0, 3.0, 4.0], 0.0, 1.0),
        ([1.0, 2.0, 3.0, 4.0], 1.0, 4.0),
        ([float(n) for n in range(1, 101)], 0.99, 99.0),
    ],
)
def test_percentile_is_the_nearest_rank(values: list[float], share: float, expected: float | None) -> None:
    assert stats.percentile(values, share) == expected


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1))
def test_percentile_is_a_measured_value_that_enough_others_do_not_exceed(values: list[float], share: float) -> None:
    found = stats.percentile(sorted(values), share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9


def test_middle_and_spread_pass_over_what_is_missing() -> None:
    assert stats.middle([None, 3.0, 1.0, None, 2.0]) == 2.0
    assert stats.middle([None]) is None
    assert stats.spread([90.0, None, 100.0, 120.0]) == pytest.approx(0.3)
    assert stats.spread([5.0, None]) is None
    assert stats.spread([-1.0, 1.0]) is None


def test_a_ratio_without_both_sides_is_none_and_never_a_division_by_zero() -> None:
    assert stats.ratio(3.0, 4.0) == 0.75
    assert stats.ratio(None, 4.0) is None
    assert stats.ratio(3.0, None) is None
    assert stats.ratio(3.0, 0.0) is None
    assert stats.ratio(0.0, 4.0) == 0.0


def test_a_chunk_costs_what_the_run_cost_beyond_its_requests() -> None:
    assert stats.cpu_per_chunk(cpu_us=10_000.0, requests=10, chunks=400, cpu_us_per_chat=200.0) == 20.0
    assert stats.cpu_per_chunk(cpu_us=10_000.0, requests=10, chunks=0, cpu_us_per_chat=200.0) is None
    assert stats.cpu_per_chunk(cpu_us=10_000.0, requests=10, chunks=400, cpu_us_per_chat=None) is None
