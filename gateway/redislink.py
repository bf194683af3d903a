"""The one place that talks to Redis: deadlines, a bounded pool, and failures as reasons in words.

redis-py's own defaults wait too long for a gateway: a frozen server fails a call after 58 s (5 s for each answer, ten
retries). Here a call never retries; each answer has ``timeout`` seconds, and a whole call four times as much, which one
that must first connect can need (TCP and TLS, AUTH, SELECT, the command). What to do about a failure is the caller's
decision: a store refuses the write, a limiter counts for itself.

RESP2 is spoken on purpose: with RESP3 redis-py lets a server announce another address for itself and longer timeouts.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import ssl
from collections.abc import AsyncGenerator, Sequence
from types import MappingProxyType
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.connection import Connection, ConnectionPool, SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    InvalidResponse,
    MasterDownError,
    MovedError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeout

from gateway.stateurl import RedisPlace

STORE_TIMEOUT = 0.25
BULK_TIMEOUT = 2.0
_MAX_CONNECTIONS = 16
_WHOLE_CALL = 4

# What went wrong (the first word of Redis's error reply, or what is found here) and what an operator can do about it.
_REASONS = MappingProxyType(
    {
        "REFUSED": "cannot be reached: nothing answers at its address",
        "BROKEN": "closed the connection before it had answered",
        "TIMEOUT": "did not answer in time: it is frozen, overloaded or too far away",
        "TLS": "cannot be trusted: TLS failed. Check the CA (?ca=FILE), the host name and that it speaks TLS",
        "SENTINEL": "cannot be found: no sentinel answers and knows a primary of that service",
        "WRONGPASS": "refuses the user or password. Check GATEWAY_REDIS_PASSWORD, or the URL",
        "NOAUTH": "asks for a password. Set GATEWAY_REDIS_PASSWORD or GATEWAY_REDIS_PASSWORD_FILE",
        "NOPERM": "forbids the gateway's user a command, key or channel. Check its ACL",
        "READONLY": "is a replica and cannot be written. Name the primary, or use redis+sentinel://",
        "MASTERDOWN": "is a replica without its primary",
        "NOREPLICAS": "refuses writes: it has too few replicas (min-replicas-to-write)",
        "LOADING": "is still loading its data. It will answer when it has finished",
        "OOM": "is out of memory (maxmemory). Nothing was changed: raise it or free some",
        "MISCONF": "refuses writes: it cannot save to its disk. Check its log",
        "MOVED": "is one node of a cluster and does not hold the gateway's keys. Name the node that does",
        "ASK": "is moving the gateway's keys to another node of its cluster",
        "CLUSTERDOWN": "is a node of a cluster that is down",
        "WRONGTYPE": "holds a value of another program, or a damaged one, under a key of the gateway",
        "DAMAGED": "holds an audit trail that is damaged. Nothing was changed: restore a copy",
        "TOO-OLD": "is too old: Redis 7.0 or newer, or a Valkey, is needed",
        "NOSCRIPT": "does not keep scripts. Is it a Redis?",
        "BUSY": "is busy with a script of another program",
        "PROTOCOL": "did not answer as a Redis does",
        "CLOSED": "is closed",
    }
)
_WORDS = re.compile(r"(?<![A-Z-])(" + "|".join(_REASONS) + r")(?![A-Z-])")
# redis-py's own errors by type, the most special first ...
_TYPES: tuple[tuple[type[BaseException], str], ...] = (
    (BusyLoadingError, "LOADING"),
    (ReadOnlyError, "READONLY"),
    (MasterDownError, "MASTERDOWN"),
    (MasterNotFoundError, "SENTINEL"),
    (MovedError, "MOVED"),
    (AskError, "ASK"),
    (RedisTimeout, "TIMEOUT"),
    (TimeoutError, "TIMEOUT"),
    (ssl.SSLError, "TLS"),
)
# ... and by what their or the server's texts say.
_PHRASES = (
    ("previous master is now a slave", "READONLY"),
    ("The user executing the script can't", "NOPERM"),
    ("Protocol error: unauthenticated", "NOAUTH"),  # to any command of more than ten parts
    ("invalid password", "WRONGPASS"),
    ("without any password configured", "WRONGPASS"),
    (" connecting to ", "REFUSED"),
)
# The command may have been carried out all the same: only its answer was lost.
_UNCERTAIN = frozenset({"BROKEN", "TIMEOUT"})


class LinkFault(Exception):
    """Redis did not do what was asked.

    ``kind`` is a word of a closed set, ``reason`` a text for an operator that goes on from the name of the server.
    ``uncertain`` says that the command may have been carried out: its answer was lost.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.reason = _REASONS[kind]
        self.uncertain = kind in _UNCERTAIN
        super().__init__(self.reason)


def fault_of(error: BaseException) -> LinkFault:
    """What an exception of redis-py or of the system means. Pure."""
    if isinstance(error.__context__, ssl.SSLError):  # redis-py raises a plain ConnectionError while it handles that
        return LinkFault("TLS")
    for kind, word in _TYPES:
        if isinstance(error, kind):
            return LinkFault(word)
    text = str(error)
    for phrase, word in _PHRASES:
        if phrase in text:
            return LinkFault(word)
    found = _WORDS.search(f"{getattr(error, 'status_code', None)} {text}")
    if found is not None:
        return LinkFault(found[1])
    return LinkFault("PROTOCOL" if isinstance(error, ResponseError | InvalidResponse) else "BROKEN")


