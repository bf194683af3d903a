"""Counters and histograms for one event loop: no locks, one bisection per observation.

prometheus-client's own children take a lock and walk their buckets for each observation, 1 to 2 us apiece; with the
half dozen that a request makes that is a tenth of its cost. These are exported through its collector interface, so the
exposition format stays the library's work.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString


class HistogramCell:
    """Observations of one label set."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value in its bucket; a value equal to a bound is within it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Histogram:
    """A histogram family. Label values must come from closed sets: each new combination stays for good."""

    def __init__(self, name: str, meaning: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self.name = name
        self._meaning = meaning
        self._labels = tuple(labels)
        self._bounds = tuple(map(float, bounds))
        self._edges = (*map(floatToGoString, self._bounds), "+Inf")
        self._cells: dict[tuple[str, ...], HistogramCell] = {}

    def at(self, *labels: str) -> HistogramCell:
        """The cell of these label values."""
        cell = self._cells.get(labels)
        if cell is None:
            cell = self._cells[labels] = HistogramCell(self._bounds)
        return cell

    def observe(self, labels: tuple[str, ...], value: float) -> None:
        """Count a value in the cell of these label values."""
        cell = self._cells.get(labels)
        if cell is None:
            cell = self.at(*labels)
        # As the cell's own method does, without the call.
        cell.counts[bisect_left(cell.bounds, value)] += 1
        cell.sum += value

    def collect(self) -> Iterable[Metric]:
        """The family as the library wants it: cumulative buckets."""
        family = HistogramMetricFamily(self.name, self._meaning, labels=self._labels)
        for labels, cell in list(self._cells.items()):
            total, buckets = 0, []
            for bound, count in zip(self._edges, cell.counts, strict=True):
                total += count
                buckets.append((bound, total))
            family.add_metric(labels, buckets, cell.sum)
        yield family


class Counter:
    """A counter family."""

    def __init__(self, name: str, meaning: str, labels: Sequence[str]) -> None:
        self.name = name
        self._meaning = meaning
        self._labels = tuple(labels)
        self._cells: dict[tuple[str, ...], float] = {}

    def add(self, *labels: str, amount: float = 1.0) -> None:
        """Add to the cell of these label values."""
        self._cells[labels] = self._cells.get(labels, 0.0) + amount

    def value(self, *labels: str) -> float:
        """What the cell of these label values holds."""
        return self._cells.get(labels, 0.0)

    def collect(self) -> Iterable[Metric]:
        """The family as the library wants it."""
        family = CounterMetricFamily(self.name, self._meaning, labels=self._labels)
        for labels, value in list(self._cells.items()):
            family.add_metric(labels, value)
        yield family
