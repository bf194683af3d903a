"""What is left of a caller's limits as response header lines, as OpenAI names and writes them. Pure."""

from __future__ import annotations

import math

from gateway.limits.interfaces import Standing

_REQUESTS = (
    b"x-ratelimit-limit-requests: %d\r\nx-ratelimit-remaining-requests: %d\r\nx-ratelimit-reset-requests: %b\r\n"
)
_TOKENS = b"x-ratelimit-limit-tokens: %d\r\nx-ratelimit-remaining-tokens: %d\r\nx-ratelimit-reset-tokens: %b\r\n"


def rate_lines(standing: Standing) -> bytes:
    """Header lines, each with its end; empty where the caller has no such limits.

    Clients do not wait by these: OpenAI's reads ``retry-after-ms`` and ``retry-after``, which errors carry.
    """
    limit, remaining, reset, token_limit, token_remaining, token_reset = standing
    lines = b"" if limit is None else _REQUESTS % (limit, remaining or 0, duration(reset))
    if token_limit is None:
        return lines
    return lines + _TOKENS % (token_limit, token_remaining or 0, duration(token_reset))


def duration(seconds: float) -> bytes:
    """``12ms``, ``1s``, ``6m0s``, ``2h0m5s``: rounded up, to milliseconds below a second, else to seconds."""
    if seconds <= 0:
        return b"0s"
    if seconds <= 0.999:
        return b"%dms" % math.ceil(seconds * 1_000)
    whole = math.ceil(seconds)
    if whole < 60:
        return b"%ds" % whole
    minutes, left = divmod(whole, 60)
    if minutes < 60:
        return b"%dm%ds" % (minutes, left)
    return b"%dh%dm%ds" % (*divmod(minutes, 60), left)
