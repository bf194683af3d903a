"""What other instances have at each replica, as each of them told last. Pure.

A report is a version, then a record for each replica where its instance has anything: the replica's ``point``, requests
in flight and prompt tokens that wait for a first token. All are whole numbers without a sign, in a fixed number of
bytes: so a report has no names in it, no number that is none, and no length but by its own size, and what is wrong with
one is found before anything of it is kept.

A report counts whole for as long as the next one may take, and then less and less until its expiry, where it counts
nothing: an instance that has died, or that is cut off from the store, fades.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import NamedTuple

EXPIRY = 1.0
"""Seconds after which a report says nothing any more."""
WHOLE = 0.3
"""Seconds for which it counts whole: two that should have come may be missing."""
MAX_REPLICAS = 512
"""Replicas in one report at most. An instance that has requests at more tells of those with the most."""
MAX_INSTANCES = 64
"""Instances whose reports are kept at most."""

_VERSION = b"\x01"
_RECORD = Struct("<QIQ")  # point, requests, tokens
MAX_REPORT = len(_VERSION) + MAX_REPLICAS * _RECORD.size
"""Bytes of a report at most."""

_MOST_REQUESTS = 1_000_000
_MOST_TOKENS = 1_000_000_000_000

Figures = tuple[int, int]
"""Requests in flight, and prompt tokens that wait for a first token."""


class ReportFault(ValueError):
    """That is no report, or one of a newer version. Nothing of it is believed."""


class Heard(NamedTuple):
    """A report, and how many seconds ago it was made."""

    report: bytes
    age: float


def pack(figures: Mapping[int, Figures]) -> bytes:
    """The report of an instance that has this at replicas, by their points; empty where it has nothing."""
    busy = [(point, *each) for point, each in figures.items() if each[0] > 0 or each[1] > 0]
    if len(busy) > MAX_REPLICAS:
        busy.sort(key=lambda record: record[2], reverse=True)
        del busy[MAX_REPLICAS:]
    if not busy:
        return b""
    records = [
        _RECORD.pack(point, min(max(requests, 0), _MOST_REQUESTS), min(max(tokens, 0), _MOST_TOKENS))
        for point, requests, tokens in busy
    ]
    return b"".join((_VERSION, *records))


def unpack(report: bytes) -> dict[int, Figures]:
    """What a report says. Raises ``ReportFault``."""
    size = len(report) - len(_VERSION)
    if not report.startswith(_VERSION) or len(report) > MAX_REPORT or size % _RECORD.size:
        raise ReportFault("not a report of this version")
    told: dict[int, Figures] = {}
    for point, requests, tokens in _RECORD.iter_unpack(memoryview(report)[len(_VERSION) :]):
        if requests > _MOST_REQUESTS or tokens > _MOST_TOKENS or point in told:
            raise ReportFault("figures that no instance has")
        told[point] = requests, tokens
    return told


def weight(age: float) -> float:
    """How much a report of that age counts, from 1 to 0: never more than a younger one. One of the future is new."""
    if not age < EXPIRY:
        return 0.0
    return 1.0 if age <= WHOLE else (EXPIRY - age) / (EXPIRY - WHOLE)


class SharedLoad:
    """What is known of the others. ``now`` is seconds of a monotonic clock.

    ``refused`` counts reports that were not believed. What is kept is bounded by ``MAX_INSTANCES`` and
    ``MAX_REPLICAS``, and is only ever what was told last.
    """

    __slots__ = ("_told", "refused")

    def __init__(self) -> None:
        self.refused = 0
        self._told: list[tuple[float, dict[int, Figures]]] = []

    def __len__(self) -> int:
        """From how many instances something is known."""
        return len(self._told)

    def hear(self, heard: Iterable[Heard], now: float) -> None:
        """These are the reports of all others; who is not among them has nothing any more."""
        told: list[tuple[float, dict[int, Figures]]] = []
        for report, age in heard:
            if len(told) >= MAX_INSTANCES or not age >= 0.0:
                self.refused += 1
                continue
            try:
                told.append((now - age, unpack(report)))
            except ReportFault:
                self.refused += 1
        self._told = told

    def totals(self, now: float) -> dict[int, Figures]:
        """What all others have now, by the points of replicas."""
        self._told = [each for each in self._told if weight(now - each[0])]
        found: dict[int, Figures] = {}
        for made, told in self._told:
            share = weight(now - made)
            for point, (requests, tokens) in told.items():
                before = found.get(point, (0, 0))
                found[point] = before[0] + round(requests * share), before[1] + round(tokens * share)
        return found

    def others(self, point: int, now: float) -> Figures:
        """What all others have at one replica."""
        return self.totals(now).get(point, (0, 0))
