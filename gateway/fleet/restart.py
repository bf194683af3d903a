"""Whether an engine's process is still the one that it was. Pure."""

from __future__ import annotations

import math

from gateway.fleet.signals import Reading, Signal

_EPSILON = 0.02  # seconds: two ticks of the kernel's clock, in which the start of a process is told
_COUNTERS = (Signal.PROMPT_TOKENS, Signal.GENERATION_TOKENS, Signal.STEPS)


def same_process(before: Reading | None, after: Reading) -> bool | None:
    """Whether two readings are of one process; ``None`` where they cannot tell.

    By its counters, which only a new one starts again, and by the start of the process, where the engine gives it.
    """
    if before is None:
        return None
    old, new = before.values, after.values
    if old is not new and any(new.get(signal, math.inf) < old.get(signal, 0.0) for signal in _COUNTERS):
        return False
    started, again = old.get(Signal.STARTED_AT), new.get(Signal.STARTED_AT)
    return abs(again - started) <= _EPSILON if started is not None and again is not None else None
