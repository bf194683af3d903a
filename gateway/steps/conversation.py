"""Where on the line of an alias's targets a request stands: the same for all requests of one conversation. Pure.

A conversation that changed models in the middle would lose its prefix cache and its voice. The point is keyed, so that
nobody who does not hold the key can choose a side, and the same in every instance that holds it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from gateway.model import InferenceRequest, Principal

SESSION = b"x-session-id"
_SESSION = re.compile(rb"[A-Za-z0-9._:-]{1,128}").fullmatch
_PREFIX = 256  # characters of the first message: enough to tell conversations apart, the same in each of their turns
_OPENINGS = ("messages", "prompt", "input", "query", "text_1")
_RANGE = float(1 << 64)


def session_of(head: Mapping[bytes, bytes]) -> bytes | None:
    """What the client says that the request belongs to; ``None``: nothing, or nothing plain."""
    session = head.get(SESSION)
    return session if session is not None and _SESSION(session) else None


def split_point(
    key: bytes, alias: str, head: Mapping[bytes, bytes], principal: Principal, request: InferenceRequest
) -> float:
    """A point in [0, 1) for the request's conversation with an alias.

    A conversation is what the client says in ``x-session-id``, if that is plain, else how its first message begins;
    either of one principal's only. ``key`` are at most 64 bytes.
    """
    session = session_of(head)
    if session is None:
        session = _opening(request.payload).encode("utf-8", "replace")
    digest = blake2b(digest_size=8, key=key)
    for part in (alias.encode(), principal.tenant.encode(), principal.id.encode(), session):
        digest.update(b"%d:%b" % (len(part), part))
    return int.from_bytes(digest.digest()) / _RANGE


def _opening(payload: Mapping[str, Any]) -> str:
    """How the first text of a body begins; empty where there is none."""
    for name in _OPENINGS:
        held = payload.get(name)
        if held:
            return _text(held)[:_PREFIX]
    return ""


def _text(value: Any) -> str:
    """The first text in a judged value: itself, its first item's, or that of its content."""
    while True:
        if type(value) is str:
            return value
        if type(value) is list and value:
            value = value[0]
        elif type(value) is dict:
            value = value.get("content") or value.get("text")
        else:
            return ""
