"""From a state URL to the store it names."""

from __future__ import annotations

from gateway.secret import Secret
from gateway.stateurl import RedisPlace, is_redis, redis_place, sqlite_path
from gateway.stores.interfaces import StateStore, StoreUnavailable
from gateway.stores.sqlite import SqliteStore


async def open_store(url: str, *, password: Secret | None = None) -> StateStore:
    """Open the store that a state URL names; ``password`` is for a Redis whose URL holds none.

    Raises ``StoreUnavailable``, also for a URL that names no store.
    """
    try:
        place = redis_place(url, password) if is_redis(url) else sqlite_path(url)
    except ValueError as fault:
        raise StoreUnavailable(f"state: {fault}") from None
    if not isinstance(place, RedisPlace):
        return await SqliteStore.open(place)
    from gateway.stores.redis import RedisStore  # noqa: PLC0415 - who has no Redis need not wait for its client

    return await RedisStore.open(place)
