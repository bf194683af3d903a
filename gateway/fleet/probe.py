"""Is the replica there, and what does it serve? A thin shell around httpx; what it means is decided in ``replica``.

``/health`` 200 says only that a process lives (captured: a stalled, a paused and a draining vLLM all say it), so it is
needed for traffic, not enough for trust.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import orjson

from gateway.fleet.registry import Registry, Replica
from gateway.fleet.replica import Observation, State

_GONE = Observation(healthy=False)
_MAX_MODELS = 256
_LIST_EVERY = 10
_MAX_NAME = 256
_MAX_BODY = 1024 * 1024
_PLAIN = {"accept-encoding": "identity"}  # a small compressed answer may be a large one


def new_client(timeout: float = 3.5) -> httpx.AsyncClient:
    """An HTTP client for control traffic: no proxies from the environment, no redirects, nothing without a limit.

    Each look is a connection of its own: one that was kept would find an engine well that takes no new ones.
    """
    fresh = httpx.Limits(max_keepalive_connections=0)
    return httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=timeout, limits=fresh)


async def probe(
    client: httpx.AsyncClient, url: str, patience: float = 3.5, *, known: Observation | None = None
) -> Observation:
    """Look once, ``patience`` seconds at most however slowly an answer drips. Any failure is an observation too.

    With ``known``, only the engine's health is asked for, and what was known of a healthy one is taken as it was.
    """
    try:
        async with asyncio.timeout(patience):
            if await _get(client, f"{url}/health") is None:
                return _GONE
            if known is not None:
                return known
            listed = await _get(client, f"{url}/v1/models")
            seen = _GONE if listed is None else read_models(orjson.loads(listed))
            return replace(seen, version=await _version(client, url)) if seen.healthy else seen
    except (httpx.HTTPError, TimeoutError, ValueError):
        return _GONE


async def _version(client: httpx.AsyncClient, url: str) -> str | None:
    """What the engine says its version is; ``None`` for one without that route (SGLang) or with another answer."""
    told = await _get(client, f"{url}/version")
    try:
        answer = orjson.loads(told or b"null")
    except orjson.JSONDecodeError:
        return None
    version = answer.get("version") if isinstance(answer, dict) else None
    return version if _is_name(version) else None


async def _get(client: httpx.AsyncClient, url: str) -> bytes | None:
    """The body of a 200; ``None`` for anything else and for a body over the limit. Raises ``httpx.HTTPError``."""
    body = bytearray()
    async with client.stream("GET", url, headers=_PLAIN) as answer:
        if answer.status_code != 200:
            return None
        async for piece in answer.aiter_raw():
            body += piece
            if len(body) > _MAX_BODY:
                return None
    return bytes(body)


def read_models(answer: Any) -> Observation:
    """What an engine's model list says. Anything that is not such a list is an unhealthy engine's."""
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list):
        return _GONE
    rows = [row for row in data[:_MAX_MODELS] if isinstance(row, dict) and _is_name(row.get("id"))]
    lengths = [row["max_model_len"] for row in rows if type(row.get("max_model_len")) is int]
    owner = rows[0].get("owned_by") if rows else None
    return Observation(
        True,
        tuple(dict.fromkeys(row["id"] for row in rows)),
        min(lengths, default=None),
        engine=owner if _is_name(owner) else None,
    )


def _is_name(value: Any) -> bool:
    """Whether an id can be a served model's name, which is also printed. What may be an alias is decided elsewhere."""
    return isinstance(value, str) and 0 < len(value) <= _MAX_NAME and value.isprintable()


async def probe_all(client: httpx.AsyncClient, registry: Registry) -> None:
    """Look at every replica at once and tell each what was seen.

    What a ready one serves is asked for at every tenth look: it seldom changes, and the list costs as much again.
    """

    async def look(replica: Replica) -> None:
        replica.looks += 1
        listed = replica.life.state is State.READY and replica.looks % _LIST_EVERY != 0
        known = replica.life.seen if listed else None
        replica.observe(await probe(client, replica.spec.url, known=known))

    await asyncio.gather(*(look(replica) for replica in registry.replicas))
