"""Choosing a replica for each request by the strategy that policy names, and learning from what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import count
from types import MappingProxyType

from gateway.fleet.balance.explained import Decision, Decisions
from gateway.fleet.balance.hints import Hints
from gateway.fleet.balance.pace import Prior, usual
from gateway.fleet.balance.pool import Held, Pool
from gateway.fleet.balance.prompt import Prompt, Seed, anchor, left_of, prompt_seed, read_prompt
from gateway.fleet.balance.shortlist import WHOLE
from gateway.fleet.balance.strategies import STRATEGIES, Ask
from gateway.fleet.life import Sign, State
from gateway.fleet.replica import Replica, Transition
from gateway.model import InferenceRequest
from gateway.policy.balancing import Balancing
from gateway.telemetry.trace import Trace
from gateway.wire.upstream import Answer

_ESTIMATE, _SESSION = "estimate", "session"
_NEEDS_PROMPT = frozenset({_ESTIMATE, _SESSION})
_DEEPEST = 8  # of hundreds of replicas, so many that hold the most of a prompt are weighed for that
_PLACES = 1 << 60
_MOST_SEEDS = 10_000
_NOTHING: Mapping[str, int] = MappingProxyType({})
# What is well known is learned from a part of what is served: nothing that moves within seconds hangs on it.
_WELL = 0.9  # of a pace that is wholly known
_TEACHING = 0.02  # seconds between first tokens of one replica that teach its pace
_making = tuple.__new__  # a named tuple's own constructor takes three times as long


class Balancer:
    """One for all requests of an instance. ``key`` is a secret that all instances share; ``now`` is monotonic seconds.

    ``hints`` are what instances tell each other of prompts that they sent.
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
        self.decisions = Decisions()
        self.hints = Hints()
        self._policy = policy
        self._key = key
        self._pools: dict[str, Pool] = {}
        self._seeds: dict[tuple[str, str | None], Seed] = {}
        self._turns = count(1)

    def consider(
        self,
        request: InferenceRequest,
        alias: str,
        model: str,
        salt: str | None,
        *,
        request_id: str,
        tenant: str = "",
        session: bytes | None = None,
    ) -> Choice:
        """The choice for a request. ``salt`` is what keeps its tenant's prefixes apart, if anything does; ``session``
        what the client says its requests belong to, one of its tenant's."""
        policy = self._policy()
        name, beside = policy.of(alias), policy.dry_run
        pool = self._pool(model)
        prompt = point = None
        if (name in _NEEDS_PROMPT or beside in _NEEDS_PROMPT) and not pool.alone:
            prompt = read_prompt(request, self._seed(model, salt))
        if session is not None and _SESSION in (name, beside):
            point = self._point(tenant, session)
        return Choice(
            self, pool, prompt, (request_id, alias, model), name, beside=beside, session=point, streamed=request.stream
        )

    def turn(self) -> int:
        """A number that grows with each request."""
        return next(self._turns)

    def on_transition(self, step: Transition) -> None:
        """An engine that starts anew holds nothing, and one that is gone is forgotten."""
        if step.sign is Sign.WARM:
            step.replica.work.reset()  # how slow it was while it was cold says nothing of it any more
        if step.after.state in (State.STARTING, State.FOUND, State.GONE):
            step.replica.work.reset()
            self.hints.forget(step.replica.id)
            for pool in self._pools.values():
                pool.forget(step.replica.id)

    async def level(self, replicas: Iterable[Replica]) -> None:
        """Have replicas that have shown little be taken for what is usual among the others of their model.

        Indexes follow the room of their engines, and what is known of a model that no replica has any more goes.
        """
        by_model: dict[str, list[Replica]] = {}
        served: dict[str, Pool] = {}
        replicas = list(replicas)
        counts = Counter(model for replica in replicas for model in replica.seen.models)
        strangers = sum(not replica.seen.models for replica in replicas)  # nobody knows yet what they serve
        for replica in replicas:
            for model in replica.seen.models[:1]:
                by_model.setdefault(model, []).append(replica)
            for model in replica.seen.models:
                pool = self._pools.get(model)
                if pool is not None:
                    served[model] = pool
                    pool.alone = counts[model] + strangers == 1
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

    def _point(self, tenant: str, session: bytes) -> int:
        """Where a tenant's session stands, the same in all instances. Nobody without the key can choose a place."""
        name = tenant.encode()
        said = b"%d:%b%b" % (len(name), name, session)
        return int.from_bytes(blake2b(said, digest_size=8, key=self._key).digest())

    def _seed(self, model: str, salt: str | None) -> Seed:
        seed = self._seeds.get((model, salt))
        if seed is None:
            if len(self._seeds) >= _MOST_SEEDS:
                self._seeds.clear()
            seed = self._seeds[model, salt] = prompt_seed(self._key, model, salt)
        return seed