class Script:
    """A Lua script, known to a server by its hash once it has run there."""

    __slots__ = ("sha", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()  # as EVALSHA wants it


class RedisLink:
    """Runs commands at one Redis. Connects when first asked; recovers by itself; ``close`` is idempotent.

    ``timeout`` is seconds for each answer. At most ``connections`` calls are under way; others wait their turn within
    their own deadline.
    """

    def __init__(
        self, place: RedisPlace, *, timeout: float = STORE_TIMEOUT, connections: int = _MAX_CONNECTIONS
    ) -> None:
        self.place = place
        self._timeout = timeout
        self._turns = asyncio.Semaphore(connections)
        self._closed = False
        self._sentinel = _sentinel(place, timeout) if place.service else None
        self._client = self._new_client(timeout)
        self._listeners: set[Redis] = set()

    async def run(self, *command: str | bytes | int | float) -> Any:
        """The answer to one command, as bytes, numbers and lists. Raises ``LinkFault``."""
        if self._closed:
            raise LinkFault("CLOSED")
        try:
            async with asyncio.timeout(_WHOLE_CALL * self._timeout), self._turns:
                return await self._client.execute_command(*command)  # type: ignore[no-untyped-call]
        except (RedisError, OSError, TimeoutError) as error:
            raise fault_of(error) from error

    async def evaluate(self, script: Script, keys: Sequence[str], *values: str | bytes | int | float) -> Any:
        """The answer of a script. A server that does not know it (restarted, flushed, another one) is told it."""
        try:
            return await self.run("EVALSHA", script.sha, len(keys), *keys, *values)
        except LinkFault as fault:
            if fault.kind != "NOSCRIPT":
                raise
        return await self.run("EVAL", script.text, len(keys), *keys, *values)

    async def listen(self, channel: str) -> AsyncGenerator[None, None]:
        """Yields once when listening has begun and then for messages, several at once as one.

        Its connection is its own and may be silent for ever; keep-alive probes notice within a minute that a host is
        gone. Raises ``LinkFault`` when the connection breaks.
        """
        if self._closed:
            raise LinkFault("CLOSED")
        client = self._new_client(None)
        self._listeners.add(client)
        try:
            async with client.pubsub() as pubsub:
                async with asyncio.timeout(_WHOLE_CALL * self._timeout):
                    await pubsub.subscribe(channel)
                    await pubsub.get_message(timeout=None)
                while True:
                    yield
                    await pubsub.get_message(timeout=None)
                    while await pubsub.get_message(timeout=0) is not None:
                        pass
        except (RedisError, OSError, TimeoutError) as error:
            raise fault_of(error) from error
        finally:
            self._listeners.discard(client)
            await client.aclose()

    async def close(self) -> None:
        """Close all connections. Idempotent; calls under way fail."""
        if self._closed:
            return
        self._closed = True
        closers = [client.aclose() for client in (self._client, *self._listeners)]
        if self._sentinel is not None:
            closers.append(self._sentinel.aclose())
        # A server that does not take part in closing is left to notice by itself.
        await asyncio.gather(*closers, return_exceptions=True)

    def _new_client(self, timeout: float | None) -> Redis:
        place = self.place
        options = _options(place, timeout, connect=self._timeout)
        client: Redis
        if self._sentinel is not None:
            client = self._sentinel.master_for(place.service, **options)
            return client
        host, port = place.servers[0]
        if place.tls:
            options["ssl_ca_certs"] = str(place.ca) if place.ca else None
        kind = _TlsConnection if place.tls else _PlainConnection
        return Redis.from_pool(ConnectionPool(connection_class=kind, host=host, port=port, **options))


def _options(place: RedisPlace, timeout: float | None, *, connect: float) -> dict[str, Any]:
    return {
        "db": place.db,
        "username": place.user or None,
        "password": place.password.reveal() if place.password is not None else None,
        **_socket_options(timeout, connect=connect),
    }


def _socket_options(timeout: float | None, *, connect: float) -> dict[str, Any]:
    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": connect,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "driver_info": None,  # else CLIENT SETINFO, which an ACL would have to allow
    }


def _sentinel(place: RedisPlace, timeout: float) -> Sentinel:
    return Sentinel(list(place.servers), sentinel_kwargs=_socket_options(timeout, connect=timeout))  # type: ignore[no-untyped-call]


class _DropsDemoted(Connection):
    """Ends a connection whose server turned out to be no primary: the next call looks the address up anew.

    After a failover behind one name (DNS, a virtual address) the old connections would otherwise stay with the old
    primary for ever.
    """

    async def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*args, **options)
        except (ReadOnlyError, MasterDownError, BusyLoadingError):
            await self.disconnect(nowait=True)
            raise


class _PlainConnection(_DropsDemoted):
    pass


class _TlsConnection(_DropsDemoted, SSLConnection):
    pass
