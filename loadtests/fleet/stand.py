"""What both tests stand on: a gateway as a process of its own, and how to talk to its admin plane."""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from loadtests.bench.procs import Process, StartFailed, free_port
from loadtests.bench.targets import Stage, gateway_command, gateway_key, python_path, state_url

NAME = "gateway"

_READY_SECONDS = 60.0
_ADMIN_SECONDS = 30.0
_POLL = 0.1
_TURNED_READY = b" -> ready"


class AdminFailed(Exception):
    """The admin plane refused, or did not answer."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a gateway is started: its engines, and what takes the place of the shipped policies.

    ``routing`` and ``access`` are whole files of those names; an empty one leaves the shipped one as it is.
    """

    engines: Sequence[str]
    routing: Mapping[str, Any]
    cores: frozenset[int]
    access: Mapping[str, Any] = field(default_factory=dict)


class Gateway:
    """A running ``gateway serve``. ``close`` ends it, and is idempotent."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        """Starts the process and returns at once."""
        first, *others = plan.engines
        self._stage = Stage(first, free_port(), free_port(), folder, folder)
        more = [word for url in others for word in ("--engine", url)]
        command = [*gateway_command(self._stage), *more]
        for name, content in (("routing.yaml", plan.routing), ("access.yaml", plan.access)):
            if content:
                (folder / "policies" / name).write_bytes(orjson.dumps(dict(content)))
        self._log = folder / f"{NAME}.stderr"
        self.started = time.monotonic()
        self._process = Process(NAME, command, folder, plan.cores, environ=python_path())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def port(self) -> int:
        return self._stage.port

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Returns when it serves. Raises `StartFailed`."""
        self._process.wait_until_ready(f"http://127.0.0.1:{self.port}/readyz", _READY_SECONDS)

    def wait_for_replicas(self, count: int, seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
        """Returns when ``count`` replicas have become ready. Raises `StartFailed` after ``seconds``.

        By the lines that it writes about them: asking it would add to the work that is measured.
        """
        until = self.started + seconds
        while (ready := self.transitions(_TURNED_READY)) < count:
            if time.monotonic() > until or self._ended():
                raise StartFailed(f"{ready} of {count} replicas became ready: {self.last_words()}")
            sleep(_POLL)

    def _ended(self) -> bool:
        """Whether the process has ended; it is left to be waited for."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def transitions(self, mark: bytes) -> int:
        """Lines of its log with this mark."""
        return self._log.read_bytes().count(mark)

    def last_words(self) -> str:
        return self._process.last_words()

    def key(self, name: str = NAME, options: Sequence[str] = ()) -> str:
        """A key that may do everything that a user may, or what ``options`` say. Raises `StartFailed`."""
        return gateway_key(self._stage, name, options)

    def admin(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Ask the admin plane; blocks. Raises `AdminFailed`."""
        token = (Path(state_url(self._stage).removeprefix("sqlite:///")).parent / "admin-token").read_text().strip()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._stage.spare_port}{path}",
            method=method,
            data=None if body is None else orjson.dumps(dict(body)),
            headers={"authorization": f"Bearer {token}", "content-type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy is not meant for loopback
        try:
            with opener.open(request, timeout=_ADMIN_SECONDS) as answer:
                return orjson.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise AdminFailed(f"{method} {path}: {error.code} {error.read(300)!r}") from error
        except (OSError, orjson.JSONDecodeError) as error:
            raise AdminFailed(f"{method} {path}: {error}") from error

    def close(self) -> None:
        """End the process. Idempotent."""
        self._process.close()
