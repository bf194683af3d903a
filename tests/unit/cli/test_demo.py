"""``gateway demo`` as a user runs it: it answers, and leaves nothing behind however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest

PATIENCE = 60


def _start(tmp_path, *flags, folder=None, **variables):
    """The demo in a process group of its own, so that its children can be counted."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    return subprocess.Popen(
        [sys.executable, "-m", "gateway", "demo", *flags],
        env={**others, **variables, "TMPDIR": str(tmp_path), "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def _is_empty(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture
def demo(tmp_path):
    """Starts demos; whatever is left of them at the end is killed."""
    started = []

    def start(*flags, **more):
        started.append(_start(tmp_path, *flags, **more))
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE)


def test_once_prints_an_answer_and_leaves_nothing_behind(demo, tmp_path, wait_until):
    process = demo("--once", GATEWAY_ADMIN_TOKEN="t" * 40, GATEWAY_POLICIES="/nonexistent")  # of some other gateway
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert out.startswith("answer: ")
    assert len(out.split()) > 5
    wait_until(lambda: _is_empty(process.pid), "all children to end")
    assert list(tmp_path.iterdir()) == []


def test_sigterm_ends_it_and_all_its_children(demo, tmp_path, wait_until):
    """Sent when the gateway has just come up and its key is being made: what is half up has to end as well."""
    process = demo()
    wait_until(lambda: any(log.stat().st_size for log in tmp_path.glob("*/gateway.log")), "the gateway", PATIENCE)
    assert not _is_empty(process.pid)
    process.terminate()
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    wait_until(lambda: _is_empty(process.pid), "all children to end")
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_start_is_told_with_its_last_words(demo, tmp_path, tmp_path_factory, wait_until):
    """Its log goes with the demo's folder, so that its place would be of no use."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "loadtests").mkdir()
    (folder / "loadtests" / "engine.py").write_text("raise SystemExit('no luck \\x1b[31m today')")
    process = demo("--once", folder=folder, PYTHONPATH=str(folder))
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (1, "")
    assert err == "gateway: a simulated engine did not start; its last words:\n  no luck ?[31m today\n"
    wait_until(lambda: _is_empty(process.pid), "all children to end")
    assert list(tmp_path.iterdir()) == []
