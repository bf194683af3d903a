"""What a caller is told of its limits: which one refuses, for how long, and what is left. Pure.

Every limiter keeps its counts in its own way and speaks through this module, so that all say the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

from gateway.limits import gcra
from gateway.limits.interfaces import LimitReached, Standing
from gateway.model import Budget, Limits

# When a place becomes free cannot be known: a request ends when it ends.
_PLACE_WAIT = 1.0
_making = tuple.__new__  # a named tuple's own constructor takes three times as long


class Used(Protocol):
    """How far a budget is used: the TAT of each of its rates (see ``gcra``), and its requests in flight."""

    @property
    def requests(self) -> float: ...
    @property
    def tokens(self) -> float: ...
    @property
    def day(self) -> float: ...
    @property
    def in_flight(self) -> int: ...


# Of each rate: period, error code, words.
_REQUESTS = (gcra.MINUTE, "rate_limited", "requests per minute")
_TOKENS = (gcra.MINUTE, "tokens_limited", "tokens per minute")
_DAY = (gcra.DAY, "tokens_limited", "tokens per day")


def refusal(budgets: Sequence[Budget], used: Sequence[Used], now: float, tokens: int) -> LimitReached:
    """The error for a request of ``tokens`` that the budgets do not admit. Of several limits it names the slowest."""
    longest, code, words = -1.0, "", ""
    for budget, its in zip(budgets, used, strict=True):
        for wait, its_code, its_words in _waits(budget.limits, its, now, tokens):
            if wait > longest:
                longest, code, words = wait, its_code, its_words
    left = standing(budgets, used, now) or Standing()
    if longest < math.inf:
        seconds = max(math.ceil(longest), 1)
        return LimitReached(code, f"Limit of {words} reached.", retry_after=seconds, standing=left)
    message = f"The limit of {words} lets no request pass."
    if code == "tokens_limited":
        message = f"This request alone asks for more than the limit of {words}. Lower max_tokens or shorten the input."
    return LimitReached(code, message, retry_after=None, standing=left, never=True)


def _waits(limits: Limits, used: Used, now: float, tokens: int) -> Iterator[tuple[float, str, str]]:
    """For each figure that may refuse: seconds until it would let the request pass, the error code, it in words."""
    rates = (
        (limits.requests_per_minute, used.requests, 1, _REQUESTS),
        (limits.tokens_per_minute, used.tokens, tokens, _TOKENS),
        (limits.tokens_per_day, used.day, tokens, _DAY),
    )
    for figure, tat, units, (period, code, words) in rates:
        if figure is not None and (tat > now or units > figure):  # else it is whole, and has room for the request
            yield gcra.wait(gcra.ahead(tat, now), units, figure, period), code, words
    places = limits.concurrency
    if places is not None and used.in_flight >= places:
        yield _PLACE_WAIT if places > 0 else math.inf, "concurrency_limited", "requests at once"


def standing(budgets: Sequence[Budget], used: Sequence[Used], now: float) -> Standing | None:
    """What is left of the tightest limits a minute; ``None`` when no budget has one."""
    requests = tokens = requests_left = tokens_left = None
    requests_reset = tokens_reset = 0.0
    minute, grace = gcra.MINUTE, gcra.GRACE
    # ``gcra.ahead`` and most of ``gcra.remaining`` are written out: every answer says this.
    for (_, limits), its in zip(budgets, used, strict=True):
        figure = limits.requests_per_minute
        if figure is not None:
            tat = its.requests
            ahead = tat - now if tat > now else 0.0
            left = int((minute - ahead) * figure / minute + grace)
            if requests_left is None or left < requests_left:
                requests, requests_left, requests_reset = figure, left, ahead
        figure = limits.tokens_per_minute
        if figure is not None:
            tat = its.tokens
            ahead = tat - now if tat > now else 0.0
            left = int((minute - ahead) * figure / minute + grace)
            if tokens_left is None or left < tokens_left:
                tokens, tokens_left, tokens_reset = figure, left, ahead
    if requests is None and tokens is None:
        return None
    if requests_left is not None and requests_left < 0:
        requests_left = 0
    if tokens_left is not None and tokens_left < 0:
        tokens_left = 0
    return _making(Standing, (requests, requests_left, requests_reset, tokens, tokens_left, tokens_reset))


def shared(limits: Limits, share: float) -> Limits:
    """Limits with ``share`` of each figure, at least 1 of each that lets anything pass."""

    def part(figure: int | None) -> int | None:
        return figure if not figure else max(int(figure * min(share, 1.0)), 1)

    return Limits(
        part(limits.requests_per_minute),
        part(limits.tokens_per_minute),
        part(limits.tokens_per_day),
        part(limits.concurrency),
    )
