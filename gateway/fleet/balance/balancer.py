"""Choosing a replica for each request by the strategy that policy names, and learning from what came of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import count
from types import MappingProxyType

from gateway.fleet.balance.pace import BytesPerToken, Prior, usual
from gateway.fleet.balance.prefixes import PrefixIndex, PrefixTable
from gateway.fleet.balance.prompt import Prompt, anchor, prompt_seed, read_prompt
from gateway.fleet.balance.strategies import STRATEGIES, Ask, Strategy
from gateway.fleet.life import Sign, State
from gateway.fleet.replica import Replica, Transition
from gateway.fleet.signals import Reading, Signal
from gateway.model import InferenceRequest
from gateway.policy.balancing import Balancing
from gateway.telemetry.trace import Trace
from gateway.wire.upstream import Answer

_NEEDS_PROMPT = frozenset({"estimate", "session"})
_ROOM = 64 * 1024 * 1024  # bytes of prompts that an engine is taken to keep if it does not say
_MOST_ROOM = 4 * _ROOM  # and if it says more: what is kept of them here takes memory too
_MOST_SEEDS = 10_000
_TELLING = 20_000  # prompt tokens of an engine's count from which a share of hits tells something
_NOTHING: Mapping[str, int] = MappingProxyType({})


class Held:
    """What one replica is believed to hold, and how far that was believed of prompts since it was last compared.

    ``hits`` and ``queries`` are the engine's own counters then, in tokens.
    """

    __slots__ = ("believed", "hits", "index", "queries", "size")

    def __init__(self, index: PrefixIndex, reading: Reading | None) -> None:
        self.index = index
        self.begin(*(0.0, 0.0) if reading is None else _cache_counters(reading))

    def begin(self, hits: float, queries: float) -> None:
        """Compare what comes from here on."""
        self.believed = self.size = 0.0
        self.hits, self.queries = hits, queries


def _cache_counters(reading: Reading) -> tuple[float, float]:
    return reading.values.get(Signal.CACHE_HITS, 0.0), reading.values.get(Signal.CACHE_QUERIES, 0.0)


class Pool:
    """What is known of all replicas of one served model: which beginnings of prompts each holds, and bytes a token."""

    def __init__(self) -> None:
        self.table = PrefixTable()
        self.scale = BytesPerToken()
        self._held: dict[str, Held] = {}

    def note(self, replica: Replica, prompt: Prompt, believed: float) -> None:
        """The prompt goes to a replica that is believed to hold so many bytes of it."""
        held = self._held.get(replica.id)
        if held is None:
            index = self.table.open(replica.id, self._room(replica))
            held = self._held[replica.id] = Held(index, replica.reading)
        held.index.note(prompt)
        held.believed += believed
        held.size += prompt.size

    def review(self, replica: Replica) -> None:
        """Have its index keep as much as its engine does, by what that says and, once it tells enough, by its hits."""
        held, reading = self._held.get(replica.id), replica.reading
        if held is None or reading is None:
            return
        held.index.resize(self._room(replica))
        hits, queries = _cache_counters(reading)
        asked = queries - held.queries
        if 0 <= asked < _TELLING:
            return
        if asked > 0 and held.size:
            held.index.correct(held.believed / held.size, min(max((hits - held.hits) / asked, 0.0), 1.0))
        held.begin(hits, queries)

    def _room(self, replica: Replica) -> int:
        """Bytes of prompts that its engine keeps, where it says."""
        tokens = replica.reading.values.get(Signal.KV_TOKENS) if replica.reading is not None else None
        return int(min(tokens * self.scale.value, _MOST_ROOM)) if tokens else _ROOM

    def forget(self, replica_id: str) -> None:
        """The replica holds nothing any more, or is gone."""
        held = self._held.pop(replica_id, None)
        if held is not None:
            held.index.close()


class Balancer:
    """One for all requests of an instance. ``key`` is a secret that all instances share; ``now`` is monotonic seconds.

    ``compared`` is told, for each choice of a dry run, its strategy and whether it would have chosen the same.
    """

    def __init__(
        self,
        policy: Callable[[], Balancing],
        *,
        key: bytes,
        now: Callable[[], float],
        random: Callable[[], float],
        compared: Callable[[str, str], None],
    ) -> None:
        self.now = now
        self.random = random
        self.compared = compared
        self._policy = policy
        self._key = key
        self._pools: dict[str, Pool] = {}
        self._seeds: dict[tuple[str, str | None], bytes] = {}
        self._turns = count(1)

    def consider(self, request: InferenceRequest, alias: str, model: str, salt: str | None) -> Choice:
        """The choice for a request. ``salt`` is what keeps its tenant's prefixes apart, if anything does."""
        policy = self._policy()
        name, beside = policy.of(alias), policy.dry_run
        prompt = None
        if name in _NEEDS_PROMPT or beside in _NEEDS_PROMPT:
            prompt = read_prompt(request, self._seed(model, salt))
        return Choice(self, self._pool(model), prompt, STRATEGIES[name], beside, streamed=request.stream)

    def turn(self) -> int:
        """A number that grows with each request."""
        return next(self._turns)

    def on_transition(self, step: Transition) -> None:
        """An engine that starts anew holds nothing, and one that is gone is forgotten."""
        if step.sign is Sign.WARM:
            step.replica.work.reset()  # how slow it was while it was cold says nothing of it any more
        if step.after.state in (State.STARTING, State.FOUND, State.GONE):
            step.replica.work.reset()
            for pool in self._pools.values():
                pool.forget(step.replica.id)

    async def level(self, replicas: Iterable[Replica]) -> None:
        """Have replicas that have shown little be taken for what is usual among the others of their model.

        Indexes follow the room of their engines, and what is known of a model that no replica has any more goes.
        """
        by_model: dict[str, list[Replica]] = {}
        served: dict[str, Pool] = {}
        for replica in replicas:
            for model in replica.seen.models[:1]:
                by_model.setdefault(model, []).append(replica)
            for model in replica.seen.models:
                pool = self._pools.get(model)
                if pool is not None:
                    served[model] = pool
                    pool.review(replica)
        self._pools = served
        for members in by_model.values():
            prior = usual([replica.work.pace for replica in members], Prior())
            for replica in members:
                replica.work.suppose(prior)

    def _pool(self, model: str) -> Pool:
        pool = self._pools.get(model)
        if pool is None:
            pool = self._pools[model] = Pool()
        return pool

    def _seed(self, model: str, salt: str | None) -> bytes:
        seed = self._seeds.get((model, salt))
        if seed is None:
            if len(self._seeds) >= _MOST_SEEDS:
                self._seeds.clear()
            seed = self._seeds[model, salt] = prompt_seed(self._key, model, salt)
        return seed


