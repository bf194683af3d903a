"""A whole warmup, and the single inference that shows whether an idle engine still works. A thin shell around
``warmup``, which says what to send and when it has settled.

What goes out here is no user's: it goes past admission and accounting, its request ids begin with ``warmup-`` or
``canary-`` so that an engine's log tells it apart, and where the engine takes a cache salt it has one of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from random import Random
from typing import Any, NamedTuple

from gateway.errors import EngineBusy, EngineFailure, EngineRefused, EngineTimeout
from gateway.fleet.engines.adapter import Adapter
from gateway.fleet.inference import InferenceRefused, Sender, Timing, infer
from gateway.fleet.warmup import Call, Kind, Meaning, Settling, Size, call, calls, judge, sizes
from gateway.policy.fleet import Warmup

_NAMES = 8
CHECK = Size(16, 2)  # what shows that an engine works: one prefill and one decode step


class Warmth(NamedTuple):
    """How a warmup ended. ``words`` are for operators; nothing in them is an engine's.

    ``rounds`` counts those that were measured, ``seconds`` is how long it all took. ``answered``: whether anything was
    answered by the limit, be it that the model cannot be warmed; an engine that answers nothing is no slow one, and
    nobody's to serve. ``kind`` is what the model answers, if that was found.
    """

    settled: bool
    rounds: int
    seconds: float
    words: str
    answered: bool = True
    kind: Kind | None = None


class NoRoute(EngineRefused):
    """The engine's model answers no kind of inference that is known here. ``words`` say how each was refused."""

    def __init__(self, words: str) -> None:
        super().__init__("unsupported_endpoint")
        self.words = words


async def warm_up(
    sender: Sender,
    models: Sequence[str],
    max_model_len: int | None,
    adapter: Adapter,
    policy: Warmup,
    *,
    clock: Callable[[], float],
    random: Random,
    new_id: Callable[[], str] | None = None,
) -> Warmth:
    """Warm a replica that serves ``models`` (at least one name), until it has settled or the limit has passed.

    Raises ``EngineFailure`` when the engine fails meanwhile: it dies, answers with an error of its own, or has no
    place for any request of a round. A full queue that turns some away and a prompt that is refused are no failures.
    Ids end in ``new_id()``, by default from ``random``.

    The names of a replica share its weights, so the first is warmed in all shapes, and with it the kernels and graphs
    of all. A further name may be a LoRA adapter, which has weights of its own that an engine loads at the first request
    for it: one short request brings them in, and a plain second name costs no more than finding out that it is one. No
    more than eight are asked for: an engine keeps few adapters loaded at once (vLLM's ``--max-loras`` is 1 unless set),
    so that more would only push each other out.
    """
    if not policy.shapes:
        return Warmth(True, 0, 0.0, "policy names no shapes")
    begun = clock()
    sending = _Sending(sender, adapter, "warmup", policy.limit, clock, random, new_id)
    warming = _Warming(sending, max_model_len, policy)
    try:
        async with asyncio.timeout(policy.limit):
            await warming.run(models)
    except TimeoutError:
        warming.late = True
    except NoRoute as refused:
        return Warmth(False, 0, clock() - begun, refused.words)
    return warming.warmth(clock() - begun)


async def canary(
    sender: Sender,
    model: str,
    adapter: Adapter,
    limit: float,
    *,
    clock: Callable[[], float],
    random: Random,
    new_id: Callable[[], str] | None = None,
    kind: Kind | None = None,
) -> Timing:
    """One small inference, to its end, within ``limit`` seconds. Raises ``EngineFailure``.

    ``kind`` is what a warmup has found; without it, it is found out again.
    """
    sending = _Sending(sender, adapter, "canary", limit, clock, random, new_id)
    try:
        async with asyncio.timeout(limit):
            if kind is not None:
                return await sending.check(kind, model)
            return (await _find(sending, model))[1]
    except TimeoutError:
        raise EngineTimeout from None


class _Sending:
    """How the inferences of one warmup, or a canary, go out: under ids that begin with ``mark``, with one salt."""

    def __init__(  # noqa: PLR0917 - what both callers were given, in their order
        self,
        sender: Sender,
        adapter: Adapter,
        mark: str,
        patience: float,
        clock: Callable[[], float],
        random: Random,
        new_id: Callable[[], str] | None,
    ) -> None:
        self.random = random
        self.salt = f"{mark}-{_hex(random)}" if adapter.cache_salt else None
        self._sender = sender
        self._mark = mark
        self._patience = patience
        self._clock = clock
        self._new_id = new_id or (lambda: _hex(random))

    async def send(self, asked: Call) -> Timing:
        """Do one inference. Raises ``EngineFailure``."""
        return await infer(self._sender, asked, f"{self._mark}-{self._new_id()}", self._patience, self._clock)

    def call(self, kind: Kind, model: str, size: Size) -> Call:
        """An inference of this size."""
        return call(kind, model, size, salt=self.salt, random=self.random)

    async def check(self, kind: Kind, model: str) -> Timing:
        """Do the smallest inference that says something. Raises ``EngineFailure``."""
        return await self.send(self.call(kind, model, CHECK))


def _hex(random: Random) -> str:
    return f"{random.getrandbits(64):016x}"