class Choice:
    """Where one request goes, at each of its attempts, and what that teaches."""

    __slots__ = (
        "_attempts", "_balancer", "_beside", "_held", "_name", "_pool", "_prompt", "_request", "_session", "_streamed"
    )  # fmt: skip

    def __init__(
        self,
        balancer: Balancer,
        pool: Pool,
        prompt: Prompt | None,
        request: tuple[str, str, str],
        strategy: str,
        *,
        beside: str | None,
        session: int | None,
        streamed: bool,
    ) -> None:
        """``request`` is its id, its alias and its model."""
        self._balancer = balancer
        self._pool = pool
        self._prompt = prompt
        self._request = request
        self._name = strategy
        self._beside = beside
        self._session = session
        self._streamed = streamed
        self._attempts = 0
        self._held: Mapping[str, int] = _NOTHING

    def among(self, candidates: Sequence[Replica]) -> Replica | None:
        """One of the candidates that has room, or ``None``."""
        balancer, name, beside = self._balancer, self._name, self._beside
        now = balancer.now()
        if len(candidates) > WHOLE:
            chosen, ask, weighed = self._of_many(name, candidates, now)
            other = None if beside is None else self._of_many(beside, candidates, now)[0]
        else:
            ask, weighed = self._ask(candidates, now), candidates
            chosen = STRATEGIES[name](candidates, ask, balancer.random)
            other = None if beside is None else STRATEGIES[beside](candidates, ask, balancer.random)
        if beside is not None:
            balancer.compared(beside, "same" if other is chosen else "other")
        self._held = held = ask.held
        self._attempts += 1
        placed = None
        if chosen is not None:
            chosen.turn, placed = balancer.turn(), chosen.id
        seen = [(view.id, view.quote.said, view.in_flight, view.room) for view in weighed]
        tokens, size, anchored = ask.tokens, ask.size, ask.anchor is not None
        request, pool, attempt = self._request, len(candidates), self._attempts
        told = (request, now, name, attempt, tokens, size, held, anchored, pool, seen, placed)
        balancer.decisions.add(_making(Decision, told))
        return chosen

    def _of_many(
        self, name: str, candidates: Sequence[Replica], now: float
    ) -> tuple[Replica | None, Ask, Sequence[Replica]]:
        """One of more than are weighed for each request, what was asked for it, and those that it was compared with."""
        random, prompt = self._balancer.random, self._prompt
        if name != _ESTIMATE or prompt is None:
            ask = self._ask(candidates, now)
            chosen = STRATEGIES[name](candidates, ask, random)
            shown = [view for view in candidates[:WHOLE] if view is not chosen]
            return chosen, ask, shown if chosen is None else [chosen, *shown]
        table, tokens, size = self._pool.table, prompt.size / self._pool.scale.value, prompt.size
        listed, runs = self._pool.shortlist(candidates), table.runs(prompt)
        told: dict[str, int] = {}
        self._balancer.hints.extend(prompt, told)
        near = anchor(prompt, max(runs[-1][0] if runs else 0, max(told.values(), default=0)))
        few = listed.near(int(random() * _PLACES) if near is None else near)
        if runs or told:
            deepest = table.deepest(runs, _DEEPEST, len(candidates))
            few = list(dict.fromkeys((*few, *listed.named((*deepest, *told)))))
        ask = Ask(tokens, now, size, _more_of(table.held_by([view.id for view in few], runs), told), near)
        chosen = STRATEGIES[name](few, ask, random)
        sooner = listed.sooner(chosen, tokens, 0.0 if chosen is None else ask.uncached(chosen.id), now)
        if sooner:
            few = sooner if chosen is None or chosen in sooner else [chosen, *sooner]
            ask = Ask(tokens, now, size, _more_of(table.held_by([view.id for view in few], runs), told), near)
            chosen = STRATEGIES[name](few, ask, random)
        if chosen is None:
            ask = self._ask(candidates, now)
            chosen = STRATEGIES[name](candidates, ask, random)
            few = few if chosen is None else [chosen, *few]
        return chosen, ask, few

    def _ask(self, candidates: Sequence[Replica], now: float) -> Ask:
        prompt, pool = self._prompt, self._pool
        if prompt is None:
            return Ask(0.0, now, session=self._session)
        held: Mapping[str, int] = _NOTHING
        if prompt.chain:
            held = known = pool.table.held_by_all(prompt)
            self._balancer.hints.extend(prompt, known)
        # The anchor moves with what is held; what a session is kept together by may not.
        near = anchor(prompt, max(held.values()) if held else 0)
        session = self._session
        if session is None and _SESSION in (self._name, self._beside):
            session = anchor(prompt)
        size = prompt.size
        return _making(Ask, (size / pool.scale.value, now, size, held, near, session))

    def lane(self, replica: Replica) -> Replica | Sent:
        """The replica as what the request is sent along."""
        prompt, pool = self._prompt, self._pool
        if prompt is None:
            return replica
        believed = self._held.get(replica.id, 0)
        held = pool.note(replica, prompt, believed, self._balancer.now())
        self._balancer.hints.note(prompt, replica.point, believed)
        fresh = left_of(prompt, believed) / pool.scale.value
        bound = min(believed / prompt.size, 1.0) if prompt.size else 0.0
        return Sent(
            replica, held, fresh, self._balancer.now, streamed=self._streamed, counted=pool.counted, bound=bound
        )

    def learn(self, trace: Trace) -> None:
        """The request was answered to its end."""
        if self._prompt is not None and trace.usage is not None:
            self._pool.learn(self._prompt.size, trace.usage.prompt)


