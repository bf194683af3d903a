"""Trials of new models: how their two tracks do, and the end of one that does too badly."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from gateway.aliasing.compare import Margins, TrackCounts, abort_reason, compare
from gateway.aliasing.plan import PlanFault, aborted
from gateway.aliasing.statistics import Buckets
from gateway.model import AliasTable, Revision
from gateway.policy.routing import Canary
from gateway.stores.interfaces import StateStore, StoreError
from gateway.telemetry.revisions import RevisionStats, TrackCell

STABLE, CANARY = "stable", "canary"
_GROWTH = 1.2  # of a trial's requests between two looks: some 50 looks from its first hundred to its first million


def tracks_of(stats: RevisionStats, revision: Revision) -> Mapping[str, TrackCounts]:
    """What this instance has served of each track of a revision, as far as it has served any."""
    cells = stats.tracks(revision.alias, revision.number)
    return {track: counts_of(cell) for track, cell in cells.items()}


def counted(stats: RevisionStats, table: AliasTable, alias: str) -> Mapping[str, Mapping[str, Any]]:
    """What this instance has counted of both tracks of an alias's current revision, as the admin API shows it."""
    revision = table.current.get(alias)
    cells = {} if revision is None else stats.tracks(alias, revision.number)
    tracks = {track: counts_of(cells.get(track) or stats.nothing()) for track in (STABLE, CANARY)}
    return {
        track: {
            "requests": counts.requests,
            "errors": counts.errors,
            "ttft_bounds": list(counts.ttft.bounds),
            "ttft_counts": list(counts.ttft.counts),
            "tpot_bounds": list(counts.tpot.bounds),
            "tpot_counts": list(counts.tpot.counts),
        }
        for track, counts in tracks.items()
    }


def counts_of(cell: TrackCell) -> TrackCounts:
    """A track's cell at this moment."""
    return TrackCounts(
        requests=cell.served + cell.failures,
        errors=cell.failures,
        ttft=Buckets(tuple(cell.ttft.bounds), tuple(cell.ttft.counts)),
        tpot=Buckets(tuple(cell.per_token.bounds), tuple(cell.per_token.counts)),
    )


class Trials:
    """``watch`` is the step of a control loop: it rolls back each trial that policy says has failed.

    Instances watch by themselves: a compare-and-set lets one of them roll back, and the others find it done. ``aborts``
    counts by alias those that this one ended.
    """

    def __init__(
        self,
        store: StateStore,
        table: Callable[[], AliasTable],
        stats: RevisionStats,
        policy: Callable[[], Canary],
        report: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._table = table
        self._stats = stats
        self._policy = policy
        self._report = report
        self._clock = clock
        self._looked: dict[str, int] = {}
        self._aborts: dict[str, int] = {}

    @property
    def aborts(self) -> Mapping[str, int]:
        """How many trials of each alias this instance has ended by itself; every alias is there."""
        return {alias: self._aborts.get(alias, 0) for alias in self._table().current}

    async def watch(self) -> None:
        """Look at every running trial once."""
        policy, table = self._policy(), self._table()
        self._stats.forget(table.current)
        self._aborts = {alias: count for alias, count in self._aborts.items() if alias in table.current}
        if not policy.abort:
            return
        running = [revision for revision in table.current.values() if revision.canary_of is not None]
        labels = {revision.label for revision in running}
        self._looked = {label: count for label, count in self._looked.items() if label in labels}
        margins = Margins(error_rate=policy.error_rate, ttft_p95=policy.ttft_p95)
        for revision in running:
            reason = self._failed(revision, margins)
            if reason is not None:
                await self._abort(revision, reason)

    def _failed(self, revision: Revision, margins: Margins) -> str | None:
        tracks = tracks_of(self._stats, revision)
        if STABLE not in tracks or CANARY not in tracks:
            return None
        # Whoever looks often enough sees any difference once: the confidence is meant for so many looks.
        requests = tracks[STABLE].requests + tracks[CANARY].requests
        if requests < _GROWTH * self._looked.get(revision.label, 1):
            return None
        self._looked[revision.label] = requests
        return abort_reason(compare(tracks[STABLE], tracks[CANARY], margins.confidence), margins)

    async def _abort(self, revision: Revision, reason: str) -> None:
        try:
            before = aborted(await self._store.alias_history(revision.alias))
            made = await self._store.assign_alias(
                revision.alias,
                before.targets,
                author="gateway",
                at=self._clock(),
                note=f"canary {revision.label} ended: {reason}"[:200],
                source="rollback",
                expect_revision=revision.number,
            )
        except (StoreError, PlanFault) as error:
            self._report(f"canary {revision.label} should end ({reason}), but: {error}")
            return
        self._aborts[revision.alias] = self._aborts.get(revision.alias, 0) + 1
        self._report(f"canary {revision.label} ended by itself: {reason}. Now {made.label}")
