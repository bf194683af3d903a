"""The one place that starts tasks which outlive a request.

A control loop is a named step that runs again and again. It handles what it expects; what it does not expect ends the
process, since a gateway whose loops have died serves yesterday's fleet without saying so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any


class Supervisor:
    """Holds tasks. ``failed`` resolves with the first unexpected error of any; ``close`` is idempotent."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[Any]] = set()
        self.failed: asyncio.Future[BaseException] = loop.create_future()

    def start(self, name: str, body: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a named task until ``close``."""
        task = self._loop.create_task(body, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def run_every(self, name: str, interval: float, step: Callable[[], Awaitable[object]]) -> asyncio.Task[Any]:
        """Run ``step`` at once and then ``interval`` seconds after each end of it."""
        return self.start(name, _again(interval, step))

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self.failed.done():
            self.failed.set_result(error)

    async def close(self) -> None:
        """Cancel what runs and wait until it has ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _again(interval: float, step: Callable[[], Awaitable[object]]) -> None:
    while True:
        await step()
        await asyncio.sleep(interval)
