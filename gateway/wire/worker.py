"""Handles the exchanges of one connection, one after the other, in one task.

A task for each exchange would cost ten times what waking one does. The task begins with the first exchange and ends
with its connection; an exchange that comes while the handler of the one before still runs waits for its turn.
"""

from __future__ import annotations

import asyncio

from gateway.wire.inbound import Inbound, InboundContext


class Worker:
    """Runs the context's handler. ``end`` is idempotent."""

    __slots__ = ("_context", "_ended", "_next", "_rest", "_task")

    def __init__(self, context: InboundContext) -> None:
        self._context = context
        self._next: Inbound | None = None
        self._rest: asyncio.Future[None] | None = None  # while there is nothing to do
        self._task: asyncio.Task[None] | None = None
        self._ended = False

    def take(self, exchange: Inbound) -> None:
        """Handle an exchange in the next turn of the loop."""
        self._next = exchange
        if self._task is None:
            self._task = self._context.loop.create_task(self._work())
        else:
            self._wake()

    def has(self, exchange: Inbound) -> bool:
        """Whether the exchange was taken and its handler has not returned."""
        return self._next is exchange

    def cancel(self) -> bool:
        """Cancel what is being handled; returns whether there was anything."""
        if self._task is None or self._next is None:
            return False
        self._task.cancel()
        return True

    def end(self) -> None:
        """The connection is gone: no exchange will follow."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if self._rest is not None and not self._rest.done():
            self._rest.set_result(None)

    async def _work(self) -> None:
        context = self._context
        while not self._ended:
            exchange = self._next
            if exchange is None:
                self._rest = context.loop.create_future()
                await self._rest
                continue
            try:
                await context.handler(exchange)
            except Exception as error:  # noqa: BLE001 - the loop's own report of it would print what the message quotes
                context.on_crash(error)
            finally:
                if self._next is exchange:
                    self._next = None
                if not exchange.finished and not exchange.gone:
                    exchange.abort()
                del exchange  # a connection at rest holds nothing of the last one
