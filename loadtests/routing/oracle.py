"""A target that sees what no router can: the engines' true queues and caches. It lives in their process.

For each request it lets each engine's scheduler run ahead, in simulation, and hands the request to the one that would
give its first token soonest: what waits and runs there, what of the prompt its cache holds, its slots, its memory, its
speed and how long each answer will be are all as they are. It is greedy: what a choice costs the requests that come
later it does not ask. And there is no hop: the engine answers on the client's connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from loadtests.engine.exchange import ReceivedRequest
from loadtests.engine.listener import Listener
from loadtests.engine.plan import plan_chat
from loadtests.engine.protocol import Connection
from loadtests.engine.refusal import Refusal, RoutingRefusal
from loadtests.engine.scheduler import Job
from loadtests.engine.spec import EngineSpec
from loadtests.engine.validate import decoded

_CHAT = "/v1/chat/completions"
_SAME = 0.001
"""Seconds: answers that come within the same one are equally soon."""


class Engine(Protocol):
    """What the oracle needs of an engine."""

    spec: EngineSpec

    @property
    def cached_blocks(self) -> int:
        """Blocks of its cache that hold something."""

    def foresee(self, job: Job) -> float:
        """Seconds until the first token of a sequence that would come now."""

    def handle(self, request: ReceivedRequest, connection: Connection, persistent: bool) -> None:
        """Answer a request on its connection."""

    def date_line(self) -> bytes: ...

    def wall_time(self) -> float: ...


def soonest(engines: Sequence[Engine], job: Job) -> int:
    """Which engine gives the first token soonest; of equal ones the one whose cache would lose the least for it."""
    seconds = [engine.foresee(job) for engine in engines]
    best = min(seconds)
    equals = [index for index, each in enumerate(seconds) if each <= best + _SAME or each == best]
    return min(equals, key=lambda index: engines[index].cached_blocks)


def job_of(request: ReceivedRequest, spec: EngineSpec) -> Job | None:
    """The sequence of a chat request; ``None`` where an engine would refuse it, or it asks for something else."""
    if request.method != "POST" or request.path != _CHAT:
        return None
    try:
        plan = plan_chat(decoded(request), spec)
    except (Refusal, RoutingRefusal):
        return None
    choice = plan.choices[0]
    return Job(choice.prompt.tokens, choice.tokens, choice.prompt.hashes)


class Oracle:
    """Listens in front of engines of one model and one block size. ``close`` is idempotent."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.keep_alive_timeout = engines[0].spec.keep_alive_timeout
        self._engines = engines
        self._connections: set[Connection] = set()
        self._listener = Listener(lambda: Connection(self))

    @property
    def port(self) -> int:
        return self._listener.port

    async def start(self) -> None:
        """Listen on a free port of loopback."""
        self._listener.start("127.0.0.1", 0)

    def close(self) -> None:
        """End at once."""
        self._listener.close()
        for connection in tuple(self._connections):
            connection.abort()

    # what its connections ask of it

    def handle(self, request: ReceivedRequest, connection: Connection, persistent: bool) -> None:
        """Have the engine of choice answer; what is no sequence any of them answers alike."""
        job = job_of(request, self._engines[0].spec)
        chosen = 0 if job is None else soonest(self._engines, job)
        self._engines[chosen].handle(request, connection, persistent)

    def connected(self, connection: Connection) -> None:
        self._connections.add(connection)

    def disconnected(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def date_line(self) -> bytes:
        return self._engines[0].date_line()

    def wall_time(self) -> float:
        return self._engines[0].wall_time()
