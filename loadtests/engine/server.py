"""A simulated engine as a running server, in this process."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Callable
from email.utils import formatdate

from loadtests.engine import control
from loadtests.engine.acts import End, Event, Head, Reply
from loadtests.engine.counting import Gauges
from loadtests.engine.exchange import Exchange, ReceivedRequest
from loadtests.engine.fault_machines import DONE, Params
from loadtests.engine.faults import FaultSet
from loadtests.engine.flight import Flight
from loadtests.engine.listener import Flapping, Listener
from loadtests.engine.loop import EngineLoop
from loadtests.engine.persona import PERSONAS
from loadtests.engine.protocol import Connection
from loadtests.engine.refusal import HandlerCrashed, Refusal, RoutingRefusal, engine_died, shutting_down
from loadtests.engine.routes import (
    DRAINING,
    SERVING,
    STALLED,
    STARTING,
    Desk,
    Generation,
    Outcome,
    Resolved,
    Route,
    refusal_reply,
    routing_reply,
)
from loadtests.engine.scheduler import Job, Scheduler
from loadtests.engine.spec import EngineSpec

_REMEMBERED = 1000
_FLUSH_SECONDS = 0.2
_FROZEN_GAUGES = ("metrics_stale", "health_ok_generation_hangs")
_FROZEN_LOOP = ("paused", "health_ok_generation_hangs", "asleep")


class SimulatedEngine:
    """Start it, talk to it over HTTP, look into it, close it.

    `requests` holds the last 1000 requests received, oldest first. `faults` switches faults on and off (see faults.py).
    `clock` gives Unix seconds, `new_id` 16 hex digits; by default ids follow from the spec's seed.
    """

    def __init__(
        self,
        spec: EngineSpec | None = None,
        *,
        clock: Callable[[], float] = time.time,
        new_id: Callable[[], str] | None = None,
    ) -> None:
        self.spec = spec or EngineSpec()
        self.keep_alive_timeout = self.spec.keep_alive_timeout
        self.requests: deque[ReceivedRequest] = deque(maxlen=_REMEMBERED)
        self.requests_seen = 0
        self.requests_aborted = 0
        self._persona = PERSONAS[self.spec.persona]
        self.faults = FaultSet(self._faults_changed, self._persona.forms)
        self._clock = clock
        digits = random.Random(self.spec.seed)
        self._desk = Desk(
            self.spec,
            clock,
            new_id or (lambda: f"{digits.getrandbits(64):016x}"),
            lambda: len(self._flights),
            self._persona.decode,
            self._condition,
        )
        self._scheduler = Scheduler(self.spec)
        self._metrics = self._persona.metrics(self.spec, clock())
        self._loop = EngineLoop(self._scheduler, self._metrics)
        self._flights: set[Flight] = set()
        self._connections: set[Connection] = set()
        self._listener = Listener(lambda: Connection(self))
        self._up_at = 0.0
        self._sleep_level = 0
        self._draining = False
        self._closed = False
        self._stale_metrics: bytes | None = None
        self._landed = asyncio.Event()
        self._date = (0, b"")
        self._metrics_route = Resolved(Route(lambda _, __: self._metrics_reply()), "/metrics")

    # life

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> None:
        """Listen; `port` 0 takes a free one. Raises OSError when the address is taken."""
        self._up_at = asyncio.get_running_loop().time() + self.spec.startup_time
        if not self._persona.listens_while_starting:
            await asyncio.sleep(self.spec.startup_time)
        self._listener.start(host, port)
        self._follow()

    async def close(self) -> None:
        """End at once: nothing listens, no connection stays. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._landed.set()
        self._listener.close()
        self._loop.close()
        for connection in tuple(self._connections):
            connection.close()
        await self._wait_for(lambda: not self._connections, _FLUSH_SECONDS)
        for connection in tuple(self._connections):
            connection.abort()
        await self._wait_for(lambda: not self._connections, _FLUSH_SECONDS)

    async def shutdown(self, drain_seconds: float = 0.0) -> None:
        """Do what the server does on SIGTERM, then close (all captured).

        vLLM: without a drain (its default) everything in flight fails at once and the port closes. With one, what is in
        flight finishes, new requests get an instant 500 on the open port, /health stays 200 to the end.
        SGLang: serves on, new requests too, until none is left; /health says 503 from the beginning.
        """
        if self._persona.serves_to_the_end:
            await self._serve_to_the_end()
        elif drain_seconds > 0:
            self._draining = True
            await self._wait_for(lambda: not self._flights, drain_seconds)
            if not self._flights:
                await asyncio.sleep(self.spec.drain_linger)
        self._listener.close()
        self.fail_in_flight()
        await self.close()

    async def _serve_to_the_end(self) -> None:
        self._draining = True
        while not self._closed:
            await self._wait_for(lambda: not self._flights or self._closed, math.inf)
            await asyncio.sleep(self.spec.drain_linger)
            if not self._flights:
                return

    def fail_in_flight(self) -> None:
        """Everything in flight gets the error of a dead engine process."""
        for flight in tuple(self._flights):
            flight.fail(engine_died())

    # what it shows

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def url(self) -> str:
        return f"http://{self._listener.host}:{self._listener.port}"

    @property
    def open_connections(self) -> int:
        """Client connections open now."""
        return len(self._connections)

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._scheduler.waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache in use, 0..1."""
        return self._scheduler.kv_usage

    @property
    def cached_blocks(self) -> int:
        """Blocks of the KV cache that hold something, in use or kept for a prefix that comes again."""
        return self._scheduler.pool.used + self._scheduler.pool.cached

    def foresee(self, job: Job) -> float:
        """Seconds until a sequence would get its first token if it came now and nothing else did, by simulation.

        Infinite while the engine stands still. ``job`` is only looked at.
        """
        return self._loop.foresee(job)

    def metrics_text(self) -> bytes:
        """What /metrics says now; frozen and paused engines do not say the truth."""
        if self._stale_metrics is not None:
            return self._stale_metrics
        silent = self._sleep_level or self.faults.active("paused")
        running, waiting = (0, 0) if silent else (self.running, self.waiting)
        return self._metrics.render(Gauges(running, waiting, self.kv_usage, self._scheduler.totals))

    def _condition(self) -> str:
        if self._draining:
            return DRAINING
        if asyncio.get_running_loop().time() < self._up_at:
            return STARTING
        return STALLED if self._loop.frozen else SERVING

    def state(self) -> dict[str, object]:
        """The figures of GET /sim/state."""
        return {
            "running": self.running,
            "waiting": self.waiting,
            "in_flight": len(self._flights),
            "kv_usage": self.kv_usage,
            "connections": self.open_connections,
            "requests": self.requests_seen,
            "aborted": self.requests_aborted,
            "preemptions": self._scheduler.totals.preemptions,
            "pace": self._scheduler.pace.factor,
            "faults": self.faults.listing(),
        }

    # what its connections ask of it

    def connected(self, connection: Connection) -> None:
        self._connections.add(connection)
        if self._closed:
            connection.abort()

    def disconnected(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._landed.set()

    def wall_time(self) -> float:
        return self._clock()

    def date_line(self) -> bytes:
        second = int(self._clock())
        if second != self._date[0]:
            self._date = (second, b"date: %s\r\nserver: uvicorn\r\n" % formatdate(second, usegmt=True).encode())
        return self._date[1]

    def handle(self, request: ReceivedRequest, connection: Connection, persistent: bool) -> None:
        """Answer a request; called by its connection."""
        if control.owns(request.path):
            exchange = Exchange(request, connection, [], persistent=persistent, request_id=None, on_end=lambda _: None)
            connection.attach(exchange)
            exchange.do(control.answer(request, self.faults, self.state))
            return
        self.requests.append(request)
        self.requests_seen += 1
        resolved = self._resolve(request)
        machines, early = self.faults.machines(request.path, resolved.route.generation)
        exchange = Exchange(
            request,
            connection,
            machines,
            persistent=persistent,
            request_id=self._echoed_id(request),
            on_end=lambda ended: self._ended(ended, resolved.handler),
            lines=self._persona.lines,
        )
        connection.attach(exchange)
        if early:
            exchange.do(Reply(200))
        else:
            self._answer(exchange, resolved.route)

    def _resolve(self, request: ReceivedRequest) -> Resolved:
        if request.path == "/metrics" and request.method == "GET":
            return self._metrics_route
        return self._persona.resolve(request.method, request.path, self.spec)

    def _answer(self, exchange: Exchange, route: Route) -> None:
        outcome = self._outcome(exchange.request, route)
        if isinstance(outcome, Generation):
            self._generate(exchange, outcome, route)
        else:
            exchange.do(outcome)

    def _outcome(self, request: ReceivedRequest, route: Route) -> Outcome:
        early = self._persona.before_routing(request, self.spec)
        if early is not None:
            return early
        if self._draining and route.generation and not self._persona.serves_to_the_end:
            return refusal_reply(shutting_down(), self._persona.forms, cors=False)
        try:
            return route.handle(self._desk, request)
        except Refusal as refusal:
            return refusal_reply(refusal, self._persona.forms, anthropic=route.anthropic)
        except RoutingRefusal as refusal:
            return routing_reply(refusal)
        except HandlerCrashed:
            return Reply(500, b"Internal Server Error", b"text/plain; charset=utf-8", cors=False)

    def _generate(self, exchange: Exchange, generation: Generation, route: Route) -> None:
        flight = Flight(
            exchange,
            generation,
            spec=self.spec,
            persona=self._persona,
            loop=self._loop,
            metrics=self._metrics,
            landed=self._flight_landed,
        )
        most = self.spec.max_num_queued_requests
        ahead = self.waiting + (self.running if self._persona.counts_running else 0)
        if most is not None and ahead + flight.sequences > most:
            self._metrics.rejected()
            self._refuse(exchange, flight.stream, route)
            return
        self._flights.add(flight)
        flight.start()

    def _refuse(self, exchange: Exchange, stream: bool, route: Route) -> None:
        """The queue is full."""
        forms, refusal = self._persona.forms, self._persona.queue_full()
        if stream and self._persona.full_in_stream:
            for act in (Head(), Event(forms.event(refusal)), Event(DONE), End()):
                exchange.do(act)
        else:
            exchange.do(refusal_reply(refusal, forms, anthropic=route.anthropic))

    def _flight_landed(self, flight: Flight) -> None:
        if flight.finished:
            self._scheduler.pace.finished()
        self._flights.discard(flight)
        self._landed.set()

    def _ended(self, exchange: Exchange, handler: str) -> None:
        request = exchange.request
        if request.state == "aborted":
            self.requests_aborted += 1
            return
        seconds = self._clock() - request.started_at
        self._metrics.http(
            handler, request.method, exchange.status, sizes=(len(request.body), exchange.sent), seconds=seconds
        )

    def _echoed_id(self, request: ReceivedRequest) -> bytes | None:
        if not self.spec.request_id_headers:
            return None
        return request.header(b"x-request-id") or (self._desk.new_id() + self._desk.new_id()).encode()

    def _metrics_reply(self) -> Reply:
        return Reply(200, self.metrics_text(), self._persona.metrics_type)

    # faults that are states of the engine

    def _faults_changed(self) -> None:
        """Do what the faults that are on now ask for; each of these steps may be repeated."""
        active = self.faults.active
        if any(map(active, _FROZEN_GAUGES)):
            self._stale_metrics = self._stale_metrics or self.metrics_text()
        else:
            self._stale_metrics = None
        self._sleep_or_wake(self.faults.params("asleep"))
        if any(map(active, _FROZEN_LOOP)):
            self._loop.freeze()
        else:
            self._loop.thaw()
        dying = self.faults.params("slow_death")
        if dying is None:
            self._scheduler.pace.recover()
        else:
            self._scheduler.pace.decay(float(dying["factor"]), float(dying["cap"]))
        if self._listener.started:
            self._follow()

    def _follow(self) -> None:
        flapping = self.faults.params("flapping")
        self._listener.follow(
            refusing=self.faults.active("refuse"),
            flapping=None if flapping is None else Flapping(float(flapping["down"]), float(flapping["up"])),
        )

    def _sleep_or_wake(self, wish: Params | None) -> None:
        """What vLLM's /sleep and /wake_up do (measured on 0.32.0): the prefix cache is lost, and woken it is cold."""
        level = 0 if wish is None else int(wish["level"])
        if level == self._sleep_level:
            return
        if self._sleep_level == 0:
            self._loop.freeze()
            for flight in tuple(self._flights):
                flight.abort()
            self._loop.forget_step()
            self._scheduler.pool.forget()
        self._sleep_level = level
        self._metrics.slept(level)
        if level == 0:
            self._scheduler.pace.cool()

    async def _wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while not condition():
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return
            self._landed.clear()
            try:
                await asyncio.wait_for(self._landed.wait(), None if left == math.inf else left)
            except TimeoutError:
                return
