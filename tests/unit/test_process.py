"""What an instance does to its own process, seen from a process that did it."""

from __future__ import annotations

import json
import subprocess
import sys

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
