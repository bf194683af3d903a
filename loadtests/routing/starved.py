"""Whether the host let the processes of a run have the time that they wanted.

A simulated engine or a gateway that waits for a core answers late, and nothing in the answers tells that from a queue
at a replica. The kernel counts it: for each thread the time in which it could have run and did not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_NANO = 1e-9


def parse_schedstat(line: str) -> float:
    """Seconds of waiting for a core, from one /proc/PID/schedstat: time run, time waited, both in ns, and turns."""
    return int(line.split()[1]) * _NANO


def waited(pids: Sequence[int]) -> list[float] | None:
    """Of the main thread of each, since its start; ``None`` when the kernel does not count or one has ended."""
    try:
        return [parse_schedstat(Path(f"/proc/{pid}/schedstat").read_text()) for pid in pids]
    except OSError:
        return None


def share(before: Sequence[float] | None, after: Sequence[float] | None, seconds: float) -> float | None:
    """The part of the time that the one which waited most spent so; ``None`` when it is not known."""
    if before is None or after is None or seconds <= 0:
        return None
    return max((now - then for now, then in zip(after, before, strict=True)), default=0.0) / seconds
