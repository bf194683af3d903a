"""A real vLLM as a process: started with the smallest settings that serve, watched until healthy, ended for sure."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from loadtests.bench.install import InstallFailed
from loadtests.bench.procs import Process, StartFailed, all_stats, tree
from loadtests.vllm.install import Installation

START_SECONDS = 180.0
SMALL = (
    "--max-model-len", "2048", "--max-num-seqs", "4", "--num-gpu-blocks-override", "64", "--enforce-eager",
)  # fmt: skip
"""A few GB less memory and no compiler. A block is 128 tokens on a CPU: 64 hold four requests of full length."""
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "NO_COLOR": "1",
    "TORCHDYNAMO_DISABLE": "1",  # the first request for logprobs would compile for 15 s
    # Empty is unset: a start that may not write .pyc files compiles all of Python's anew, which doubles its time.
    "PYTHONDONTWRITEBYTECODE": "",
}


class RealEngine:
    """One vLLM server. `start` it, end it with `close`, which is idempotent. Its log is in `log`.

    Use as a context manager. Linux only.
    """

    def __init__(self, process: Process, url: str, log: Path) -> None:
        self._process = process
        self.url = url
        self.log = log

    @classmethod
    def start(
        cls,
        place: Installation,
        folder: Path,
        *flags: str,
        model: str = "real-model",
        port: int = 0,
        seconds: float = START_SECONDS,
    ) -> Self:
        """Start and wait until /health says 200. `flags` come after `SMALL` and win; `port` 0 takes a free one.

        Raises `InstallFailed` without an installation, `StartFailed` when the process ends or `seconds` pass.
        """
        if not place.complete:
            raise InstallFailed(f"no vLLM in {place.folder}: python -m loadtests.vllm install")
        with held_port(port) as held:
            number = int(held.getsockname()[1])
            command = [
                str(place.command), "serve", str(place.model), "--host", "127.0.0.1", "--port", str(number),
                "--served-model-name", model, *SMALL, *flags,
            ]  # fmt: skip
            search = f"{place.command.parent}{os.pathsep}{os.environ.get('PATH', '')}"
            cores = frozenset(os.sched_getaffinity(0))
            process = Process("vllm", command, folder, cores, environ={**ENVIRONMENT, "PATH": search})
            engine = cls(process, f"http://127.0.0.1:{number}", folder / "vllm.stdout")
            try:
                process.wait_until_ready(f"{engine.url}/health", seconds)
            except BaseException:
                engine.close()
                raise
        return engine

    @property
    def pid(self) -> int:
        """The server's process: HTTP, tokenizing. SIGTERM here ends it, draining under `--shutdown-timeout`."""
        return self._process.pid

    @property
    def engine_core_pid(self) -> int:
        """The process that computes, a child of the server. Raises `StartFailed` when it is gone."""
        for stat in tree(self.pid, list(all_stats())):
            if stat.pid != self.pid and _title(stat.pid).startswith("VLLM::EngineCore"):
                return stat.pid
        raise StartFailed("the server has no EngineCore process")

    def close(self) -> None:
        """End the server and all that it started. Idempotent."""
        self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def held_port(port: int = 0) -> socket.socket:
    """A socket that keeps a port for a server that binds it later with SO_REUSEADDR, as vLLM does some seconds on.

    It never listens. The kernel gives a port that is bound to nobody who asks for any free one. Close it once the
    server listens. Raises OSError when the port is taken.
    """
    holder = socket.socket()
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", port))
    except OSError:
        holder.close()
        raise
    return holder


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""
