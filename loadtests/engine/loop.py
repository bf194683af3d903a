"""The engine's clockwork: runs the scheduler's steps in real time on the event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from loadtests.engine.counting import EngineMetrics
from loadtests.engine.foresight import first_token
from loadtests.engine.scheduler import Job, Scheduler, Step, Token

OnToken = Callable[[Token], None]
_MOST_LAG = 0.25
"""Seconds that the simulated time may fall behind the real one before it jumps forward."""


class EngineLoop:
    """Steps follow each other on a simulated time line: a step that the event loop finishes late does not delay the
    next one, so the modelled speed holds on a busy machine. A frozen loop keeps all it has, and takes new jobs aside.
    """

    def __init__(self, scheduler: Scheduler, metrics: EngineMetrics) -> None:
        self._scheduler = scheduler
        self._metrics = metrics
        self._listeners: dict[Job, OnToken] = {}
        self._held: list[tuple[Job, OnToken]] = []
        self._frozen = False
        self._step: Step | None = None
        self._handle: asyncio.Handle | None = None
        self._ends = 0.0

    @property
    def frozen(self) -> bool:
        return self._frozen

    def submit(self, job: Job, on_token: OnToken) -> None:
        """Queue a sequence; `on_token` is called for each of its tokens."""
        if self._frozen:
            self._held.append((job, on_token))
            return
        self._listeners[job] = on_token
        self._scheduler.submit(job, self._now())
        self._wake()

    def complete_all(self, jobs: list[Job]) -> bool:
        """Run sequences to their end at once, without a timer; all, or none where something stands in the way."""
        if self._frozen or not self._scheduler.idle:
            return False
        now = self._now()
        for job in jobs:
            self._scheduler.complete(job, now)
        return True

    def foresee(self, job: Job) -> float:
        """Seconds until a new sequence would get its first token if it came now, and nothing else after it.

        Infinite while frozen. ``job`` is only looked at.
        """
        now = self._now()
        return math.inf if self._frozen else first_token(self._scheduler, self._step, self._ends, job, now) - now

    def abort(self, job: Job) -> None:
        """Drop a sequence; unknown and finished ones are ignored."""
        if self._listeners.pop(job, None) is not None:
            self._scheduler.abort(job)
        elif self._held:
            self._held = [entry for entry in self._held if entry[0] is not job]

    def freeze(self) -> None:
        """Stop between two steps, as a paused or stopped engine process does. Idempotent."""
        self._frozen = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def thaw(self) -> None:
        """Go on where it stopped. Idempotent."""
        if not self._frozen:
            return
        self._frozen = False
        if self._step is not None:
            self._arm(self._now())
        else:
            self._wake()
        held, self._held = self._held, []
        for job, on_token in held:
            self.submit(job, on_token)

    def forget_step(self) -> None:
        """Give the step in progress up: its sequences were all aborted. Of a frozen loop only. Idempotent."""
        self._step = None

    def close(self) -> None:
        """Drop everything. Idempotent."""
        self.freeze()
        self._listeners.clear()
        self._held.clear()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _wake(self) -> None:
        """Begin soon, not now: the sequences of one request belong in the same step."""
        if self._step is None and self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._awake)

    def _awake(self) -> None:
        self._handle = None
        self._begin(self._now())

    def _begin(self, now: float) -> None:
        self._step = self._scheduler.begin(now)
        if self._step is not None:
            self._arm(now + self._step.seconds)

    def _arm(self, when: float) -> None:
        loop = asyncio.get_running_loop()
        self._ends = when
        self._handle = loop.call_at(when, self._end) if when > loop.time() else loop.call_soon(self._end)

    def _end(self) -> None:
        step = self._step
        if step is None or self._frozen:
            return
        self._handle = None
        now = self._ends if self._now() - self._ends < _MOST_LAG else self._now()
        tokens = self._scheduler.finish(step, now)
        self._metrics.step(step, len(tokens))
        for token in tokens:
            self._hand_out(token)
        self._begin(now)

    def _hand_out(self, token: Token) -> None:
        self._metrics.token(token)
        listener = self._listeners.pop(token.job, None) if token.last else self._listeners.get(token.job)
        if listener is not None:
            listener(token)
