"""What operators have ordered about engines, as one instance knows it."""

from __future__ import annotations

from gateway.model import EngineOrders
from gateway.stores.interfaces import StateStore


class OrderView:
    """Reads the store in ``refresh``. When it cannot be read, the orders last known stand: a drain that was ordered
    holds until somebody is heard to lift it."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._version: int | None = None
        self.orders = EngineOrders()

    async def refresh(self) -> bool:
        """Take in what changed; whether anything did. Raises ``StoreUnavailable``."""
        version = (await self._store.versions()).fleet
        if version == self._version:
            return False
        self.orders = await self._store.engine_orders()
        self._version = version
        return True
