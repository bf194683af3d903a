import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.fleet.looks import Spread, densest, spread


@pytest.mark.parametrize(
    ("arrivals", "most"),
    [([], 0), ([3.0], 1), ([0.0, 0.05], 1), ([0.0, 0.049], 2), ([0.0, 0.04, 0.06, 0.08, 0.1], 3), ([1.0] * 7, 7)],
)
def test_the_densest_window_is_found_and_its_end_is_not_in_it(arrivals, most):
    assert densest(arrivals, 0.05) == most


@given(st.lists(st.integers(0, 400)))
def test_no_window_holds_more_than_the_densest(ticks):
    arrivals = sorted(tick / 64 for tick in ticks)
    windows = [sum(begin <= at < begin + 0.25 for at in arrivals) for begin in arrivals]
    assert densest(arrivals, 0.25) == max(windows, default=0)


def test_arrivals_in_any_order_are_held_against_an_even_spread():
    assert spread([0.9, 0.1, 0.5, 0.11], 1.0, window=0.1) == Spread(count=4, most=2, even=0.4)
    assert spread([], 10.0) == Spread(0, 0, 0.0)
    assert spread([1.0], 0.0).even == 1.0, "no time at all is one window"


def test_an_even_spread_is_no_herd_and_all_at_once_is_one():
    even = spread([number / 333 for number in range(3330)], 10.0)
    herd = spread([float(number // 333) for number in range(3330)], 10.0)
    assert not even.herd
    assert herd.herd
    assert not spread([5.0, 5.0, 5.0], 10.0).herd, "three may meet by chance"
