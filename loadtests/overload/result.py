"""What one run of a scenario on a target has shown. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from loadtests.overload.client import Attempt
from loadtests.overload.figures import Capacity, Row, row
from loadtests.overload.scenarios import Phase, Scenario


class Span(NamedTuple):
    """When a phase was, in seconds from the beginning of the first one."""

    phase: Phase
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Host:
    """What the host did to a run: see `loadtests.routing.figures.Run`."""

    starved: float | None = None
    stall: float = 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """One run. ``attempts`` are those of all phases, timed as ``spans`` are; ``reference`` is the row of that phase."""

    scenario: Scenario
    capacity: Capacity
    attempts: Sequence[Attempt]
    spans: Sequence[Span]
    rows: Sequence[Row]
    host: Host = field(default_factory=Host)
    reference: Row | None = None


def spans(phases: Sequence[Phase], begin: float = 0.0) -> list[Span]:
    """Of phases one after the other."""
    found = []
    for phase in phases:
        found.append(Span(phase, begin, begin + phase.seconds))
        begin += phase.seconds
    return found


def rows(attempts: Sequence[Attempt], when: Sequence[Span]) -> list[Row]:
    """One for each stream of each phase."""
    return [
        row(attempts, span.phase.name, stream.caller, span.begin, span.end)
        for span in when
        for stream in span.phase.streams
    ]
