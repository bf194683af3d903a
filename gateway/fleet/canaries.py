"""Small inferences that show whether an engine still works: one that idles, is on probation, or is out."""

from __future__ import annotations

import math

from gateway.errors import EngineBusy, EngineFailure, EngineTimeout, EngineUnreachable
from gateway.fleet.inference import InferenceRefused
from gateway.fleet.life import Sign
from gateway.fleet.replica import Replica
from gateway.fleet.surroundings import Surroundings
from gateway.fleet.warmer import NoRoute, canary
from gateway.fleet.warmup import Kind, Meaning, judge


class Canaries:
    """Asks one replica's engine for a few tokens, and has the replica take in what comes of it.

    ``kind`` is what kind of inference its model answers, once that is known.
    """

    def __init__(self, replica: Replica, around: Surroundings) -> None:
        self.kind: Kind | None = None
        self._replica = replica
        self._around = around
        self._pointless_until = -math.inf

    async def rouse(self) -> None:
        """An idle engine is asked now and then: that it still can is not to be seen otherwise."""
        health, replica, now = self._around.policy().health, self._replica, self._around.now()
        idle = replica.progress.idle_for(now)
        if not health.canary_interval or idle < health.canary_interval or now < self._pointless_until:
            return
        try:
            await self._ask()
        except EngineTimeout:
            self._hang()
        except EngineFailure as error:
            if _cannot_tell(error):
                self._pointless_until = self._around.now() + health.canary_interval
            replica.note_failure(error)
        else:
            replica.note_success()

    async def prove(self) -> None:
        """Probation must end though nobody asks for anything, or what was in flight before it goes on for long."""
        replica = self._replica
        replica.carried = min(replica.carried, replica.in_flight)
        if replica.in_flight > replica.carried:
            return
        try:
            await self._ask()
        except EngineTimeout:
            self._hang()
        except EngineFailure as error:
            if not _cannot_tell(error):
                replica.note_failure(error)
                replica.take(Sign.FAILING, f"a canary failed in probation ({error.reason})")
        else:
            replica.note_success()

    async def retry(self) -> None:
        """The same process after an ejection: once its time is over, one inference decides.

        Where the model answers no inference that is known here, its first requests decide, one at a time.
        """
        replica, now = self._replica, self._around.now()
        if now < replica.life.until:
            return
        try:
            await self._ask()
        except EngineBusy:
            return
        except EngineFailure as error:
            if _cannot_tell(error):
                replica.take(Sign.RESTED, "its time is over, and no canary can ask it")
                return
            if isinstance(error, EngineUnreachable) and not error.slow:
                replica.take(Sign.LOST)
            replica.postpone(f"a canary failed ({error.reason})")
        else:
            replica.take(Sign.RESTED, "a canary was answered")

    def _hang(self) -> None:
        self._replica.hang(f"a canary had no answer in {self._around.policy().health.canary_limit:g} s")

    async def _ask(self) -> None:
        around, replica = self._around, self._replica
        await canary(
            replica.link,
            replica.seen.models[0],
            replica.adapter,
            around.policy().health.canary_limit,
            clock=around.now,
            random=around.random,
            new_id=around.new_id,
            kind=self.kind,
        )


def _cannot_tell(error: EngineFailure) -> bool:
    """Whether a canary failed in a way that says nothing of the engine: its queue is full, or its model of no kind that
    can be asked (one that transcribes)."""
    if isinstance(error, InferenceRefused):
        return judge(error.status, other_kind=error.other_kind) is not Meaning.ENGINE
    return isinstance(error, (EngineBusy, NoRoute))
