"""Two tracks side by side: verdicts, the samples they need, how often they are wrong, and when a trial must end."""

from __future__ import annotations

import math
import random
from itertools import accumulate

import pytest

from gateway.aliasing.compare import Comparison, Margins, TrackCounts, Verdict, abort_reason, compare
from gateway.aliasing.statistics import Buckets, Interval, quantile_interval, rate_difference
from gateway.telemetry.metrics import FIRST_TOKEN, PER_TOKEN

SEED = 20_260_901


def spread(samples: int, *shares: float) -> Buckets:
    """Samples in the buckets around 0.25 and 0.5 s, by shares."""
    counts = [round(samples * share) for share in shares]
    return Buckets((0.25, 0.5, 1.0), tuple(counts + [0] * (4 - len(counts))))


def track(requests: int, errors: int, ttft: Buckets | None = None) -> TrackCounts:
    fast = spread(requests, 0.9, 0.1)
    return TrackCounts(requests, errors, ttft or fast, fast)


class Simulation:
    """A track whose requests fail with ``rate`` and whose first tokens take log-normal seconds, from a seed."""

    def __init__(self, rng: random.Random, rate: float, median: float, bounds: tuple[float, ...] = FIRST_TOKEN) -> None:
        self._rng, self._rate, self._bounds = rng, rate, bounds
        below = [0.5 * (1 + math.erf((math.log(bound / median)) / (0.7 * math.sqrt(2)))) for bound in bounds]
        self._below = [*below, 1.0]
        self._requests = self._errors = 0
        self._ttft = [0] * (len(bounds) + 1)

    def serve(self, requests: int) -> TrackCounts:
        """The counts after that many more requests."""
        self._requests += requests
        self._errors += sum(self._rng.random() < self._rate for _ in range(requests))
        for index in self._rng.choices(range(len(self._below)), cum_weights=self._below, k=requests):
            self._ttft[index] += 1
        empty = Buckets(PER_TOKEN, (0,) * (len(PER_TOKEN) + 1))
        return TrackCounts(self._requests, self._errors, Buckets(self._bounds, tuple(self._ttft)), empty)


# --- verdicts


def test_a_comparison_shows_both_values_their_samples_the_difference_and_its_interval():
    compared = compare(track(2_000, 20), track(1_000, 50))
    assert [row.measure for row in compared.rows] == ["error rate", "TTFT p50", "TTFT p95", "TPOT p50", "TPOT p95"]
    errors = compared.row("error rate")
    assert (errors.stable.samples, errors.stable.value) == (2_000, 0.01)
    assert (errors.canary.samples, errors.canary.value) == (1_000, 0.05)
    assert errors.difference == pytest.approx(0.04)
    assert errors.interval == rate_difference(20, 2_000, 50, 1_000, 0.95)
    assert errors.verdict is Verdict.WORSE
    assert {row.verdict for row in compared.rows[1:]} == {Verdict.SAME}


def test_a_quantile_differs_once_no_bucket_is_left_that_both_could_be_in():
    stable = track(1_000, 0, spread(1_000, 0.5, 0.5))
    slow = track(1_000, 0, spread(1_000, 0.5, 0.3, 0.2))
    row = compare(stable, slow).row("TTFT p95")
    assert (row.stable.interval, row.canary.interval) == (Interval(0.25, 0.5), Interval(0.5, 1.0))
    assert (row.interval, row.verdict) == (Interval(0.0, 0.75), Verdict.WORSE)
    assert compare(slow, stable).row("TTFT p95").verdict is Verdict.BETTER
    assert compare(stable, slow).row("TTFT p50").verdict is Verdict.SAME


def test_the_intervals_of_two_quantiles_are_each_wide_enough_to_hold_together():
    near = track(1_000, 0, Buckets((0.25, 0.5, 1.0), (467, 66, 467, 0)))
    assert quantile_interval(near.ttft, 0.5, 0.95) == Interval(0.25, 0.5)
    assert compare(near, near).row("TTFT p50").stable.interval == Interval(0.0, 1.0)


def test_what_moves_within_a_bucket_is_the_same():
    row = compare(track(1_000, 0, spread(1_000, 1.0)), track(1_000, 0, spread(1_000, 1.0))).row("TTFT p95")
    assert (row.interval, row.verdict) == (Interval(-0.25, 0.25), Verdict.SAME)


