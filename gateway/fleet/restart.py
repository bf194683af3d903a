"""Whether an engine's process is still the one that it was. Pure."""

from __future__ import annotations

from gateway.fleet.signals import Reading, Signal

_EPSILON = 0.02  # seconds: two ticks of the kernel's clock, in which the start of a process is told
_COUNTERS = (Signal.PROMPT_TOKENS, Signal.GENERATION_TOKENS, Signal.STEPS)


def same_process(before: Reading | None, after: Reading) -> bool | None:
    """Whether two readings are of one process; ``None`` where they cannot tell.

    By its counters, which only a new one starts again, and by the start of the process, where the engine gives it.
    """
    if before is None:
        return None
    counted = [signal for signal in _COUNTERS if signal in before.values and signal in after.values]
    if any(after.values[signal] < before.values[signal] for signal in counted):
        return False
    old, new = before.values.get(Signal.STARTED_AT), after.values.get(Signal.STARTED_AT)
    return abs(new - old) <= _EPSILON if old is not None and new is not None else None
