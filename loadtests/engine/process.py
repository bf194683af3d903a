"""For tests: a simulated engine as a process of its own, which can be stopped, killed and started again at its port."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from loadtests.bench.procs import StartFailed, pinned
from loadtests.vllm.engine import held_port

_ROOT = Path(__file__).parents[2]
_PATIENCE = 20.0
"""Seconds that a start may take."""


class EngineProcess:
    """`start` it with the options of `python -m loadtests.engine`, end it with `close`, which is idempotent.

    It keeps its port from start to close, so that no one else takes it while the process is gone. Blocking; Linux only.
    The process ends with the thread that started it, at the latest.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="engine-")
        self._held = held_port()
        self._arguments: tuple[str, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._closed = False

    @classmethod
    def start(cls, *arguments: str) -> Self:
        """Start an engine and wait until it listens. Raises StartFailed with its last words when it does not."""
        engine = cls()
        engine._arguments = arguments
        try:
            engine._begin()
        except BaseException:
            engine.close()
            raise
        return engine

    @property
    def port(self) -> int:
        return int(self._held.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the process that runs now, or ran last."""
        return self._pid

    def freeze(self) -> None:
        """SIGSTOP: connections are taken by the kernel and nothing answers. Idempotent."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT. Idempotent."""
        self._signal(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM, as an operator ends an engine. Returns at once; see `wait`. A frozen one is thawed first."""
        self.thaw()
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, frozen or not; returns when the process is gone. Idempotent."""
        self._signal(signal.SIGKILL)
        self.wait()

    def wait(self, seconds: float = 10.0) -> int | None:
        """The exit code of a process that is ending, None when none runs. Raises TimeoutError when it does not end."""
        if self._process is None:
            return None
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the engine still runs after {seconds} s") from None
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None
        return code

    def restart(self, *more: str) -> None:
        """End the process if it still runs, and start a new one at the same port.

        `more` options are added to those it had, for this start and later ones; of one given twice the last counts
        (so `restart("--model", "other")` is another model at the same address). Raises StartFailed.
        """
        self.kill()
        self._arguments += more
        self._begin()

    def close(self) -> None:
        """End the process and give the port back. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.kill()
        self._held.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _signal(self, number: signal.Signals) -> None:
        # A child that nobody has waited for keeps its number, so it cannot hit another process.
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, number)

    def _begin(self) -> None:
        command = [sys.executable, "-m", "loadtests.engine", *self._arguments, "--port", str(self.port)]
        log = Path(self._folder.name, "stderr")
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                pinned(command, frozenset(os.sched_getaffinity(0))),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=_ROOT,
                start_new_session=True,
            )
        self._pid = self._process.pid
        if not self._hello():
            self.kill()
            raise StartFailed(f"the engine does not listen: {log.read_bytes()[-600:].decode(errors='replace').strip()}")

    def _hello(self) -> bool:
        """Wait for the line that says it listens; false when the process ends without, or too much time passes."""
        if self._process is None or self._process.stdout is None:
            return False
        until = time.monotonic() + _PATIENCE
        line = b""
        while not line.endswith(b"\n"):
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                return False
            piece = os.read(self._process.stdout.fileno(), 4096)
            if not piece:
                return False
            line += piece
        return int(json.loads(line)["pid"]) == self._pid
