"""The comparison of two tracks as it is shown."""

from __future__ import annotations

import json

from gateway.admin.comparison import ComparisonView, comparison_view
from gateway.model import Revision, Target

TRIAL = Revision("chat", 4, (Target("a", 95), Target("b", 5)), "ops", 9.0, source="canary", canary_of=3)
BOUNDS = [0.1, 0.2, 0.4]


def track(requests: int, errors: int, *counts: int) -> dict[str, object]:
    return {
        "requests": requests,
        "errors": errors,
        "ttft_bounds": BOUNDS,
        "ttft_counts": list(counts),
        "tpot_bounds": BOUNDS,
        "tpot_counts": [0, 0, 0, 0],
    }


def test_a_slower_and_failing_canary_is_worse():
    view = comparison_view(
        TRIAL, {"stable": track(1_000, 1, 1_000, 0, 0, 0), "canary": track(1_000, 100, 0, 0, 900, 0)}
    )
    verdicts = {row.measure: row.verdict for row in view.rows}
    assert verdicts == {
        "error rate": "worse",
        "TTFT p50": "worse",
        "TTFT p95": "worse",
        "TPOT p50": "not enough data",
        "TPOT p95": "not enough data",
    }
    errors = view.rows[0]
    assert (errors.stable.samples, errors.canary.value) == (1_000, 0.1)
    assert errors.low is not None
    assert errors.high is not None
    assert errors.difference is not None
    assert 0 < errors.low < errors.difference < errors.high


def test_without_a_request_nothing_is_said_and_open_ends_are_json():
    view = comparison_view(TRIAL, {})
    assert {row.verdict for row in view.rows} == {"not enough data"}
    assert {row.difference for row in view.rows} == {None}
    # JSON has no infinity: what is open must come back as it went.
    assert ComparisonView.model_validate_json(json.dumps(view.model_dump(), allow_nan=False)) == view


def test_an_interval_that_is_open_above_is_shown_so():
    above = track(200, 0, 0, 0, 0, 200)
    row = comparison_view(TRIAL, {"stable": track(200, 0, 200, 0, 0, 0), "canary": above}).rows[1]
    assert (row.measure, row.verdict, row.high) == ("TTFT p50", "worse", None)
    assert row.canary.high is None
