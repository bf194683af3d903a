"""The orders about engines as one instance knows them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.model import EngineOrder, EngineOrders
from gateway.stores.interfaces import StoreUnavailable
from gateway.stores.open import open_store
from gateway.stores.orders import OrderView

A = "http://127.0.0.1:8001"


async def _drain(store: Any, url: str, draining: bool) -> None:
    await store.drain_engine(url, draining=draining, author="ops", at=5.0, note="why")


def test_orders_are_taken_in_once_for_each_change(url):
    async def main():
        store = await open_store(url)
        try:
            view = OrderView(store)
            assert view.orders == EngineOrders()
            first = await view.refresh()
            assert (view.orders.engines, await view.refresh()) == ({}, False)
            await _drain(store, A, True)
            assert (first, await view.refresh(), await view.refresh()) == (True, True, False)
            assert view.orders == await store.engine_orders()
            assert view.orders.engines[A] == EngineOrder(A, draining=True, author="ops", at=5.0, note="why")
            await _drain(store, A, False)
            assert await view.refresh()
            assert not view.orders.engines.get(A, EngineOrder(A)).draining
        finally:
            await store.close()

    asyncio.run(main())


class Failing:
    """A store that can be out of reach at either of the two reads."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.fails: set[str] = set()
        self.before_orders: Any = None

    async def versions(self) -> Any:
        if "versions" in self.fails:
            raise StoreUnavailable("frozen")
        return await self._store.versions()

    async def engine_orders(self) -> EngineOrders:
        if self.before_orders is not None:
            await self.before_orders()
        if "orders" in self.fails:
            raise StoreUnavailable("frozen")
        orders: EngineOrders = await self._store.engine_orders()
        return orders


@pytest.mark.parametrize("fails", ["versions", "orders"])
def test_while_the_store_cannot_be_read_a_drain_holds_and_what_changed_is_taken_in_afterwards(url, fails):
    async def main():
        store = await open_store(url)
        try:
            failing: Any = Failing(store)
            view = OrderView(failing)
            await _drain(store, A, True)
            await view.refresh()
            await _drain(store, A, False)
            failing.fails = {fails}
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    await view.refresh()
                assert view.orders.engines[A].draining
            failing.fails = set()
            assert await view.refresh()
            assert A not in view.orders.engines or not view.orders.engines[A].draining
        finally:
            await store.close()

    asyncio.run(main())


def test_a_change_between_the_two_reads_is_not_lost(url):
    async def main():
        store = await open_store(url)
        try:
            racing: Any = Failing(store)
            view = OrderView(racing)
            racing.before_orders = lambda: _drain(store, A, True)
            await view.refresh()
            racing.before_orders = None
            await _drain(store, A, False)
            await view.refresh()
            assert view.orders == await store.engine_orders()

            racing.before_orders = lambda: _drain(store, "http://127.0.0.1:8002", True)
            await _drain(store, A, True)
            await view.refresh()
            racing.before_orders = None
            assert await view.refresh()  # the version that it knows is older than what it has read: it looks again
            assert view.orders == await store.engine_orders()
            assert not await view.refresh()
        finally:
            await store.close()

    asyncio.run(main())