@pytest.mark.parametrize(
    ("measure", "minimum"),
    [("error rate", 30), ("TTFT p50", 30), ("TTFT p95", 100), ("TPOT p50", 30), ("TPOT p95", 100)],
)
def test_below_the_minimum_of_either_track_nothing_is_said_and_at_it_something_may_be(measure, minimum):
    def slow(samples: int) -> TrackCounts:
        late = Buckets((0.25, 0.5, 1.0), (0, 0, 0, samples))
        return TrackCounts(samples, samples, late, late)

    def fast(samples: int) -> TrackCounts:
        early = Buckets((0.25, 0.5, 1.0), (samples, 0, 0, 0))
        return TrackCounts(samples, 0, early, early)

    for stable, canary in ((minimum - 1, 10_000), (10_000, minimum - 1)):
        row = compare(fast(stable), slow(canary)).row(measure)
        assert (row.verdict, row.difference, row.interval) == (Verdict.NOT_ENOUGH, None, None)
    row = compare(fast(minimum), slow(minimum)).row(measure)
    assert (row.verdict, row.minimum) == (Verdict.WORSE, minimum)


def test_tracks_without_a_request_have_no_values():
    nothing = TrackCounts(0, 0, spread(0), spread(0))
    rows = compare(nothing, nothing).rows
    assert {(row.stable.value, row.canary.value, row.verdict) for row in rows} == {(None, None, Verdict.NOT_ENOUGH)}


def test_the_counts_of_instances_add_up():
    assert track(100, 3) + track(200, 4) == TrackCounts(300, 7, spread(300, 0.9, 0.1), spread(300, 0.9, 0.1))


@pytest.mark.parametrize(("requests", "errors"), [(1, 2), (1, -1)])
def test_errors_are_some_of_the_requests(requests, errors):
    with pytest.raises(ValueError, match="some of the requests"):
        track(requests, errors)


def test_an_unknown_measure_has_no_row():
    with pytest.raises(KeyError):
        compare(track(1, 0), track(1, 0)).row("price")


# --- the end of a trial


def ended(stable: TrackCounts, canary: TrackCounts, margins: Margins | None = None) -> str | None:
    compared = compare(stable, canary)
    return abort_reason(compared) if margins is None else abort_reason(compared, margins)


def test_a_canary_that_fails_at_everything_ends_at_the_minimum():
    assert ended(track(30, 0), track(29, 29)) is None
    assert ended(track(30, 0), track(30, 30)) == (
        "error rate 100.00 % of 30 requests against 0.00 % of 30: worse by at least 62.49 points, 1.00 are allowed"
    )


def test_more_errors_than_the_margin_allows_must_be_sure():
    assert ended(track(2_000, 100), track(2_000, 200)) is not None
    assert ended(track(2_000, 100), track(2_000, 200), Margins(error_rate=0.03)) is None
    assert ended(track(2_000, 100), track(200, 20)) is None
    assert ended(track(200, 20), track(2_000, 20)) is None


def test_a_first_token_that_takes_too_much_longer_ends_a_canary():
    stable, slow = track(1_000, 0, spread(1_000, 0.5, 0.5)), track(1_000, 0, spread(1_000, 0.5, 0, 0, 0.5))
    assert ended(stable, slow) == (
        "p95 of the time to the first token at least 1 s in 1000 answers against at most 0.486 s in 1000: "
        "1.5 times as long is allowed"
    )
    assert ended(stable, slow, Margins(ttft_p95=2.0)) is not None
    assert ended(stable, slow, Margins(ttft_p95=2.1)) is None
    assert ended(slow, stable) is None


def test_of_too_few_first_tokens_nothing_is_concluded():
    few = spread(99, 0, 0, 0, 1)
    assert ended(track(10_000, 0, spread(10_000, 1.0)), track(99, 0, few)) is None


def test_a_guard_that_looks_fifty_times_at_equal_tracks_is_wrong_in_fewer_than_one_trial_of_twenty():
    rng = random.Random(SEED)
    trials, wrong = 120, 0
    for _ in range(trials):
        rate = rng.choice((0.01, 0.05, 0.2))
        stable, canary = Simulation(rng, rate, 0.3), Simulation(rng, rate, 0.3)
        looks = (compare_for_guard(stable.serve(90), canary.serve(20)) for _ in range(50))
        wrong += any(abort_reason(look) is not None for look in looks)
    assert wrong / trials < 0.05


