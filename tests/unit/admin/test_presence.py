"""How the command line finds a running gateway."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

from gateway.admin.presence import FILE, Presence, running_gateway


def test_it_is_found_while_it_runs_and_not_after(tmp_path: Path) -> None:
    assert running_gateway(tmp_path) is None
    presence = Presence(tmp_path, "http://127.0.0.1:9090")
    assert running_gateway(tmp_path) == "http://127.0.0.1:9090"
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    presence.close()
    presence.close()
    assert running_gateway(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_a_killed_gateway_is_stale(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from gateway.admin.presence import Presence\n"
        "kept = Presence(Path(sys.argv[1]), 'http://127.0.0.1:1'); print('up', flush=True); sys.stdin.read()"
    )
    gateway = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with gateway:
        assert gateway.stdout is not None
        assert gateway.stdout.readline() == b"up\n"
        assert running_gateway(tmp_path) == "http://127.0.0.1:1"
        gateway.kill()
        gateway.wait(timeout=10)
    assert (tmp_path / FILE).exists()
    assert running_gateway(tmp_path) is None


def test_a_stopping_gateway_leaves_its_successors_file(tmp_path: Path) -> None:
    first = Presence(tmp_path, "http://127.0.0.1:1")
    second = Presence(tmp_path, "http://127.0.0.1:2")
    first.close()
    assert running_gateway(tmp_path) == "http://127.0.0.1:2"
    second.close()
