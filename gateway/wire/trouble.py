"""What an engine's own error says of the engine, not of the request: that it is full, is shutting down, or is dead.

Pure. Error texts quote prompts (captured, vLLM 0.32.0), and whoever writes a prompt could write these words: so only a
message that begins with them counts, and only with a status that says that the engine failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import orjson


class Trouble(StrEnum):
    """What an engine has said of itself."""

    BUSY = "busy"
    CLOSING = "closing"
    DEAD = "dead"


# Captured from vLLM 0.11.0 and 0.32.0 (options/engine-killed, drain, limits) and from SGLang 0.5.23 (queue-limit).
_SAYS: tuple[tuple[str, Trouble], ...] = (
    ("The engine is currently busy", Trouble.BUSY),
    ("The request queue is full", Trouble.BUSY),
    ("cannot schedule new futures after shutdown", Trouble.CLOSING),
    ("EngineCore encountered an issue", Trouble.DEAD),
)


def trouble_of(answer: Mapping[str, Any]) -> Trouble | None:
    """What an error object (``error`` inside, or flat as SGLang's) says of the engine, if anything."""
    error = answer.get("error")
    message = (error if isinstance(error, dict) else answer).get("message")
    if not isinstance(message, str):
        return None
    return next((trouble for words, trouble in _SAYS if message.startswith(words)), None)


def trouble_in(body: bytes) -> Trouble | None:
    """``trouble_of`` the JSON object in ``body``; ``None`` for anything else."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return trouble_of(answer) if isinstance(answer, dict) else None