def compare_for_guard(stable: TrackCounts, canary: TrackCounts) -> Comparison:
    """What ``abort_reason`` needs: it makes its own rows."""
    return Comparison(stable, canary, 0.95, ())


def chance(total: int, rate: float) -> list[float]:
    """The binomial law."""
    return [
        math.exp(
            math.lgamma(total + 1)
            - math.lgamma(hits + 1)
            - math.lgamma(total - hits + 1)
            + hits * math.log(rate)
            + (total - hits) * math.log1p(-rate)
        )
        for hits in range(total + 1)
    ]


@pytest.mark.parametrize(("stable", "canary"), [(30, 30), (300, 30), (1_000, 30), (1_000, 100)])
@pytest.mark.parametrize("rate", [0.01, 0.05, 0.3])
def test_one_look_at_equal_error_rates_ends_a_trial_in_fewer_than_one_of_six_hundred(stable, canary, rate):
    """Summed over the binomial law of both tracks, not simulated. The smallest canaries are the least certain."""
    least = 1e-8
    wrong = 0.0
    canaries = [(hits, part) for hits, part in enumerate(chance(canary, rate)) if part > least]
    for hits, part in enumerate(chance(stable, rate)):
        if part > least:
            worst = (other for other, _ in canaries if rate_difference(hits, stable, other, canary, 0.999).low > 0.01)
            first = next(worst, canary + 1)
            wrong += part * sum(share for other, share in canaries if other >= first)
    assert wrong < 1 / 600


@pytest.mark.parametrize(
    ("rate", "shown", "ends"),
    [(0.02, 0.9, 0.0), (0.05, 0.99, 0.8), (0.1, 0.99, 0.99)],
)
def test_a_doubled_error_rate_is_found_with_two_thousand_requests_of_each_track(rate, shown, ends):
    rng = random.Random(SEED)
    trials, found, stopped = 200, 0, 0
    for _ in range(trials):
        one = sum(rng.random() < rate for _ in range(2_000))
        two = sum(rng.random() < 2 * rate for _ in range(2_000))
        compared = compare(track(2_000, one), track(2_000, two))
        found += compared.row("error rate").verdict is Verdict.WORSE
        stopped += abort_reason(compared) is not None
    assert found / trials >= shown
    assert stopped / trials >= ends


def test_rows_of_equal_tracks_differ_seldom():
    rng = random.Random(SEED)
    trials, wrong = 300, {"error rate": 0, "TTFT p50": 0, "TTFT p95": 0}
    for _ in range(trials):
        stable, canary = Simulation(rng, 0.05, 0.25).serve(400), Simulation(rng, 0.05, 0.25).serve(400)
        rows = compare(stable, canary).rows
        for name in wrong:
            wrong[name] += next(row for row in rows if row.measure == name).verdict in {Verdict.BETTER, Verdict.WORSE}
    # Right in 95 of 100 by construction, so that 15 of 300 are expected of a rate and 30 would be far out.
    assert wrong["error rate"] < 30
    assert wrong["TTFT p50"] + wrong["TTFT p95"] < 30


@pytest.mark.parametrize("median", [0.05, 0.1, 0.2, 0.5, 1.0])
def test_a_first_token_three_times_as_late_is_found_with_two_thousand_answers(median):
    rng = random.Random(SEED)
    for _ in range(20):
        stable, canary = Simulation(rng, 0.01, median), Simulation(rng, 0.01, 3 * median)
        assert abort_reason(compare_for_guard(stable.serve(2_000), canary.serve(2_000))) is not None


def test_what_may_have_happened_inside_one_bucket_ends_nothing():
    stable = track(2_000, 0, Buckets((1.0, 2.5), (1_840, 160, 0)))
    canary = track(2_000, 0, Buckets((1.0, 2.5), (0, 2_000, 0)))
    assert ended(stable, canary, Margins(ttft_p95=1.01)) is None


def test_the_simulation_has_the_law_that_it_should():
    counts = Simulation(random.Random(SEED), 0.1, 0.25).serve(10_000)
    below = list(accumulate(counts.ttft.counts))[FIRST_TOKEN.index(0.25)]
    assert below / 10_000 == pytest.approx(0.5, abs=0.02)
    assert counts.errors / 10_000 == pytest.approx(0.1, abs=0.01)
