"""The listening socket of an engine: open, refusing, or flapping between the two."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from loadtests.accepting import Door, bound


class Flapping(NamedTuple):
    """Seconds that the listener is closed, then open, again and again."""

    down: float
    up: float


class Listener:
    """Takes a port once and keeps its number: it may close and open again. `close` is idempotent and for ever."""

    def __init__(self, make: Callable[[], asyncio.Protocol]) -> None:
        self._make = make
        self._door: Door | None = None
        self._turning: asyncio.TimerHandle | None = None
        self._flapping: Flapping | None = None
        self._down = self._refusing = self._closed = False
        self.host = "127.0.0.1"
        self.port = 0

    @property
    def started(self) -> bool:
        """Whether it has a port."""
        return self.port != 0

    def start(self, host: str, port: int) -> None:
        """Listen; `port` 0 takes a free one. Raises OSError when the address is taken."""
        self.host = host
        self._open(port)

    def follow(self, *, refusing: bool, flapping: Flapping | None) -> None:
        """Be closed or open as the faults now say; a listener that flaps begins closed."""
        self._refusing = refusing
        if flapping != self._flapping:
            self._stop_turning()
            self._flapping = flapping
            self._down = flapping is not None
            self._turn_later()
        self._apply()

    def close(self) -> None:
        self._closed = True
        self._stop_turning()
        self._shut()

    def _turn_later(self) -> None:
        if self._flapping is not None and not self._closed:
            seconds = self._flapping.down if self._down else self._flapping.up
            self._turning = asyncio.get_running_loop().call_later(seconds, self._turn)

    def _turn(self) -> None:
        self._down = not self._down
        self._turn_later()
        self._apply()

    def _stop_turning(self) -> None:
        if self._turning is not None:
            self._turning.cancel()
            self._turning = None

    def _apply(self) -> None:
        if self._refusing or self._down:
            self._shut()
        elif self._door is None and not self._closed:
            self._open(self.port)

    def _open(self, port: int) -> None:
        self._door = Door(self._make, bound(self.host, port))
        self.port = self._door.port

    def _shut(self) -> None:
        if self._door is not None:
            self._door.close()
            self._door = None
