"""What the metrics of every persona share: how numbers and histograms are written, and what is told to the counters."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from loadtests.engine.scheduler import Job, Step, Token, Totals


def token_bounds(longest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20 ... as long as they are at most `longest`."""
    bounds: list[float] = []
    scale = 1
    while scale <= longest:
        bounds += [float(step * scale) for step in (1, 2, 5) if step * scale <= longest]
        scale *= 10
    return tuple(bounds)


def number(value: float) -> str:
    """A sample's value as Python's Prometheus client writes it: exponents from seven digits on."""
    if value == math.inf:
        return "+Inf"
    text = repr(float(value))
    whole, _, rest = text.partition(".")
    if value <= 0 or len(whole) <= 6 or "e" in text:
        return text
    digits = (whole + rest).rstrip("0")
    return f"{digits[0]}.{digits[1:]}".rstrip(".") + f"e+{len(whole) - 1:02d}"


class Histogram:
    """Counts by bucket; `bounds` are upper bounds without +Inf."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def lines(self, name: str, before: str, after: str) -> Iterator[str]:
        """Samples in the order of prometheus_client: buckets, count, sum. `before` and `after` surround `le`."""
        count = 0
        for bound, here in zip((*self.bounds, math.inf), self.counts, strict=True):
            count += here
            yield f'{name}_bucket{{{before}le="{number(bound)}"{after}}} {float(count)}'
        labels = f"{{{(before + after.lstrip(',')).rstrip(',')}}}" if before or after else ""
        yield f"{name}_count{labels} {float(count)}"
        yield f"{name}_sum{labels} {number(self.total)}"


@dataclass(frozen=True, slots=True)
class Gauges:
    """What is true now."""

    running: int
    waiting: int
    kv_usage: float
    totals: Totals


class EngineMetrics(Protocol):
    """What is told to the counters of an engine, whichever it is. Times in seconds."""

    def step(self, step: Step, made: int) -> None:
        """A step is over and made so many tokens."""

    def token(self, token: Token) -> None:
        """A sequence got a token."""

    def instant(self, job: Job, reason: str, copies: int) -> None:
        """A whole sequence came at once."""

    def finished(self, job: Job, reason: str, copies: int) -> None:
        """A sequence came to its end."""

    def aborted(self, job: Job) -> None:
        """The engine itself ended a sequence (its client did not leave)."""

    def rejected(self) -> None:
        """The queue was full."""

    def slept(self, level: int) -> None:
        """The sleep level is now so, 0: awake."""

    def http(self, handler: str, method: str, status: int, *, sizes: tuple[int, int], seconds: float) -> None:
        """An HTTP answer is complete."""

    def render(self, gauges: Gauges) -> bytes:
        """The whole exposition text."""


def head(name: str, kind: str, words: str) -> tuple[str, str]:
    return f"# HELP {name} {words}", f"# TYPE {name} {kind}"
