"""For tests of the fleet: users who ask all the time, engines that are replaced, and what replicas went through."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any, Self

import httpx
import orjson
import pytest

from gateway.fleet.life import State
from gateway.fleet.replica import Transition
from loadtests.engine.exchange import ReceivedRequest
from loadtests.engine.process import EngineProcess
from loadtests.engine.server import SimulatedEngine
from loadtests.engine.spec import EngineSpec
from loadtests.vllm.engine import held_port
from tests.conftest import RunningGateway, Site, wait_until

_OURS = ("warmup-", "canary-")
_BREATH = 0.02  # seconds between two requests of one user: a refusal comes at once, and the load is to stay bounded
_JOIN = 60.0
_MANY = 1000  # requests: nobody prefers a replica that has so many
DONE = "data: [DONE]\n\n"
PACED: dict[str, Any] = {"step_time": 0.01, "prefill_tokens_per_second": 0.0}
"""An engine whose answers take about as long as they have tokens."""
PATIENT: dict[str, Any] = {"timeouts_connect": 10}
"""A gateway that does not take a machine which stands still for an engine that does."""
WARM: dict[str, Any] = {
    "shapes": [{"prompt": 16, "output": 2}],
    "concurrency": 1,
    "rounds": 1,
    "ratio": 100,
    "limit": 10,
    "slow_start": 0,
}
"""A warmup of few requests, which settles however busy the machine is."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as its user saw it. Times are ``time.monotonic()``.

    ``status`` is 0 when no answer came that could be read, ``first`` is 0 when no byte of a body came.
    """

    request_id: str
    stream: bool
    status: int
    text: str
    began: float
    first: float
    ended: float
    retry_after: int | None

    @property
    def code(self) -> str | None:
        """The code of the error, as an answer or as the last event."""
        lines = [line[6:] for line in self.text.split("\n") if line.startswith("data: {")]
        last = lines[-1] if self.stream and self.status == 200 and lines else self.text
        try:
            answer = orjson.loads(last)
        except orjson.JSONDecodeError:
            return None
        return answer["error"]["code"] if "error" in answer else None

    @property
    def fine(self) -> bool:
        """Whether the answer is there from its beginning to its end."""
        whole = self.text.endswith(DONE) if self.stream else self.text.endswith("}")
        return self.status == 200 and self.code is None and whole

    @property
    def begun(self) -> bool:
        """Whether the user saw a stream begin."""
        return self.stream and self.status == 200


class Load:
    """Users who each ask again as soon as they are answered, every other time for a stream; ``once``: a single time.

    Leaving the context lets every request end, however it does.
    """

    def __init__(
        self,
        gateway: RunningGateway,
        users: int = 6,
        *,
        once: bool = False,
        streams: bool | None = None,
        model: str = "sim-model",
        tokens: int = 8,
    ) -> None:
        self.asked: list[Asked] = []
        self.begun = 0
        self._users = users
        self._once = once
        self._streams = streams
        self._body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": tokens}
        self._body["ignore_eos"] = True  # exactly so many tokens
        self._url = f"{gateway.base_url}/chat/completions"
        self._headers = {"authorization": f"Bearer {gateway.key(secrets.token_hex(4))}"}
        self._enough = Event()
        self._thread = Thread(target=lambda: asyncio.run(self._run()), name="load")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join(_JOIN)
        assert not self._thread.is_alive(), "a request has no end"

    @property
    def failures(self) -> list[Asked]:
        """Requests that were not answered as they should have been."""
        return [each for each in list(self.asked) if not each.fine]

    def more(self, count: int) -> None:
        """Wait until so many further requests have been answered well."""
        before = len(self.asked) - len(self.failures)
        wait_until(lambda: len(self.asked) - len(self.failures) >= before + count, f"{count} more answers", 30.0)

    async def _run(self) -> None:
        limits = httpx.Limits(max_connections=self._users)
        async with httpx.AsyncClient(timeout=40, trust_env=False, limits=limits, headers=self._headers) as client:
            await asyncio.gather(*(self._user(client, number) for number in range(self._users)))

    async def _user(self, client: httpx.AsyncClient, number: int) -> None:
        turn = number
        while not self._enough.is_set() or self._once:
            turn += 1
            stream = turn % 2 == 0 if self._streams is None else self._streams
            self.asked.append(await self._ask(client, stream))
            if self._once:
                return
            await asyncio.sleep(_BREATH)

    async def _ask(self, client: httpx.AsyncClient, stream: bool) -> Asked:
        began, first, pieces = time.monotonic(), 0.0, []
        status, headers = 0, httpx.Headers()
        with suppress(httpx.HTTPError):
            async with client.stream("POST", self._url, json={**self._body, "stream": stream}) as answer:
                status, headers = answer.status_code, answer.headers
                async for piece in answer.aiter_text():
                    if not first:
                        first = time.monotonic()
                        self.begun += stream and status == 200
                    pieces.append(piece)
        return Asked(
            request_id=headers.get("x-request-id", ""),
            stream=stream,
            status=status,
            text="".join(pieces),
            began=began,
            first=first,
            ended=time.monotonic(),
            retry_after=int(wait) if (wait := headers.get("retry-after")) else None,
        )


class Place:
    """A port at which one simulated engine after another listens, in this process. ``close`` is idempotent."""

    def __init__(self, site: Site, **fields: Any) -> None:
        self._site = site
        self._held = held_port()
        self.url = f"http://127.0.0.1:{self._held.getsockname()[1]}"
        self.engine = self._start(fields)

    def _start(self, fields: dict[str, Any]) -> SimulatedEngine:
        engine = SimulatedEngine(EngineSpec(**{"model": "sim-model", **fields}))
        self._site.run(engine.start(port=self._held.getsockname()[1]))
        return engine

    def restart(self, gateway: RunningGateway, **fields: Any) -> SimulatedEngine:
        """Another process, as far as can be seen from outside, in the place of the one before.

        It takes a process longer to start than a gateway to notice that a port is closed.
        """
        self._site.run(self.engine.close())
        wait_until(lambda: state_of(gateway, self.url) == "ejected", "the closed port noticed")
        self.engine = self._start(fields)
        return self.engine

    def close(self) -> None:
        self._site.run(self.engine.close())
        self._held.close()


class History:
    """What the replicas of a gateway went through since this was made: each transition and its time."""

    def __init__(self, gateway: RunningGateway) -> None:
        self._gateway = gateway
        self.steps: list[tuple[float, Transition]] = []
        gateway.gateway.core.registry.on_transition(lambda step: self.steps.append((time.monotonic(), step)))

    def of(self, url: str) -> list[str]:
        """The states that a replica came into."""
        return [step.after.state.value for _, step in list(self.steps) if step.replica.spec.url == url]

    def when(self, url: str, state: State, patience: float = 20.0) -> float:
        """When it first came into a state, waited for."""
        deadline = time.monotonic() + patience
        while state.value not in self.of(url):
            if time.monotonic() > deadline:
                replica = replica_of(self._gateway, url)
                now = (replica.life, replica.remark, replica.lost, replica.reading) if replica is not None else None
                pytest.fail(f"waited {patience} s for {url} {state.value}; so far {self.of(url)}; now {now}")
            time.sleep(0.002)
        return next(at for at, step in self.steps if step.replica.spec.url == url and step.after.state is state)


def replica_of(gateway: RunningGateway, url: str) -> Any:
    """The replica at a URL; ``None`` for one that is forgotten, or was never there."""
    return next((each for each in gateway.gateway.core.registry.replicas if each.spec.url == url), None)


def state_of(gateway: RunningGateway, url: str) -> str | None:
    """The state of the replica at a URL."""
    replica = replica_of(gateway, url)
    return None if replica is None else replica.life.state.value


@contextmanager
def stream_at(gateway: RunningGateway, url: str, tokens: int) -> Iterator[Load]:
    """One stream of so many tokens, which has begun at the replica of this URL."""
    others = [each for each in gateway.gateway.core.registry.replicas if each.spec.url != url]

    async def avoid(count: int) -> None:
        for replica in others:
            replica.in_flight += count

    gateway.site.run(avoid(_MANY))
    with Load(gateway, users=1, once=True, streams=True, tokens=tokens) as running:
        try:
            wait_until(lambda: running.begun, "the stream to begin", 20.0)
        finally:
            gateway.site.run(avoid(-_MANY))
        yield running


def begin(site: Site, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
    """Run a coroutine on the site's loop and go on meanwhile."""
    return asyncio.run_coroutine_threadsafe(coroutine, site._loop)


