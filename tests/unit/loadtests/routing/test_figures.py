import pytest

from loadtests.routing.client import Answered
from loadtests.routing.engines import Counters
from loadtests.routing.figures import Run, Times, figures, first_errors, times


def answered(ttft: float | None, total: float = 2.0, error: str = "", late: float = 0.0) -> Answered:
    return Answered(1.0, ttft, total, error, late)


def test_percentiles_are_measured_values() -> None:
    assert times([number / 100 for number in range(100, 0, -1)]) == Times(0.5, 0.9, 0.99)
    assert times([]) == Times(None, None, None)


def test_a_failed_request_counts_as_an_error_and_not_as_a_time() -> None:
    run = Run(
        [answered(0.1), answered(0.3, 4.0), answered(0.001, 0.002, "cut off"), answered(None, 9.0, "refused")], []
    )
    row = figures([run])
    assert (row.requests, row.errors) == (4, 2)
    assert row.ttft == Times(0.1, 0.3, 0.3)
    assert row.total == Times(2.0, 4.0, 4.0)


def test_the_hit_rate_is_that_of_all_tokens_not_the_mean_of_rates() -> None:
    row = figures([Run([], [Counters(1000, 900, 1), Counters(3000, 100, 2)])])
    assert row.hit_rate == pytest.approx(0.25)
    assert row.most == pytest.approx(0.75)
    assert row.preemptions == 3


def test_runs_are_put_together() -> None:
    one = Run([answered(0.1)] * 9, [Counters(100, 0), Counters(0, 0)], starved=0.02)
    two = Run([answered(1.0)], [Counters(0, 0), Counters(300, 200)], starved=0.3, stall=0.4)
    row = figures([one, two])
    assert row.ttft == Times(0.1, 0.1, 1.0)
    assert row.hit_rate == pytest.approx(0.5)
    assert row.most == 1.0, "each run has engines of its own"
    assert (row.starved, row.stall) == (0.3, 0.4)


def test_nothing_measured_is_no_figure() -> None:
    row = figures([], 1.0)
    assert (row.requests, row.errors, row.preemptions) == (0, 0, 0)
    assert row.goodput is row.hit_rate is row.most is row.late_p99 is row.starved is row.ttft.p99 is None


def test_different_errors_are_shown_once_each() -> None:
    errors = ["a", "b", "a", "c"]
    assert first_errors([Run([answered(None, error=error) for error in errors], [])], 2) == ["a", "b"]
    assert first_errors([Run([answered(0.1)], [])], 2) == []


def test_goodput_counts_what_came_in_time_and_whole_for_each_second() -> None:
    run = Run([answered(0.1), answered(0.5), answered(0.51), answered(0.1, error="cut"), answered(None)], [], seconds=4)
    assert figures([run], 0.5).goodput == pytest.approx(0.5)
    assert figures([run, run], 0.5).goodput == pytest.approx(0.5), "of all seconds together"
    assert figures([run]).goodput is None


@pytest.mark.parametrize(
    ("run", "trusted"),
    [
        (Run([answered(0.1)], []), True),
        (Run([answered(0.1, late=0.06)], []), False),
        (Run([answered(0.1)], [], starved=0.11), False),
        (Run([answered(0.1)], [], stall=0.11), False),
        (Run([answered(0.1, late=0.04)], [], starved=0.1, stall=0.1), True),
    ],
)
def test_figures_of_a_host_that_was_too_busy_are_not_trusted(run: Run, trusted: bool) -> None:
    assert figures([run]).trusted is trusted
