"""From a state URL to the store it names."""

from __future__ import annotations

from gateway.secret import Secret
from gateway.stateurl import RedisPlace, is_redis, redis_place, sqlite_path
from gateway.stores.interfaces import StateStore, StoreUnavailable
from gateway.stores.redis import RedisStore
from gateway.stores.sqlite import SqliteStore


async def open_store(url: str, *, password: Secret | None = None) -> StateStore:
    """Open the store that a state URL names; ``password`` is for a Redis whose URL holds none.

    Raises ``StoreUnavailable``, also for a URL that names no store.
    """
    try:
        place = redis_place(url, password) if is_redis(url) else sqlite_path(url)
    except ValueError as fault:
        raise StoreUnavailable(f"state: {fault}") from None
    return await RedisStore.open(place) if isinstance(place, RedisPlace) else await SqliteStore.open(place)
