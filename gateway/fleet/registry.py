"""Who the replicas are, and one immutable snapshot of who can serve what."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from gateway.fleet.breaker import may_eject
from gateway.fleet.life import ROUTABLE, State
from gateway.fleet.replica import Replica, Transition
from gateway.model import EngineSpec
from gateway.policy.fleet import FleetPolicy

_SOON, _LATE = 2, 30  # seconds that a client is told to wait where nothing better is known
_MOST = 60

Make = Callable[[EngineSpec, str, Callable[[Transition], None], Callable[[Replica], bool]], Replica]
"""Makes a replica for an engine found at an origin, given what it tells its transitions and asks before it ejects."""


class Registry:
    """All replicas. ``ready`` reads a snapshot that is replaced whole on each change. ``close`` is idempotent."""

    def __init__(self, make: Make, policy: Callable[[], FleetPolicy], *, now: Callable[[], float]) -> None:
        self._make = make
        self._policy = policy
        self._now = now
        self._listeners: list[Callable[[Transition], None]] = []
        self._ready: Mapping[str, tuple[Replica, ...]] = {}
        self._lengths: Mapping[str, int] = {}
        self.replicas: tuple[Replica, ...] = ()

    def on_transition(self, listener: Callable[[Transition], None]) -> None:
        """Call ``listener`` after each transition of a replica. It may not raise."""
        self._listeners.append(listener)

    # --- members

    def add(self, spec: EngineSpec, origin: str) -> Replica:
        """A replica for one more engine, in state found."""
        replica = self._make(spec, origin, self._moved, self._may_spare)
        self.replicas = (*self.replicas, replica)
        return replica

    def drop(self, replica: Replica) -> None:
        """Forget a replica and cut what is left of its connections."""
        self.replicas = tuple(each for each in self.replicas if each is not replica)
        replica.close()
        self.publish()

    def find(self, replica_id: str) -> Replica | None:
        """The replica of an id."""
        return next((replica for replica in self.replicas if replica.id == replica_id), None)

    def _moved(self, transition: Transition) -> None:
        self.publish()
        for listener in self._listeners:
            listener(transition)

    def _may_spare(self, replica: Replica) -> bool:
        """Whether a replica may be ejected for errors: each of its pools must keep enough others."""
        return all(self._may_leave(model) for model in replica.seen.models)

    def _may_leave(self, model: str) -> bool:
        pool = [each for each in self.replicas if model in each.seen.models]
        out = sum(each.life.for_errors for each in pool)
        # One on probation has not shown yet that the pool can do without another.
        serving = sum(each.life.state is State.READY for each in pool)
        return may_eject(out, serving + out, self._policy().breaker.share)

    # --- snapshots

    def publish(self) -> None:
        """Make the snapshot anew, because a state or what an engine serves has changed."""
        ready: dict[str, list[Replica]] = {}
        for replica in self.replicas:
            if replica.life.state in ROUTABLE:
                for model in replica.seen.models:
                    ready.setdefault(model, []).append(replica)
        # No views of them: each request looks into both, which takes a view three times as long as a dict.
        self._ready = {model: tuple(replicas) for model, replicas in ready.items()}
        self._lengths = {
            model: min(lengths)
            for model, replicas in ready.items()
            if (lengths := [r.seen.max_model_len for r in replicas if r.seen.max_model_len is not None])
        }

    def bound(self, limit: Callable[[Replica], int]) -> None:
        """Have each replica's requests bounded by what ``limit`` says of it now."""
        for replica in self.replicas:
            replica.bound(limit(replica))

    def ready(self, model: str) -> Sequence[Replica]:
        """Replicas that may get requests for the model."""
        return self._ready.get(model, ())

    def max_model_len(self, model: str) -> int | None:
        """The shortest context among the ready replicas of the model, in tokens; ``None`` if none says."""
        return self._lengths.get(model)

    def any_ready(self) -> bool:
        """Whether any replica is ready."""
        return bool(self._ready)

    def served_models(self) -> Sequence[str]:
        """Models that some ready replica serves, sorted."""
        return sorted(self._ready)

    def listed_models(self) -> Sequence[str]:
        """Models that some engine has said it serves, ready or not, sorted."""
        return sorted({model for replica in self.replicas for model in replica.seen.models})

    def back_in(self, model: str) -> int:
        """In how many seconds a request for a model that nobody serves now is worth another try, as far as is known."""
        now = self._now()
        waits = [_wait(replica, now) for replica in self.replicas if model in replica.seen.models]
        return min(max(math.ceil(min(waits, default=_LATE)), 1), _MOST)

    def close(self) -> None:
        """Cut all connections. Idempotent."""
        for replica in self.replicas:
            replica.close()


def _wait(replica: Replica, now: float) -> float:
    state = replica.life.state
    if state is State.EJECTED:
        return max(replica.life.until - now, _SOON)
    return _LATE if state in (State.DRAINING, State.GONE, State.FOUND) else _SOON
