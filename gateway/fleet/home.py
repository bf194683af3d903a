"""Which loopback an engine is on: two hosts that share a store have one each, and 127.0.0.1:8000 on both."""

from __future__ import annotations

import socket
from pathlib import Path

from gateway.configvalues import is_loopback
from gateway.model import EngineSpec

_PROC = Path("/proc")


def home(proc: Path = _PROC) -> str:
    """A name for this host's network: equal for processes that reach the same loopback, other for all others.

    That is a network namespace of one boot of one kernel (``proc(5)``, ``network_namespaces(7)``); where the system
    does not tell, the host's name has to do.
    """
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{(proc / 'self/ns/net').stat().st_ino}"
    except OSError:
        return socket.gethostname()


def place_of(spec: EngineSpec, here: str) -> str:
    """What an engine is called among instances that tell each other about it; ``here`` is the ``home`` of this one."""
    return f"{spec.id}@{here}" if is_loopback(spec) else spec.id