class Choice:
    """Where one request goes, at each of its attempts, and what that teaches."""

    __slots__ = ("_balancer", "_beside", "_held", "_pool", "_prompt", "_strategy", "_streamed")

    def __init__(
        self,
        balancer: Balancer,
        pool: Pool,
        prompt: Prompt | None,
        strategy: Strategy,
        beside: str | None,
        *,
        streamed: bool,
    ) -> None:
        self._balancer = balancer
        self._pool = pool
        self._prompt = prompt
        self._strategy = strategy
        self._beside = beside
        self._streamed = streamed
        self._held: Mapping[str, int] = _NOTHING

    def among(self, candidates: Sequence[Replica]) -> Replica | None:
        """One of the candidates that has room, or ``None``."""
        balancer = self._balancer
        ask = self._ask()
        chosen = self._strategy(candidates, ask, balancer.random)
        if self._beside is not None:
            other = STRATEGIES[self._beside](candidates, ask, balancer.random)
            balancer.compared(self._beside, "same" if other is chosen else "other")
        if chosen is not None:
            chosen.turn = balancer.turn()
        return chosen

    def _ask(self) -> Ask:
        now, prompt = self._balancer.now(), self._prompt
        if prompt is None:
            return Ask(0.0, now)
        held = self._held = self._pool.table.held_by_all(prompt)
        tokens = prompt.size / self._pool.scale.value
        # The anchor moves with what is held; what a session is kept together by may not.
        near, session = anchor(prompt, max(held.values(), default=0)), anchor(prompt)
        return Ask(tokens, now, prompt.size, held, near, session)

    def lane(self, replica: Replica) -> Replica | Sent:
        """The replica as what the request is sent along."""
        if self._prompt is None:
            return replica
        believed = self._held.get(replica.id, 0)
        fresh = max(self._prompt.size - believed, 0)
        self._pool.note(replica, self._prompt, believed)
        return Sent(replica, fresh / self._pool.scale.value, self._balancer.now, streamed=self._streamed)

    def learn(self, trace: Trace) -> None:
        """The request was answered to its end."""
        if self._prompt is not None and trace.usage is not None:
            self._pool.scale.note(self._prompt.size, trace.usage.prompt)


class Sent:
    """One request at one replica: its lane, and what its first token tells of the replica's pace."""

    __slots__ = (
        "_ahead", "_answered_at", "_epoch", "_now", "_open", "_pace", "_replica", "_sent_at", "_streamed", "_uncached"
    )  # fmt: skip

    def __init__(self, replica: Replica, uncached: float, now: Callable[[], float], *, streamed: bool) -> None:
        self._replica = replica
        self._uncached = uncached
        self._now = now
        self._streamed = streamed
        self._open = False
        self._answered_at = 0.0

    def enter(self) -> None:
        """One more request is in flight there."""
        work, now = self._replica.work, self._now()
        self._ahead = work.ahead(self._replica.in_flight, now)
        self._replica.enter()
        work.began(self._uncached, now, streamed=self._streamed)
        self._sent_at, self._epoch, self._open = now, work.epoch, True
        self._pace = work.pace  # that of the process that it was sent to

    def send(
        self, path: str, content_type: bytes, body: bytes, request_id: str, *, total: float | None
    ) -> Awaitable[Answer]:
        """Send the request. Raises ``EngineFailure``."""
        return self._replica.send(path, content_type, body, request_id, total=total)

    def answered(self) -> None:
        """The first token of a stream has come."""
        if not (self._open and self._streamed):
            return
        work, now = self._replica.work, self._now()
        self._open, self._answered_at = False, now
        work.answered(self._uncached, self._epoch, now)
        if self._ahead is not None:
            seconds = now - self._sent_at
            self._pace.note_first_token(uncached=self._uncached, ahead=self._ahead, seconds=seconds, now=now)

    def leave(self) -> None:
        """It has ended, in whatever way."""
        self._replica.leave()
        work = self._replica.work
        if self._open:
            self._open = False
            work.dropped(self._uncached, self._epoch, streamed=self._streamed)
        elif self._answered_at:
            work.ended(self._now() - self._answered_at)
