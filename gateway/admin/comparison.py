"""How the tracks of a trial do next to each other, as the admin API and ``--json`` show it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from gateway.admin.aliasviews import AliasView, alias_view
from gateway.admin.schemas import Closed
from gateway.aliasing.compare import Estimate, Row, TrackCounts, compare
from gateway.aliasing.statistics import Buckets
from gateway.model import Revision


class TrackView(Closed):
    """What one instance has counted of one track.

    Times to the first token (``ttft``) and for each further one (``tpot``) are histograms: upper bounds in seconds, and
    the count of each bucket, with one more for what is above the last bound.
    """

    requests: int
    errors: int
    ttft_bounds: list[float]
    ttft_counts: list[int]
    tpot_bounds: list[float]
    tpot_counts: list[int]


class EstimateView(Closed):
    """A figure of one track and its interval; ``None``: nothing was observed, or that end is open."""

    samples: int
    value: float | None
    low: float | None
    high: float | None


class RowView(Closed):
    """One measure of both tracks; ``unit`` ``s`` or, of a rate, empty.

    ``difference`` is canary minus stable and lies between ``low`` and ``high``; ``None``: there are fewer than
    ``minimum`` samples of a track. An open end of the interval is ``None`` as well.
    """

    measure: str
    unit: str
    minimum: int
    stable: EstimateView
    canary: EstimateView
    difference: float | None
    low: float | None
    high: float | None
    verdict: Literal["better", "worse", "same", "not enough data"]


class ComparisonView(Closed):
    """The trial, what one instance has counted of both its tracks, and what that says. ``confidence`` is of each
    interval alone."""

    alias: AliasView
    stable: TrackView
    canary: TrackView
    confidence: float
    rows: list[RowView]


_NOTHING: Mapping[str, Any] = MappingProxyType(
    {"requests": 0, "errors": 0, "ttft_bounds": [], "ttft_counts": [0], "tpot_bounds": [], "tpot_counts": [0]}
)


def comparison_view(revision: Revision, counted: Mapping[str, Mapping[str, Any]]) -> ComparisonView:
    """Both tracks of a trial, as ``AdminState.compare`` counts them."""
    stable, canary = (TrackView(**{**_NOTHING, **counted.get(track, {})}) for track in ("stable", "canary"))
    found = compare(_counts(stable), _counts(canary))
    return ComparisonView(
        alias=alias_view(revision),
        stable=stable,
        canary=canary,
        confidence=found.confidence,
        rows=[_row(row) for row in found.rows],
    )


def _counts(track: TrackView) -> TrackCounts:
    return TrackCounts(
        requests=track.requests,
        errors=track.errors,
        ttft=Buckets(tuple(track.ttft_bounds), tuple(track.ttft_counts)),
        tpot=Buckets(tuple(track.tpot_bounds), tuple(track.tpot_counts)),
    )


def _row(row: Row) -> RowView:
    return RowView(
        measure=row.measure,
        unit=row.unit,
        minimum=row.minimum,
        stable=_estimate(row.stable),
        canary=_estimate(row.canary),
        difference=row.difference,
        low=None if row.interval is None else _finite(row.interval.low),
        high=None if row.interval is None else _finite(row.interval.high),
        verdict=row.verdict.value,
    )


def _estimate(estimate: Estimate) -> EstimateView:
    low, high = map(_finite, estimate.interval)
    return EstimateView(samples=estimate.samples, value=estimate.value, low=low, high=high)


def _finite(end: float) -> float | None:
    return end if math.isfinite(end) else None
