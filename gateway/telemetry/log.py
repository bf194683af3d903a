"""Lines to a stream, from a thread of their own: a reader that is slow or gone never holds up a request.

The request path appends to a bounded queue. When it is full the line is dropped and counted, since a gateway that stops
serving because its log is not read is worse than a gap that a metric shows.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, BinaryIO

import orjson

MAX_QUEUED = 20_000
_BATCH = 1_000


class LineWriter:
    """Writes JSON lines in order. ``close`` writes what is queued, waiting at most ``timeout`` seconds; idempotent."""

    def __init__(self, stream: BinaryIO, *, capacity: int = MAX_QUEUED, pause: float = 0.1) -> None:
        self._stream = stream
        self._capacity = capacity
        self._pause = pause
        self._queue: deque[bytes] = deque()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._closed = self._told = False  # what the events say, without asking them for each record
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def write(self, record: dict[str, Any]) -> None:
        """Queue one record."""
        if len(self._queue) >= self._capacity or self._closed:
            self.dropped += 1
            return
        self._queue.append(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
        if not self._told:
            self._told = True
            self._wake.set()

    def close(self, timeout: float = 2.0) -> None:
        """Stop the thread."""
        self._closed = True
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self.dropped += len(self._queue)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._wake.clear()
            self._told = False
            self._drain()
            # Lets lines gather. Each waking of this thread takes the interpreter's lock from the event loop some times.
            self._closing.wait(self._pause)
        self._drain()

    def _drain(self) -> None:
        take: Callable[[], bytes] = self._queue.popleft
        while self._queue:
            lines = [take() for _ in range(min(len(self._queue), _BATCH))]
            try:
                self._stream.write(b"".join(lines))
                self._stream.flush()
            except (OSError, ValueError):
                self.dropped += len(lines)
