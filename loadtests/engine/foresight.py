"""When a sequence would get its first token, found by letting a copy of the scheduler run ahead of its time. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

from loadtests.engine.scheduler import Job, Scheduler, Step

MOST_STEPS = 5000
"""So far it looks: some minutes of an engine that is busy."""


def first_token(scheduler: Scheduler, step: Step | None, ends: float, job: Job, now: float) -> float:
    """The time of the first token of ``job`` if it were queued now and nothing came after it; nothing is changed.

    ``step`` is under way and ends at ``ends``. Infinite when it takes more than `MOST_STEPS`.
    """
    ahead, under_way = scheduler.fork(step)
    mine = replace(job, shared_blocks=[])
    ahead.submit(mine, now)
    for _ in range(MOST_STEPS):
        if under_way is not None:
            now = max(now, ends)
            ahead.finish(under_way, now)
            if mine.first_token is not None:
                return mine.first_token
        under_way = ahead.begin(now)
        if under_way is None:
            return math.inf
        ends = now + under_way.seconds
    return math.inf