def _more_of(held: dict[str, int], told: Mapping[str, int]) -> dict[str, int]:
    """What is held, by whichever of the two knows of more."""
    for name, size in told.items():
        if held.get(name, 0) < size:
            held[name] = size
    return held


class Sent:
    """One request at one replica: its lane, and what its first token tells of the replica's pace."""

    __slots__ = (
        "_ahead", "_answered_at", "_bound", "_counted", "_epoch", "_held", "_now", "_open", "_pace", "_replica",
        "_sent_at", "_streamed", "_uncached",
    )  # fmt: skip

    def __init__(
        self,
        replica: Replica,
        held: Held,
        uncached: float,
        now: Callable[[], float],
        *,
        streamed: bool,
        counted: bool = True,
        bound: float = 0.0,
    ) -> None:
        """``uncached`` are tokens; not ``counted``: by a prior, and a pace learned from them would be wrong by as much
        as that is. ``bound`` is the share of the prompt that the replica is believed to hold."""
        self._replica = replica
        self._held = held
        self._uncached = uncached
        self._now = now
        self._streamed = streamed
        self._counted = counted
        self._bound = bound
        self._open = False
        self._answered_at = 0.0

    def enter(self) -> None:
        """One more request is in flight there."""
        work, now = self._replica.work, self._now()
        self._ahead = work.ahead(self._replica.in_flight, now)
        self._replica.enter()
        work.began(self._uncached, now, streamed=self._streamed, bound=self._bound)
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
        pace, held = self._pace, self._held
        if not self._counted or self._ahead is None or (0.0 <= now - held.taught < _TEACHING and pace.known >= _WELL):
            return
        held.taught = now
        pace.note_first_token(uncached=self._uncached, ahead=self._ahead, seconds=now - self._sent_at, now=now)

    def leave(self) -> None:
        """It has ended, in whatever way."""
        self._replica.leave()
        work = self._replica.work
        work.left(self._uncached, self._epoch)
        if self._open:
            self._open = False
            work.dropped(self._uncached, self._epoch, streamed=self._streamed)
        elif self._answered_at:
            work.ended(self._now() - self._answered_at)
