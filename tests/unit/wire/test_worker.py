"""One connection's exchanges, handled in turn by one task."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from gateway.wire.worker import Worker


class Exchange:
    """As much of one as a worker uses."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.finished = self.gone = self.aborted = False

    def abort(self) -> None:
        self.aborted = self.finished = True


class Scene:
    """A worker, and what its handler and the crash report were told."""

    def __init__(self, handler: Callable[[Any], Awaitable[None]] | None = None) -> None:
        self.handled: list[str] = []
        self.crashes: list[str] = []
        context: Any = SimpleNamespace(
            loop=asyncio.get_running_loop(),
            handler=handler or self.handle,
            on_crash=lambda error: self.crashes.append(type(error).__name__),
        )
        self.worker = Worker(context)

    async def handle(self, exchange: Any) -> None:
        self.handled.append(exchange.name)
        exchange.finished = True

    def take(self, exchange: Any) -> Any:
        self.worker.take(exchange)
        return exchange


async def turns(number: int = 4) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def tasks() -> int:
    return len(asyncio.all_tasks()) - 1  # without the test's own


def test_all_exchanges_share_one_task_that_ends_with_the_connection() -> None:
    async def scene() -> None:
        at = Scene()
        assert tasks() == 0
        for name in "abc":
            exchange = at.take(Exchange(name))
            assert at.worker.has(exchange)
            await turns()
            assert not at.worker.has(exchange)
            assert not exchange.aborted
            assert tasks() == 1
        at.worker.end()
        at.worker.end()
        await turns()
        assert tasks() == 0
        assert at.handled == ["a", "b", "c"]

    asyncio.run(scene())


def test_an_exchange_waits_while_the_one_before_is_in_hand() -> None:
    async def scene() -> None:
        running: list[str] = []
        go = asyncio.Event()

        async def handler(exchange: Any) -> None:
            running.append(exchange.name)
            exchange.finished = True
            await go.wait()

        at = Scene(handler)
        at.take(Exchange("a"))
        await turns()
        second = at.take(Exchange("b"))
        await turns()
        assert running == ["a"]
        go.set()
        await turns()
        assert running == ["a", "b"]
        assert not at.worker.has(second)
        at.worker.end()
        await turns()
        assert tasks() == 0

    asyncio.run(scene())


def test_what_a_handler_left_unfinished_is_cut_and_the_next_is_served() -> None:
    async def scene() -> None:
        async def handler(exchange: Any) -> None:
            if exchange.name == "bad":
                raise KeyError("secret")

        at = Scene(handler)
        bad, silent, left = (Exchange(name) for name in ("bad", "silent", "left"))
        left.gone = True
        for exchange in (bad, silent, left):
            at.take(exchange)
            await turns()
        assert at.crashes == ["KeyError"]
        assert (bad.aborted, silent.aborted, left.aborted) == (True, True, False)
        at.worker.end()
        await turns()

    asyncio.run(scene())


def test_cancel_reaches_the_handler_and_nothing_at_rest() -> None:
    async def scene() -> None:
        cancelled: list[str] = []

        async def handler(exchange: Any) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(exchange.name)
                exchange.finished = True

        at = Scene(handler)
        assert not at.worker.cancel()
        at.take(Exchange("a"))
        await turns()
        assert at.worker.cancel()
        await turns()
        assert cancelled == ["a"]
        assert not at.worker.cancel()
        at.take(Exchange("b"))
        await turns()
        assert at.worker.cancel()
        at.worker.end()
        await turns()
        assert cancelled == ["a", "b"]
        assert tasks() == 0

    asyncio.run(scene())


def test_nothing_of_an_exchange_is_held_at_rest() -> None:
    async def scene() -> None:
        at = Scene()
        gone = weakref.ref(at.take(Exchange("a")))
        await turns()
        assert at.handled == ["a"]
        assert gone() is None
        at.worker.end()
        await turns()

    asyncio.run(scene())
