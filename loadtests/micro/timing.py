"""The CPU time of a step: many short runs, of which the shortest is the one that nobody disturbed."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple


class Cost(NamedTuple):
    """Microseconds for each step, in the fastest run and in the middle one."""

    least: float
    usual: float


def measure(
    run: Callable[[], object], steps: int, repeats: int, clock: Callable[[], int] = time.process_time_ns
) -> Cost:
    """The cost of each of the ``steps`` that one ``run`` makes. ``clock`` gives nanoseconds."""
    run()  # what is made once is not counted
    was_on = gc.isenabled()
    gc.disable()
    try:
        times = [_timed(run, clock) / steps / 1e3 for _ in range(repeats)]
    finally:
        if was_on:
            gc.enable()
    return Cost(min(times), median(times))


def _timed(run: Callable[[], object], clock: Callable[[], int]) -> int:
    before = clock()
    run()
    return clock() - before
