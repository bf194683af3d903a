"""From a state URL to the store it names."""

from __future__ import annotations

from gateway.settings import sqlite_path
from gateway.stores.interfaces import StateStore, StoreUnavailable
from gateway.stores.sqlite import SqliteStore


async def open_store(url: str) -> StateStore:
    """Open the store at ``sqlite:///PATH``. Raises ``StoreUnavailable``, also for a URL that names no store."""
    try:
        path = sqlite_path(url)
    except ValueError as fault:
        raise StoreUnavailable(f"state: {fault}") from None
    return await SqliteStore.open(path)
