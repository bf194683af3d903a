"""Processes: start them on chosen cores, wait until they are ready, read what they cost from /proc, end them.

Linux only, because of /proc and of core affinity.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
STOP_SECONDS = 5.0
POLL_SECONDS = 0.05

LAUNCH = (
    "import ctypes,os,sys; ctypes.CDLL(None).prctl(1, 15, 0, 0, 0);"
    "os.sched_setaffinity(0, map(int, sys.argv[1].split(','))); os.execvp(sys.argv[2], sys.argv[2:])"
)
"""Asks the kernel for SIGTERM when the parent dies (PR_SET_PDEATHSIG), sets the affinity, then becomes the command.

Every thread and child starts on the right core, with the pid that we know. The first part covers what no handler of
ours can: a bench that is killed, or told to stop between a child's start and the moment when an object holds it.
"""


class StartFailed(Exception):
    """A process ended, or was not ready in time. The message carries the last lines that it wrote."""


@dataclass(frozen=True, slots=True)
class Stat:
    """What one line of /proc/PID/stat says."""

    pid: int
    parent: int
    ticks: int
    """User and system time of the process and of the children that it has already waited for."""
    pages: int


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds used so far and resident bytes, of a whole process tree."""

    cpu_seconds: float
    rss_bytes: int


def parse_stat(line: str) -> Stat:
    """Reads one /proc/PID/stat. The command name may hold spaces and brackets, so fields count from the last one."""
    head, _, tail = line.rpartition(")")
    fields = tail.split()
    return Stat(
        pid=int(head.split(" ", 1)[0]),
        parent=int(fields[1]),
        ticks=sum(int(field) for field in fields[11:15]),
        pages=int(fields[21]),
    )


def tree(root: int, stats: Collection[Stat]) -> list[Stat]:
    """`root` and all its descendants."""
    members = {root}
    size = 0
    while size != len(members):
        size = len(members)
        members |= {stat.pid for stat in stats if stat.parent in members}
    return [stat for stat in stats if stat.pid in members]


def usage(root: int) -> Usage:
    """What the tree below `root` has used. Time of children that ended is in their parent's figure, so none is lost."""
    members = tree(root, list(all_stats()))
    return Usage(
        cpu_seconds=sum(stat.ticks for stat in members) / TICKS_PER_SECOND,
        rss_bytes=sum(stat.pages for stat in members) * PAGE_BYTES,
    )


def all_stats() -> list[Stat]:
    found: list[Stat] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process ended between the listing and the read
            found.append(parse_stat(path.read_text(errors="replace")))
    return found


@dataclass(frozen=True, slots=True)
class Cores:
    """Which cores each part runs on."""

    target: frozenset[int]
    engine: frozenset[int]
    load: frozenset[int]
    note: str = ""


def layout(available: Collection[int]) -> Cores:
    """The target alone on the first core; the rest shared by engine and load, apart from each other where possible."""
    first, *others = sorted(available)
    target = frozenset({first})
    if not others:
        note = "one core only: the target shares it with engine and load, so latencies are not to be trusted"
        return Cores(target, target, target, note)
    engine, *rest = others
    return Cores(target, frozenset({engine}), frozenset(rest or {engine}))


def pinned(command: Sequence[str], cores: frozenset[int]) -> list[str]:
    """`command` so that it runs on `cores` only and no longer than we do."""
    return [sys.executable, "-c", LAUNCH, ",".join(map(str, sorted(cores))), *command]


def free_port() -> int:
    """A port that was free a moment ago; another process could still take it first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Process:
    """A child in a process group of its own. Standard output and error go to files in `folder` unless piped."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        cores: frozenset[int],
        *,
        environ: Mapping[str, str] | None = None,
        talk: bool = False,
    ) -> None:
        self.name = name
        self._errors = folder / f"{name}.stderr"
        self._output = folder / f"{name}.stdout"
        with self._errors.open("wb") as errors, self._output.open("wb") as output:
            self._child = subprocess.Popen(
                pinned(command, cores),
                stdin=subprocess.PIPE if talk else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talk else output,
                stderr=errors,
                cwd=folder,
                env={**os.environ, **(environ or {})},
                start_new_session=True,
            )
        self._closed = False

    @property
    def pid(self) -> int:
        return self._child.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def tell(self, line: str) -> None:
        """Raises `StartFailed` when the process is gone."""
        try:
            stdin = self._pipe(self._child.stdin)
            stdin.write(line.encode() + b"\n")
            stdin.flush()
        except OSError as error:
            raise StartFailed(f"{self.name} is gone: {self.last_words()}") from error

    def hear(self) -> str:
        """One line that the process wrote. Raises `StartFailed` when it ended instead."""
        line = self._pipe(self._child.stdout).readline()
        if not line:
            self._child.wait(STOP_SECONDS)
            raise StartFailed(f"{self.name} ended with code {self._child.returncode}: {self.last_words()}")
        return line.decode()

    @staticmethod
    def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
        if stream is None:
            raise StartFailed("the process was started without pipes")
        return stream

    def last_words(self, size: int = 600) -> str:
        """The end of what it wrote to standard error, or to standard output when there is nothing."""
        for path in (self._errors, self._output):
            if text := path.read_bytes()[-size:].decode(errors="replace").strip():
                return text
        return "it wrote nothing"

    def wait_until_ready(self, url: str, seconds: float) -> None:
        """Returns when GET `url` gives 200. Raises `StartFailed` when the process ends or `seconds` have passed."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._child.poll() is not None:
                raise StartFailed(f"{self.name} ended with code {self._child.returncode}: {self.last_words()}")
            if answers(url):
                return
            time.sleep(POLL_SECONDS)
        raise StartFailed(f"{self.name} was not ready after {seconds:.0f} s: {self.last_words()}")

    def close(self) -> None:
        """Asks the process to end, then ends its whole group. Later calls do nothing: the number may be another's."""
        if self._closed:
            return
        self._closed = True
        if self._child.poll() is None:
            self._child.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def answers(url: str) -> bool:
    """Whether GET `url` gives 200 within two seconds."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy from the environment is not meant
    try:
        with opener.open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
