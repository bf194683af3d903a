"""Waits for what other processes do, and asks them how far they are."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from typing import Any

import orjson

from loadtests.bench.procs import Process, StartFailed

_POLL = 0.05
_ASK_SECONDS = 2.0


def until(
    true: Callable[[], bool],
    process: Process,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Returns as soon as it is true. Raises `StartFailed`, with what the process wrote last, when it is not in time."""
    deadline = clock() + seconds
    while not true():
        if clock() > deadline:
            raise StartFailed(f"{process.name} was not ready after {seconds:.0f} s: {process.last_words()}")
        sleep(_POLL)


def fetched(port: int, path: str, key: str = "") -> dict[str, Any]:
    """The JSON object that a server of this host has there; an empty one where there is none, for whatever reason."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy is not meant for loopback
    try:
        with opener.open(request, timeout=_ASK_SECONDS) as answer:
            found = orjson.loads(answer.read())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return found if isinstance(found, dict) else {}
