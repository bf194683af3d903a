"""What one instance does to its own process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource

_PR_SET_DUMPABLE = 4


def harden_process() -> None:
    """No core dumps and no reading by other processes of the user: the memory holds prompts and keys."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def tune_collector() -> None:
    """Requests make few reference cycles; collections at the default pace would cost several percent of the CPU."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
