"""Looking after one replica: a loop of small steps, each by the state that the replica is in.

Every decision is made by a pure part (``life``, ``progress``, ``breaker``, ``warmup``); this is the shell that looks,
asks them and says what came of it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from gateway.errors import EngineFailure, EngineHung, EngineUnreachable
from gateway.fleet.breaker import ejection_time
from gateway.fleet.canaries import Canaries
from gateway.fleet.engines.adapter import adapter_for
from gateway.fleet.life import Sign, State
from gateway.fleet.look import Answered, Seen, look_at_health, look_at_models, look_at_signals, look_at_version
from gateway.fleet.replica import Replica
from gateway.fleet.restart import same_process
from gateway.fleet.rhythm import knocks, next_look
from gateway.fleet.signals import Memory, Reading, Signal
from gateway.fleet.surroundings import Surroundings
from gateway.fleet.warmer import Warmth, warm_up
from gateway.policy.engines import judge_engine

_HEALTH_EVERY = 5  # steps between looks at a health check while scrapes succeed: a scrape proves as much of a server
_LIST_EVERY = 10  # steps between looks at what a ready engine serves: it seldom changes
_LEAST_SHARE = 0.1
_WOKEN_AGAIN = 0.1  # of an interval: whatever wakes a watch again and again makes no load of it
_EARLY = 0.002  # seconds: the loop's timers are exact to a millisecond
_SILENCE = 3.5  # seconds that a look at a silent engine takes, more or less
_NAMED = 8  # names of models in one line


class Watch:
    """The loop of one replica. ``run`` ends when the replica is gone and no longer listed."""

    def __init__(self, replica: Replica, around: Surroundings) -> None:
        self.replica = replica
        self.greeted = asyncio.Event()
        self._around = around
        self._canaries = Canaries(replica, around)
        self._wake = asyncio.Event()
        self._woken = -math.inf
        self._cut: asyncio.Timeout | None = None
        self._memory = Memory()
        self._last: Reading | None = None
        self._misses = 0
        self._steps = 0
        self._next = -math.inf
        self._setbacks = 0
        self._warm_after = -math.inf
        self._warm_since = 0.0
        self._missing: frozenset[Signal] = frozenset()
        replica.nudge = self._nudged
        self._by_state: Mapping[State, Callable[[], Awaitable[None]]] = MappingProxyType(
            {
                State.FOUND: self._greet,
                State.STARTING: self._greet,
                State.WARMING: self._warm,
                State.READY: self._tend,
                State.PROBATION: self._tend,
                State.EJECTED: self._greet,
                State.DRAINING: self._ebb,
                State.GONE: self._rest,
            }
        )

    async def run(self) -> None:
        """Step after step, until the replica is gone."""
        self._steps = self._around.random.randrange(_LIST_EVERY)  # not all of a fleet has its longer looks at once
        while not (self.replica.life.state is State.GONE and self.replica.removed):
            self._wake.clear()
            await self.step()
            self.greeted.set()
            await self._pause()

    async def step(self) -> None:
        """One look, and what follows from it."""
        self._steps += 1
        await self._by_state[self.replica.life.state]()

    def _nudged(self) -> None:
        self._wake.set()
        if self._cut is not None and self.replica.life.state is not State.WARMING:
            self._cut.reschedule(asyncio.get_running_loop().time())
            self._cut = None

    async def _pause(self) -> None:
        around, loop = self._around, asyncio.get_running_loop()
        now = loop.time()
        self._next = next_look(self._next, now, around.interval, around.random.random)
        timer = loop.call_later(self._next - now, self._wake.set)  # half the cost of a timeout, and there are many
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
        if loop.time() >= self._next - _EARLY:
            return
        self._next = loop.time()
        rest = self._woken + _WOKEN_AGAIN * around.interval - around.now()
        if rest > 0:
            await asyncio.sleep(rest)
        self._woken = around.now()

    # --- not serving: found, starting, ejected

    async def _greet(self) -> None:
        """Is it well, what does it serve, may it serve; then it is warmed up, or tried again after an ejection."""
        replica, around = self.replica, self._around
        try:
            async with around.looks:
                reading = await self._meet()
        except EngineUnreachable:
            self._unwell(Answered.REFUSED, "it takes no connection")
            return
        if reading is None:
            return
        if self._restarted(reading):
            self._setbacks, self._warm_after = 0, -math.inf
            replica.take(Sign.RESTARTED, "another process has taken its place")
        if replica.life.state is State.EJECTED:
            await self._canaries.retry()
            return
        if (wait := self._warm_after - around.now()) > 0:
            replica.remark = f"the next warmup begins in {wait:.0f} s"
            return
        await self._check_exposure(replica.seen)
        replica.lost, self._last = False, reading
        replica.take(Sign.HEALTHY, f"serves {_some(replica.seen.models)}")
        if replica.life.state is State.WARMING:
            await self._warm()

    def _unwell(self, answered: Answered, why: str) -> None:
        sign = Sign.LOST if answered is Answered.REFUSED else Sign.LISTENS
        self.replica.take(sign, why)
        self.replica.remark = why

    async def _meet(self) -> Reading | None:
        """Learn what the engine is; its signals if it may serve, else ``None``. Raises ``EngineUnreachable``."""
        replica, link = self.replica, self.replica.link
        answered, why = await look_at_health(link, replica.adapter)
        if answered is not Answered.WELL:
            self._unwell(answered, why)
            return None
        seen = await look_at_models(link, replica.adapter)
        if seen is None:
            self._unwell(Answered.UNWELL, "it lists no models")
            return None
        replica.adapter = adapter_for(seen.owner, replica.spec.labels.get("engine"))
        seen = replace(seen, version=await look_at_version(link, replica.adapter))
        if not self._fit(seen):
            return None
        reading = await self._scrape()
        if reading is not None and reading.values.get(Signal.SLEEPING):
            self._unwell(Answered.UNWELL, "it sleeps")
            return None
        if self._another_model(seen):
            replica.take(Sign.RESTARTED, "it serves another model")
        self._see(seen)
        if reading is None:
            return _NOTHING
        replica.reading = reading._replace(missing=frozenset())  # some engines give some only after a first request
        return reading

    async def _check_exposure(self, seen: Seen) -> None:
        replica = self.replica
        exposed = await self._around.exposure(replica.spec, seen)
        if exposed and exposed != replica.exposed:
            self._around.report(
                f"replica {replica.id}: WARNING: its engine also answers at {', '.join(exposed)}, around the gateway: "
                "without keys, limits and records. Have it listen on loopback only (vLLM: --host 127.0.0.1)"
            )
        replica.exposed = exposed

    def _fit(self, seen: Seen) -> bool:
        verdict = judge_engine(self._around.floors(), seen.owner, seen.version)
        if verdict.reason != self.replica.verdict:
            self.replica.verdict = verdict.reason
            if verdict.reason:
                self._around.report(f"replica {self.replica.id}: {verdict.reason}")
        if verdict.refused:
            self.replica.take(Sign.UNFIT, verdict.reason)
            self._unwell(Answered.UNWELL, verdict.reason)
        return not verdict.refused

    def _see(self, seen: Seen) -> None:
        if seen != self.replica.seen:
            self.replica.seen = seen
            self._around.changed()

    def _another_model(self, seen: Seen) -> bool:
        before = self.replica.seen.models
        return bool(before) and before[0] not in seen.models

    def _restarted(self, reading: Reading) -> bool:
        """Whether it is, or may be, another process than the one that was warmed last."""
        same = same_process(self._last, reading)
        if same is not None:
            self.replica.lost = not same
        return self.replica.lost

    # --- warming

    async def _warm(self) -> None:
        """Warm it up; cut short when it is to be warmed no longer, because it has been lost or is to be drained."""
        replica, around, policy = self.replica, self._around, self._around.policy().warmup
        try:
            async with asyncio.timeout(None) as self._cut, around.warmups:
                warmth = await warm_up(
                    replica.link,
                    replica.seen.models,
                    replica.seen.max_model_len,
                    replica.adapter,
                    policy,
                    clock=around.now,
                    random=around.random,
                    new_id=around.new_id,
                )
        except EngineFailure as error:
            lost = isinstance(error, EngineUnreachable) and not error.slow
            self._set_back()
            replica.take(Sign.LOST if lost else Sign.COLD, f"a warmup request failed ({error.reason})")
        except TimeoutError:
            pass  # cut short
        else:
            self._take_warmth(warmth)
        finally:
            self._cut = None

    def _take_warmth(self, warmth: Warmth) -> None:
        replica, policy = self.replica, self._around.policy().warmup
        replica.warmth, self._canaries.kind = warmth.words, warmth.kind
        if not (warmth.settled or (policy.unsettled == "serve" and warmth.answered)):
            self._set_back()
            replica.take(Sign.COLD, warmth.words)
            return
        self._setbacks = self._misses = 0
        self._warm_since = self._around.now()
        replica.share = _LEAST_SHARE if policy.slow_start else 1.0
        replica.take(Sign.WARM, warmth.words)

    def _set_back(self) -> None:
        """The same process is warmed up again only after a while, longer each time: for it, each costs a load."""
        around = self._around
        self._setbacks += 1
        self._warm_after = around.now() + ejection_time(self._setbacks, around.policy().breaker, around.random.random)

    # --- serving: ready, probation

    async def _tend(self) -> None:
        replica = self.replica
        try:
            async with self._around.looks:
                reading = await self._scrape()
        except EngineUnreachable as error:
            self._lose(f"it takes no connection ({error.reason})")
            return
        self._raise_alarm(reading)
        if not self._awake(reading):
            return
        replica.note_look(reading)
        if self._hung() or (self._due(reading) and not await self._well(reading)):
            return
        if self._steps % _LIST_EVERY == 0:
            await self._list()
        if replica.life.state is State.PROBATION:
            await self._canaries.prove()
        elif replica.life.state is State.READY:
            self._settle_in()
            await self._canaries.rouse()

    async def _scrape(self) -> Reading | None:
        """The newest signals, noted. Raises ``EngineUnreachable``."""
        replica = self.replica
        reading = await look_at_signals(replica.link, replica.adapter, self._memory)
        if reading is not None:
            now = self._around.now()
            replica.reading, replica.read_at = reading, now
            replica.work.scraped(reading, now)
        return reading

    def _raise_alarm(self, reading: Reading | None) -> None:
        """Signals that are not there are told when that begins and when it ends."""
        if reading is None or reading.missing == self._missing:
            return
        self._missing = reading.missing
        names = ", ".join(sorted(reading.missing))
        told = f"its {self.replica.adapter.name} engine does not give {names}" if names else "all its signals are there"
        self._around.report(f"replica {self.replica.id}: {told}")

    def _awake(self, reading: Reading | None) -> bool:
        """Whether it is the warm process that it was. What it last was is kept to tell a restart by."""
        if reading is None or not reading.values:
            return True
        if same_process(self._last, reading) is False:
            self._last = reading
            return not self._restart("another process has taken its place")
        self._last = reading
        if reading.values.get(Signal.SLEEPING):
            return not self._restart("it sleeps")
        return True

    def _restart(self, reason: str) -> bool:
        self.replica.nudge()
        return self.replica.take(Sign.RESTARTED, reason)

    def _lose(self, reason: str) -> None:
        self._misses = 0
        self.replica.take(Sign.LOST, reason)

    def _hung(self) -> bool:
        replica, now, health = self.replica, self._around.now(), self._around.policy().health
        if not replica.progress.hung(now, health):
            return False
        replica.hang(f"it has work and has not moved for {replica.progress.stalled_for(now):.0f} s")
        return True

    def _due(self, reading: Reading | None) -> bool:
        return reading is None or self._misses > 0 or self._steps % _HEALTH_EVERY == 0

    async def _well(self, reading: Reading | None) -> bool:
        """Ask for its health. A busy engine that makes progress is never taken out for a slow answer."""
        replica, around = self.replica, self._around
        doubt = reading is None or self._misses > 0 or replica.in_flight > 0
        answered, why = await look_at_health(replica.link, replica.adapter, fresh=knocks(self._steps, doubt=doubt))
        if answered is Answered.WELL:
            self._misses = 0
            return True
        if answered in (Answered.REFUSED, Answered.UNWELL):
            self._lose(why)
            return False
        self._misses += 1
        most, silence = around.policy().health.misses, max(_SILENCE, replica.adapter.health_patience)
        if self._misses < most or replica.progress.moved_within(around.now(), most * (around.interval + silence)):
            return True
        self._lose(f"{why}, {self._misses} times in a row")
        replica.link.give_up(EngineHung)
        return False

    async def _list(self) -> None:
        """What it serves may change while it runs: adapters come and go."""
        replica = self.replica
        seen = await look_at_models(replica.link, replica.adapter)
        if seen is None:
            return
        if self._another_model(seen):
            self._restart("it serves another model")
            return
        seen = replace(seen, version=replica.seen.version)
        if self._fit(seen):
            self._see(seen)

    def _settle_in(self) -> None:
        """Slow start, and the end of an old bad name."""
        replica, policy, now = self.replica, self._around.policy(), self._around.now()
        if replica.share < 1.0:
            span = policy.warmup.slow_start or 1e-9
            replica.share = min(1.0, max(_LEAST_SHARE, (now - self._warm_since) / span))
        if replica.life.ejections and now - replica.life.until > policy.breaker.eject_most:
            replica.forgive()

    # --- leaving

    async def _ebb(self) -> None:
        """Its requests end by themselves; those that wait at an engine which does not move may end elsewhere."""
        replica = self.replica
        if not replica.in_flight:
            replica.take(Sign.EMPTY, "its last request has ended")
            return
        try:
            async with self._around.looks:
                reading = await self._scrape()
        except EngineUnreachable:
            reading = None
        replica.note_look(reading)
        self._hung()

    async def _rest(self) -> None:
        """Nothing to look at: it is out until somebody says otherwise."""


_NOTHING = Reading(MappingProxyType({}), frozenset())


def _some(names: Sequence[str]) -> str:
    """Names for a line of the log, which an engine may not make as long as it likes."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
