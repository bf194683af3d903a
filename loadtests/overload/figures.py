"""From attempts to figures. Pure. Times in seconds, rates in tokens of answers a second where nothing else is said."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from loadtests.bench.stats import percentile
from loadtests.overload.answers import GAVE_UP, SERVED, WRONG
from loadtests.overload.client import Attempt
from loadtests.overload.scenarios import TARGET
from loadtests.routing.figures import Times, times

WINDOW = 2.0
"""Seconds of arrivals of which one looks at a 90th percentile to see whether times are back to normal."""

_STEP = 0.5


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a target and its engines gave in a closed loop."""

    tokens: float
    requests: float


@dataclass(frozen=True, slots=True)
class Row:
    """The attempts of one caller in one phase. ``refused`` is by code, ``unspoken`` those without a Retry-After.

    ``ttft`` is of the answers that came to their end, ``queued`` what their heads said of the queue. ``rate`` is of all
    answers, ``goodput`` of those whose first token was in time. ``cost`` is what was served of prompts and answers, in
    tokens. What is served counts by when it came, whenever it was sent: what a queue still holds at the end of a phase
    is served without competition.
    """

    phase: str
    caller: str
    sent: int
    again: int
    served: int
    in_time: int
    gave_up: int
    wrong: int
    refused: Mapping[str, int]
    unspoken: int
    retry_after: Times
    ttft: Times
    queued: Times
    rate: float
    goodput: float
    cost: float


def served(attempt: Attempt) -> bool:
    return attempt.heard.outcome == SERVED


def in_time(attempt: Attempt, target: float = TARGET) -> bool:
    return served(attempt) and attempt.heard.ttft is not None and attempt.heard.ttft <= target


def refused(attempt: Attempt) -> bool:
    return attempt.heard.outcome not in (SERVED, GAVE_UP, WRONG)


def tokens_within(attempt: Attempt, begin: float, end: float) -> float:
    """Tokens of an answer that came between two moments, taken to come evenly from its first one to its end."""
    if not served(attempt) or attempt.heard.ttft is None:
        return 0.0
    first, last = attempt.at + attempt.heard.ttft, attempt.at + attempt.total
    if last <= first:
        return float(attempt.heard.tokens) if begin <= first < end else 0.0
    return attempt.heard.tokens * max(0.0, min(last, end) - max(first, begin)) / (last - first)


def cost_within(attempt: Attempt, begin: float, end: float) -> float:
    """The same with the tokens of its prompt, which count at the moment of the first token."""
    if not served(attempt) or attempt.heard.ttft is None:
        return 0.0
    computed = begin <= attempt.at + attempt.heard.ttft < end
    return tokens_within(attempt, begin, end) + (attempt.request.prompt if computed else 0)


def wished(attempt: Attempt) -> float:
    """Tokens that a request asks for, its prompt included; nothing where it only asks again."""
    return float(attempt.request.prompt + attempt.request.output) if attempt.number == 0 else 0.0


def rate(attempts: Iterable[Attempt], begin: float, end: float) -> float:
    """Tokens a second between two moments."""
    return sum(tokens_within(attempt, begin, end) for attempt in attempts) / (end - begin)


def capacity(attempts: Sequence[Attempt], begin: float, end: float) -> Capacity:
    """Of a closed loop, between two moments at which it was in full course."""
    lengths = [attempt.heard.tokens for attempt in attempts if served(attempt)]
    tokens = rate(attempts, begin, end)
    return Capacity(tokens, tokens * len(lengths) / sum(lengths) if sum(lengths) else 0.0)


def row(attempts: Sequence[Attempt], phase: str, caller: str, begin: float, end: float) -> Row:
    """Of one caller in one phase, which took from ``begin`` to ``end``."""
    mine = [each for each in attempts if each.request.phase == phase and each.request.caller == caller]
    good, bad = [each for each in mine if served(each)], [each for each in mine if refused(each)]
    every = [each for each in attempts if each.request.caller == caller]
    return Row(
        phase=phase,
        caller=caller,
        sent=sum(each.number == 0 for each in mine),
        again=sum(each.number > 0 for each in mine),
        served=len(good),
        in_time=sum(in_time(each) for each in good),
        gave_up=sum(each.heard.outcome == GAVE_UP for each in mine),
        wrong=sum(each.heard.outcome == WRONG for each in mine),
        refused=dict(Counter(each.heard.outcome for each in bad)),
        unspoken=sum(each.heard.retry_after is None for each in bad),
        retry_after=_times(bad, lambda each: each.heard.retry_after),
        ttft=_times(good, lambda each: each.heard.ttft),
        queued=_times(good, lambda each: each.heard.queued),
        rate=rate(every, begin, end),
        goodput=rate((each for each in every if in_time(each)), begin, end),
        cost=sum(cost_within(each, begin, end) for each in every),
    )


def _times(attempts: Iterable[Attempt], of: Callable[[Attempt], float | None]) -> Times:
    return times(value for value in map(of, attempts) if value is not None)


def p90(attempts: Iterable[Attempt], begin: float, end: float) -> float | None:
    """Of the times to first token of what was first sent between two moments; not to get one is to wait for ever."""
    waited = [_waited(each) for each in attempts if each.number == 0 and begin <= each.at < end]
    return percentile(sorted(waited), 0.9)


def _waited(attempt: Attempt) -> float:
    return attempt.heard.ttft if served(attempt) and attempt.heard.ttft is not None else math.inf


def recovery(attempts: Sequence[Attempt], end: float, limit: float, until: float) -> float | None:
    """Seconds from ``end`` to the first window of arrivals whose p90 is within ``limit``; ``None``: none until then."""
    begin = end
    while begin + WINDOW <= until + 1e-9:
        found = p90(attempts, begin, begin + WINDOW)
        if found is not None and found <= limit:
            return begin - end
        begin += _STEP
    return None


def fair_shares(demands: Mapping[str, float], weights: Mapping[str, float], total: float) -> dict[str, float]:
    """Max-min fair shares: nobody gets more than it demands, and what one leaves goes to the others by weight."""
    left, shares = dict(demands), dict.fromkeys(demands, 0.0)
    while left:
        level = total / sum(weights[name] for name in left)
        content = [name for name, demand in left.items() if demand <= level * weights[name]]
        if not content:
            return shares | {name: level * weights[name] for name in left}
        for name in content:
            shares[name] = left.pop(name)
            total -= shares[name]
    return shares


def over_time(
    attempts: Sequence[Attempt], seconds: float, width: float = 1.0
) -> tuple[list[float], list[float], list[float]]:
    """For the middle of each interval: its moment, tokens a second of all answers, and of those in time."""
    good = [attempt for attempt in attempts if in_time(attempt)]
    begins = [number * width for number in range(math.ceil(seconds / width))]
    return (
        [begin + width / 2 for begin in begins],
        [rate(attempts, begin, begin + width) for begin in begins],
        [rate(good, begin, begin + width) for begin in begins],
    )
