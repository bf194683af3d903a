"""Who the replicas are, and one immutable snapshot of who can serve what."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from urllib.parse import urlsplit

from gateway.errors import EngineFailure, EngineUnreachable
from gateway.fleet.replica import Life, Observation, State, advance
from gateway.model import EngineSpec
from gateway.policy.engines import Floor, judge_engine
from gateway.wire.deadline import Sweeper
from gateway.wire.upstream import Answer, UpstreamLimits, UpstreamPool

_NO_FLOORS: Mapping[str, Floor] = MappingProxyType({})


class Replica:
    """One engine at one URL: its life, its connections, and how many requests this instance has in flight there."""

    def __init__(
        self,
        index: int,
        spec: EngineSpec,
        pool: UpstreamPool,
        changed: Callable[[], None],
        floors: Mapping[str, Floor] = _NO_FLOORS,
    ) -> None:
        self.index = index
        self.spec = spec
        self.life = Life()
        self.in_flight = 0
        self.looks = 0
        self._pool = pool
        self._changed = changed
        self.floors = floors
        self._host = urlsplit(spec.url).netloc.encode()
        self._openings: dict[str, bytes] = {}

    def enter(self) -> None:
        """One more request is in flight here."""
        self.in_flight += 1

    def leave(self) -> None:
        """One less."""
        self.in_flight -= 1

    def send(
        self, path: str, content_type: bytes, body: bytes, request_id: str, *, total: float | None
    ) -> Awaitable[Answer]:
        """Send a request. Headers start from nothing: what an engine obeys in a header is never a client's to say."""
        head = b"%bcontent-type: %b\r\ncontent-length: %d\r\nx-request-id: %b\r\n\r\n" % (
            self._opening(path),
            content_type,
            len(body),
            request_id.encode(),
        )
        return self._pool.request(head, body, total=total)

    def _opening(self, path: str) -> bytes:
        """The lines that are the same for every request on a route. Paths are the route table's, so they are few."""
        opening = self._openings.get(path)
        if opening is None:
            opening = b"POST %b HTTP/1.1\r\nhost: %b\r\naccept-encoding: identity\r\n" % (path.encode(), self._host)
            self._openings[path] = opening
        return opening

    def note_failure(self, error: EngineFailure) -> None:
        """A replica that refuses connections is out at once; the next healthy probe brings it back."""
        if isinstance(error, EngineUnreachable):
            self.observe(Observation(healthy=False))

    def observe(self, observation: Observation) -> None:
        """Take in what a probe saw. An engine that is older than policy takes is not let in."""
        before = self.life
        verdict = judge_engine(self.floors, observation.engine, observation.version)
        self.life = advance(before, observation, verdict)
        if self.life != before:
            self._changed()

    @property
    def open_connections(self) -> int:
        """Connections to the engine, idle ones included."""
        return self._pool.open

    def close(self) -> None:
        """Cut all connections. Idempotent."""
        self._pool.close()


class Registry:
    """All replicas. ``ready`` reads a snapshot that is replaced whole on each change.

    ``floors`` are the oldest engines that are let in, by name.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sweeper: Sweeper,
        engines: Iterable[EngineSpec],
        limits: UpstreamLimits,
        on_change: Callable[[], None] = lambda: None,
        *,
        floors: Mapping[str, Floor] = _NO_FLOORS,
    ) -> None:
        self._on_change = on_change
        self._ready: Mapping[str, tuple[Replica, ...]] = MappingProxyType({})
        self._lengths: Mapping[str, int] = MappingProxyType({})
        self.replicas = tuple(
            Replica(index, spec, _pool_for(loop, sweeper, spec, limits), self._publish, floors)
            for index, spec in enumerate(engines)
        )

    def adopt(self, floors: Mapping[str, Floor]) -> None:
        """Judge engines by other floors from their next look on."""
        for replica in self.replicas:
            replica.floors = floors

    def _publish(self) -> None:
        ready: dict[str, list[Replica]] = {}
        for replica in self.replicas:
            if replica.life.state is State.READY:
                for model in replica.life.seen.models:
                    ready.setdefault(model, []).append(replica)
        self._ready = MappingProxyType({model: tuple(replicas) for model, replicas in ready.items()})
        self._lengths = MappingProxyType(
            {
                model: min(lengths)
                for model, replicas in ready.items()
                if (lengths := [r.life.seen.max_model_len for r in replicas if r.life.seen.max_model_len is not None])
            }
        )
        self._on_change()

    def ready(self, model: str) -> Sequence[Replica]:
        """Replicas in state ready that serve the model."""
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

    def close(self) -> None:
        """Cut all connections. Idempotent."""
        for replica in self.replicas:
            replica.close()


def _pool_for(
    loop: asyncio.AbstractEventLoop, sweeper: Sweeper, spec: EngineSpec, limits: UpstreamLimits
) -> UpstreamPool:
    parts = urlsplit(spec.url)
    return UpstreamPool(loop, sweeper, parts.hostname or "", parts.port or 80, limits)
