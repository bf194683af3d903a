"""One look at an engine: is it well, what does it serve, what do its signals say. Thin I/O; what it means is decided in
``life`` and ``watch``.

``/health`` 200 says only that a process lives (captured: a stalled, a paused and a draining vLLM all say it), so it is
needed for traffic, not enough for trust.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import orjson

from gateway.errors import EngineFailure, EngineTimeout, EngineUnreachable
from gateway.fleet.engines.adapter import Adapter
from gateway.fleet.signals import Memory, Reading, read_signals

_MAX_MODELS = 256
_MAX_NAME = 256
_PATIENCE = 3.5


class Eyes(Protocol):
    """What looks need of a link to an engine."""

    async def get(self, path: str, patience: float, *, fresh: bool = False) -> tuple[int, bytes]:
        """Status and body of a GET within ``patience`` seconds. Raises ``EngineFailure``."""
        ...


class Answered(StrEnum):
    """How an engine answered a look."""

    WELL = "well"
    UNWELL = "unwell"
    SILENT = "silent"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Seen:
    """What an engine says of itself: the served models, the shortest context in tokens, its kind and its version."""

    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    version: str | None = None
    owner: str | None = None


async def look_at_health(eyes: Eyes, adapter: Adapter, *, fresh: bool = True) -> tuple[Answered, str]:
    """How the engine answered, and in words why it is not well; by default on a connection of its own."""
    try:
        status, _ = await eyes.get(adapter.health_path, max(adapter.health_patience, _PATIENCE), fresh=fresh)
    except EngineUnreachable as error:
        return (Answered.SILENT if error.slow else Answered.REFUSED), "it takes no connection"
    except EngineTimeout:
        return Answered.SILENT, "its health check does not answer"
    except EngineFailure:
        return Answered.SILENT, "its health check breaks off"
    return (Answered.WELL, "") if status == 200 else (Answered.UNWELL, f"its health check says {status}")


async def look_at_models(eyes: Eyes, adapter: Adapter) -> Seen | None:
    """What the engine serves; ``None`` for one whose model list is none."""
    try:
        status, body = await eyes.get("/v1/models", _PATIENCE)
    except EngineFailure:
        return None
    seen = read_models(body) if status == 200 else None
    return seen if seen is not None and seen.models else None


async def look_at_version(eyes: Eyes, adapter: Adapter) -> str | None:
    """What the engine says its version is; ``None`` for one that does not."""
    if adapter.version_path is None:
        return None
    try:
        status, body = await eyes.get(adapter.version_path, _PATIENCE)
        answer = orjson.loads(body) if status == 200 else None
    except (EngineFailure, orjson.JSONDecodeError):
        return None
    version = answer.get("version") if isinstance(answer, dict) else None
    return version if _is_name(version) else None


async def look_at_signals(eyes: Eyes, adapter: Adapter, memory: Memory | None = None) -> Reading | None:
    """The engine's signals; ``None`` if it gives none now. Raises ``EngineUnreachable``.

    ``memory`` is what earlier looks at the same engine left behind.
    """
    try:
        status, body = await eyes.get(adapter.metrics_path, _PATIENCE)
    except EngineFailure as error:
        if isinstance(error, EngineUnreachable) and not error.slow:
            raise
        return None
    return read_signals(adapter, body if status == 200 else b"", memory)


def read_models(body: bytes) -> Seen | None:
    """What an engine's model list says; ``None`` for anything that is not such a list."""
    try:
        answer: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list):
        return None
    rows = [row for row in data[:_MAX_MODELS] if isinstance(row, dict) and _is_name(row.get("id"))]
    lengths = [length for row in rows if type(length := row.get("max_model_len")) is int and length > 0]
    owner = rows[0].get("owned_by") if rows else None
    return Seen(
        tuple(dict.fromkeys(row["id"] for row in rows)),
        min(lengths, default=None),
        owner=owner if _is_name(owner) else None,
    )


def _is_name(value: Any) -> bool:
    """Whether an id can be a served model's name, which is also printed. What may be an alias is decided elsewhere."""
    return isinstance(value, str) and 0 < len(value) <= _MAX_NAME and value.isprintable()