def inferences(engine: SimulatedEngine) -> list[ReceivedRequest]:
    """What an engine was asked to compute, the gateway's own requests included."""
    return [each for each in list(engine.requests) if each.method == "POST"]


def of_users(engine: SimulatedEngine) -> list[ReceivedRequest]:
    """What users asked of it."""
    return [each for each in inferences(engine) if not (each.header(b"x-request-id") or b"").decode().startswith(_OURS)]


def warmups(engine: SimulatedEngine) -> int:
    """How many requests it was warmed up with."""
    return sum((each.header(b"x-request-id") or b"").startswith(b"warmup-") for each in inferences(engine))


def set_fault(site: Site, engine: SimulatedEngine, name: str | None, **params: Any) -> None:
    """Have an engine show this fault and no other one."""

    async def change() -> None:
        engine.faults.clear()
        if name is not None:
            engine.faults.set(name, **params)

    site.run(change())


@contextmanager
def held(site: Site, *engines: SimulatedEngine) -> Iterator[None]:
    """The engines take requests and end none meanwhile, however long a busy machine takes for what is done then."""
    for engine in engines:
        set_fault(site, engine, "paused")
    try:
        yield
    finally:
        for engine in engines:
            set_fault(site, engine, None)


def settled(gateway: RunningGateway) -> bool:
    """Whether nothing is in flight, and whatever is open to engines waits for its next request."""
    replicas = gateway.gateway.core.registry.replicas
    pools = [replica.link.requests for replica in replicas]
    return not gateway.in_flight() and all(pool.open == pool.idle for pool in pools)


@pytest.fixture
def process() -> Iterator[Callable[..., EngineProcess]]:
    """Starts engines as processes of their own."""
    with ExitStack() as stack:
        yield lambda *options: stack.enter_context(EngineProcess.start(*options))


@pytest.fixture
def place(site: Site) -> Iterator[Callable[..., Place]]:
    """Starts engines that can be replaced at their port."""
    with ExitStack() as stack:

        def start(**fields: Any) -> Place:
            made = Place(site, **fields)
            stack.callback(made.close)
            return made

        yield start
