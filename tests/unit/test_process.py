"""What an instance does to its own process, seen from a process that did it."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, gc, json, resource
from gateway.process import harden_process, tune_collector
harden_process()
dumpable = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
before = gc.get_threshold()
tune_collector()
print(json.dumps({
    "core": resource.getrlimit(resource.RLIMIT_CORE), "dumpable": dumpable,
    "before": before, "after": gc.get_threshold(), "frozen": gc.get_freeze_count(), "enabled": gc.isenabled(),
}))
harden_process()
"""


def test_the_process_leaves_no_core_and_lets_nobody_read_it():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True, timeout=30)
    seen = json.loads(done.stdout)
    assert seen["core"] == [0, 0]
    assert seen["dumpable"] == 0
    assert seen["enabled"]
    assert seen["after"][0] > seen["before"][0]
    assert seen["frozen"] > 0


BLOCKS = """
import resource, sys
from gateway.process import tune_allocator
if sys.argv[1] == "tuned":
    tune_allocator()
    tune_allocator()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = faults()
for _ in range(100):
    pages = [bytearray(80_000) for _ in range(3)]
    del pages
print(faults() - before)
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc", reason="glibc's thresholds"
)
def test_memory_of_large_pages_is_kept_for_the_next():
    def faults(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", BLOCKS, how], capture_output=True, check=True, timeout=30)
        return int(done.stdout)

    assert faults("tuned") * 4 < faults("not")
