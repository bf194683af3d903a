"""The stores that the common suite runs against."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.redisserver import RedisServer


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One redis-server for the whole run; ask for ``redis_server``, which empties it first."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_server(shared_redis: RedisServer) -> RedisServer:
    """A redis-server without data. A test that stops or changes it makes one of its own."""
    shared_redis.command("FLUSHALL")
    shared_redis.command("SCRIPT", "FLUSH")
    return shared_redis


@pytest.fixture(params=["redis", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A state URL that names a new, empty store."""
    if request.param == "sqlite":
        return f"sqlite://{tmp_path / 'state.db'}"
    server: RedisServer = request.getfixturevalue("redis_server")
    return server.url()
