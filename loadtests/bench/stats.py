"""Arithmetic over measured values. Pure; no units of its own."""

import math
from collections.abc import Sequence
from statistics import median


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value with at least `share` (0 to 1) of all values at or below it (nearest rank); None when empty.

    `ordered` must be sorted. Nearest rank returns a value that was really measured, never one between two modes.
    """
    if not ordered:
        return None
    rank = math.ceil(share * len(ordered))
    return ordered[min(max(rank, 1), len(ordered)) - 1]


def middle(values: Sequence[float | None]) -> float | None:
    """Median of the values that exist; None when none does."""
    present = [value for value in values if value is not None]
    return median(present) if present else None


def spread(values: Sequence[float | None]) -> float | None:
    """(largest - smallest) / median: how far the repeats disagree. None below two values or at a median of zero."""
    present = [value for value in values if value is not None]
    if len(present) < 2 or not (centre := median(present)):
        return None
    return (max(present) - min(present)) / abs(centre)


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """`ours` / `theirs`; None when either is missing or there is nothing to divide by."""
    if ours is None or not theirs:
        return None
    return ours / theirs


def minus(value: float | None, base: float | None) -> float | None:
    """`value` - `base`; None when either is missing."""
    return None if value is None or base is None else value - base


def cpu_per_chunk(cpu_us: float, requests: int, chunks: int, cpu_us_per_chat: float | None) -> float | None:
    """CPU microseconds that one streamed chunk adds, once what the request itself costs is taken off.

    `cpu_us` is the CPU of the whole streamed run, `cpu_us_per_chat` that of a request without a stream.
    """
    if cpu_us_per_chat is None or not chunks:
        return None
    return (cpu_us - cpu_us_per_chat * requests) / chunks
