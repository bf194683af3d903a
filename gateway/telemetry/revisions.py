"""How each revision of an alias does: requests, failures and token times, by track, so that two can be compared.

Revisions are many in the long run, so that only the newest few of each alias that were called are kept: a series that
ends belongs to a revision that nobody calls.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from gateway.errors import CODES
from gateway.telemetry.cells import HistogramCell
from gateway.telemetry.trace import Trace

_LABELS = ("alias", "revision", "track")
_KEPT = 4
_FAULTS = frozenset(code for code, spec in CODES.items() if spec.status >= 500)


class TrackCell:
    """What one track of one revision has done. Requests that were refused, or whose client left, are neither."""

    __slots__ = ("failures", "per_token", "served", "ttft")

    def __init__(self, ttft: Sequence[float], per_token: Sequence[float]) -> None:
        self.served = 0
        self.failures = 0
        self.ttft = HistogramCell(ttft)
        self.per_token = HistogramCell(per_token)

    def observe(self, trace: Trace) -> None:
        """Count a finished request."""
        if trace.error in _FAULTS:
            self.failures += 1
        elif trace.status == 200:
            self.served += 1
        if trace.ttft_ms is not None:
            self.ttft.observe(trace.ttft_ms / 1e3)
        if trace.tpot_ms is not None:
            self.per_token.observe(trace.tpot_ms / 1e3)


class RevisionStats:
    """Cells by alias, revision and track; and when each revision last served, for whoever takes it along."""

    def __init__(self, ttft: Sequence[float], per_token: Sequence[float]) -> None:
        self._ttft = tuple(map(float, ttft))
        self._per_token = tuple(map(float, per_token))
        self._aliases: dict[str, OrderedDict[int, dict[str, TrackCell]]] = {}
        self._uses: dict[tuple[str, int], float] = {}

    def observe(self, trace: Trace) -> None:
        """Count a finished request of an alias that was found."""
        alias, revision = trace.alias, trace.revision
        if alias is None or revision is None:
            return
        revisions = self._aliases.get(alias)
        if revisions is None:
            revisions = self._aliases[alias] = OrderedDict()
        tracks = revisions.get(revision)
        if tracks is None:
            tracks = revisions[revision] = {}
            if len(revisions) > _KEPT:
                del revisions[min(revisions)]
        cell = tracks.get(trace.track)
        if cell is None:
            cell = tracks[trace.track] = TrackCell(self._ttft, self._per_token)
        cell.observe(trace)
        if trace.status == 200:
            self._uses[alias, revision] = trace.time

    def take_uses(self) -> Mapping[tuple[str, int], float]:
        """When revisions last served, since this was last asked; Unix seconds."""
        uses, self._uses = self._uses, {}
        return uses

    def give_back(self, uses: Mapping[tuple[str, int], float]) -> None:
        """What was taken could not be told to the store."""
        self._uses = {**uses, **self._uses}

    def forget(self, aliases: Iterable[str]) -> None:
        """Drop the cells of all but these aliases."""
        kept = frozenset(aliases)
        for gone in self._aliases.keys() - kept:
            del self._aliases[gone]

    def tracks(self, alias: str, revision: int) -> Mapping[str, TrackCell]:
        """The cells of a revision by track."""
        revisions = self._aliases.get(alias)
        return {} if revisions is None else revisions.get(revision, {})

    def nothing(self) -> TrackCell:
        """What a track that has served nothing has done."""
        return TrackCell(self._ttft, self._per_token)

    def collect(self) -> Iterable[Metric]:
        """The families, for the library's registry."""
        outcomes = CounterMetricFamily(
            "gateway_alias_requests", "Requests by revision, track and outcome", labels=(*_LABELS, "outcome")
        )
        ttft = HistogramMetricFamily(
            "gateway_alias_time_to_first_token_seconds", "Time to first token by revision and track", labels=_LABELS
        )
        per_token = HistogramMetricFamily(
            "gateway_alias_time_per_output_token_seconds", "Time per output token by revision and track", labels=_LABELS
        )
        for labels, cell in self._cells():
            outcomes.add_metric((*labels, "served"), cell.served)
            outcomes.add_metric((*labels, "failed"), cell.failures)
            _add(ttft, labels, cell.ttft, self._ttft)
            _add(per_token, labels, cell.per_token, self._per_token)
        return outcomes, ttft, per_token

    def _cells(self) -> Iterable[tuple[tuple[str, str, str], TrackCell]]:
        for alias, revisions in self._aliases.items():
            for revision, tracks in revisions.items():
                for track, cell in tracks.items():
                    yield (alias, str(revision), track), cell


def _add(family: HistogramMetricFamily, labels: Sequence[str], cell: HistogramCell, bounds: Sequence[float]) -> None:
    total, buckets = 0, []
    for bound, count in zip((*map(floatToGoString, bounds), "+Inf"), cell.counts, strict=True):
        total += count
        buckets.append((bound, total))
    family.add_metric(labels, buckets, cell.sum)
