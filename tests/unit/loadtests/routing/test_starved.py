import os

import pytest

from loadtests.routing.starved import parse_schedstat, share, waited


def test_the_second_figure_is_the_time_waited_in_nanoseconds() -> None:
    assert parse_schedstat("124812260 28565099024 243\n") == pytest.approx(28.565099024)


def test_the_one_that_waited_most_counts() -> None:
    assert share([1.0, 5.0], [1.5, 5.1], 2.0) == pytest.approx(0.25)
    assert share([], [], 2.0) == 0.0


@pytest.mark.parametrize(("before", "after", "seconds"), [(None, [1.0], 1.0), ([1.0], None, 1.0), ([1.0], [2.0], 0.0)])
def test_what_is_not_known_is_no_share(before: list[float] | None, after: list[float] | None, seconds: float) -> None:
    assert share(before, after, seconds) is None


def test_a_process_that_is_gone_makes_it_unknown() -> None:
    assert waited([os.getpid(), 2**22 + 1]) is None
