"""Sends each request at its time whatever became of those before; or, to measure capacity, so many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from loadtests.overload.answers import SERVED, WRONG, Heard, ask
from loadtests.overload.arrivals import Request, encoded
from loadtests.overload.scenarios import PATIENCE

MOST_AT_ONCE = 2_000
"""Attempts that may be open; one more is wrong, not a wait: waiting would close the loop."""

RETRIES = 2
"""Of a client that obeys Retry-After: what the SDKs of OpenAI and Anthropic do by default."""

_REFUSED_PAUSE = 0.1

Ask = Callable[[int, bytes, Callable[[], float], float], Awaitable[Heard]]
Sleep = Callable[[float], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Stand:
    """A target that serves, with a key for each caller; ``pid`` is ``None`` where it is no process."""

    port: int
    keys: Mapping[str, str]
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt. Times in seconds: ``at`` from the beginning of the play, ``total`` from when it was sent.

    ``number`` is 0 for the first one of a request; ``late`` is by how much it was sent too late.
    """

    request: Request
    number: int
    at: float
    total: float
    heard: Heard
    late: float = 0.0


class Client:
    """Sends requests to one stand. ``obey``: a refused request is tried again after the time that it was told."""

    def __init__(
        self,
        stand: Stand,
        clock: Callable[[], float],
        *,
        obey: bool = False,
        ask: Ask = ask,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._stand, self._clock, self._ask, self._sleep = stand, clock, ask, sleep
        self._retries = RETRIES if obey else 0
        self._open = 0
        self._begun = clock()

    async def play(self, requests: Sequence[Request], seconds: float) -> list[Attempt]:
        """Send all; returns when the last answer has ended. No attempt begins after ``seconds``."""
        self._begun = self._clock()
        played = await asyncio.gather(*(self._one(request, seconds) for request in requests))
        return sorted((attempt for attempts in played for attempt in attempts), key=lambda attempt: attempt.at)

    async def saturate(self, requests: Iterator[Request], at_once: int, seconds: float) -> list[Attempt]:
        """Keep so many requests open for so long (a closed loop); returns when the last answer has ended."""
        self._begun = self._clock()
        attempts: list[Attempt] = []

        async def worker() -> None:
            while (at := self._clock() - self._begun) < seconds:
                attempts.append(attempt := await self._attempt(next(requests), 0, at))
                if attempt.heard.outcome != SERVED:
                    await self._sleep(_REFUSED_PAUSE)

        await asyncio.gather(*(worker() for _ in range(at_once)))
        return attempts

    async def _one(self, request: Request, seconds: float) -> list[Attempt]:
        attempts: list[Attempt] = []
        at: float | None = request.at
        while at is not None and at < seconds:
            if (wait := self._begun + at - self._clock()) > 0:
                await self._sleep(wait)
            attempts.append(attempt := await self._attempt(request, len(attempts), at))
            at = self._again(attempt)
        return attempts

    def _again(self, attempt: Attempt) -> float | None:
        """When a refused request is tried again, if it is."""
        if attempt.heard.retry_after is None or attempt.number >= self._retries:
            return None
        return self._clock() - self._begun + attempt.heard.retry_after

    async def _attempt(self, request: Request, number: int, at: float) -> Attempt:
        done = partial(Attempt, request, number, at)
        if self._open >= MOST_AT_ONCE:
            return done(0.0, Heard(WRONG, error=f"{MOST_AT_ONCE} streams are open already"))
        self._open += 1
        try:
            sent = encoded(request, self._stand.port, self._stand.keys.get(request.caller, ""))
            start = self._clock()
            heard = await self._ask(self._stand.port, sent, self._clock, PATIENCE)
            return done(self._clock() - start, heard, start - self._begun - at)
        finally:
            self._open -= 1