async def _find(sending: _Sending, model: str) -> tuple[Kind, Timing]:
    """The first kind of inference that the model answers, and how long that took. Raises ``EngineFailure``.

    An error of the engine's is raised only when no other route answers: SGLang with ``--is-embedding`` has the route of
    completions and does not check what its model is (read in its source).
    """
    failure: EngineFailure | None = None
    refusals: list[str] = []
    for kind in Kind:
        try:
            return kind, await sending.check(kind, model)
        except InferenceRefused as refused:
            if _meaning(refused) is Meaning.ENGINE:
                failure = failure or refused
            refusals.append(f"{kind} {refused.status}")
    raise failure or NoRoute(f"the model answers no route that can be warmed ({', '.join(refusals)})")


def _meaning(refused: InferenceRefused) -> Meaning:
    return judge(refused.status, other_kind=refused.other_kind)


class _Round:
    """What one round brings: first-token times by shape, and the calls that met a full queue, with what it said."""

    def __init__(self, shapes: int) -> None:
        self.times: list[list[float]] = [[] for _ in range(shapes)]
        self.turned_away: list[tuple[int, Call]] = []
        self.full: EngineBusy | None = None


class _Warming:
    """One warmup under way. ``kind`` is there once the engine has answered; ``late``: its limit has passed."""

    def __init__(self, sending: _Sending, max_model_len: int | None, policy: Warmup) -> None:
        self.late = False
        self.kind: Kind | None = None
        self._sending = sending
        self._max_model_len = max_model_len
        self._policy = policy
        self._settling = Settling(policy)
        self._first = 0.0
        self._rounds = 0
        self._turned_away = 0
        self._notes: list[str] = []

    def warmth(self, seconds: float) -> Warmth:
        """How it ended."""
        if self.kind is None:
            return Warmth(False, 0, seconds, f"no answer in {self._policy.limit:g} s", answered=False)
        said = [f"first answer after {self._first:.1f} s", self._settling.describe(), *self._notes]
        if self._turned_away:
            said.append(f"a full queue turned {self._turned_away} requests away")
        if self.late:
            said.append(f"the limit of {self._policy.limit:g} s passed")
        return Warmth(self._settling.settled, self._rounds, seconds, "; ".join(said), kind=self.kind)

    async def run(self, models: Sequence[str]) -> None:
        """Find the kind, warm the first name until it has settled, then the further ones. Raises ``EngineFailure``."""
        model, *further = models
        kind, timing = await _find(self._sending, model)
        self.kind, self._first = kind, timing.total
        known = sizes(self._policy.shapes, kind, self._max_model_len)
        for shape in range(len(self._policy.shapes)):
            if shape not in known:
                self._leave_out(shape, "it does not fit the context, or that is not known")
        while self._settling.open and not self._settling.settled:
            await self._round(kind, model)
        if further and self._settling.settled:
            shortest = min(known.values())
            await self._warm_names(further, lambda name: self._sending.call(kind, name, shortest))

    def _leave_out(self, shape: int, reason: str) -> None:
        if shape not in self._settling.dropped:
            self._settling.drop(shape)
            self._notes.append(f"shape {shape + 1} left out: {reason}")

    async def _round(self, kind: Kind, model: str) -> None:
        """Each shape, ``concurrency`` times, all at once; then, one by one, what met a full queue."""
        batch = await asyncio.to_thread(  # prompts near a long context take long to write
            calls,
            self._policy,
            kind,
            model,
            self._max_model_len,
            salt=self._sending.salt,
            random=self._sending.random,
            without=frozenset(self._settling.dropped),
        )
        this = _Round(len(self._policy.shapes))
        await _together(self._measure(shape, asked, this) for shape, asked in batch)
        again, this.turned_away = this.turned_away, []
        for shape, asked in again:
            await self._measure(shape, asked, this)
        if this.full is not None and not any(this.times):
            raise this.full
        self._turned_away += len(this.turned_away)
        self._settling.round(this.times)
        self._rounds += 1

    async def _measure(self, shape: int, asked: Call, this: _Round) -> None:
        try:
            timing = await self._sending.send(asked)
        except EngineBusy as full:
            this.full = full
            this.turned_away.append((shape, asked))
        except InferenceRefused as refused:
            if _meaning(refused) is not Meaning.SHAPE:
                raise
            self._leave_out(shape, f"refused with {refused.status}")
        else:
            this.times[shape].append(timing.first_token)

    async def _warm_names(self, names: Sequence[str], asked: Callable[[str], Call]) -> None:
        """One short request for each name, as many at once as in a round at most."""
        chosen, cold = names[:_NAMES], names[_NAMES:]
        refusals: list[EngineFailure] = []

        async def warm(name: str) -> None:
            try:
                await self._sending.send(asked(name))
            except EngineBusy as full:
                refusals.append(full)
            except InferenceRefused as refused:
                if _meaning(refused) is Meaning.ENGINE:
                    raise
                refusals.append(refused)

        most = self._policy.concurrency * len(self._policy.shapes)
        for start in range(0, len(chosen), most):
            await _together(warm(name) for name in chosen[start : start + most])
        if refusals or cold:
            self._notes.append(f"{len(refusals) + len(cold)} of {len(names)} further names not warmed")


async def _together(bodies: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all at once. The first failure ends the others, closes their connections, and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            for body in bodies:
                group.create_task(body)
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
