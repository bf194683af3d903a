"""What one instance does to its own process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource

_PR_SET_DUMPABLE = 4
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE = 4 * 1024 * 1024


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


def tune_allocator() -> None:
    """Pages of metrics and bodies come and go, 50 kB and more each: by default glibc gives the end of the heap back to
    the kernel with each of them, and takes a page fault for each 4 kB of the next. These thresholds are those that it
    sets itself once a block of this size has been freed. Another libc is left as it is."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE)
        libc.mallopt(_M_TRIM_THRESHOLD, 2 * _LARGE)
