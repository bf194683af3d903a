"""A simulated engine as a running server, in this process."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections import deque
from collections.abc import Callable
from email.utils import formatdate

from loadtests.engine import control
from loadtests.engine.acts import Reply
from loadtests.engine.exchange import Exchange, ReceivedRequest
from loadtests.engine.faults import FaultSet
from loadtests.engine.flight import Flight
from loadtests.engine.loop import EngineLoop
from loadtests.engine.metrics import CONTENT_TYPE, Gauges, Metrics
from loadtests.engine.protocol import Connection
from loadtests.engine.refusal import Refusal, RoutingRefusal, engine_died, queue_full, shutting_down
from loadtests.engine.routes import (
    Desk,
    Generation,
    Outcome,
    Resolved,
    Route,
    before_routing,
    refusal_reply,
    resolve,
    routing_reply,
)
from loadtests.engine.scheduler import Scheduler
from loadtests.engine.spec import EngineSpec

_REMEMBERED = 1000
_FLUSH_SECONDS = 0.2
_FROZEN_GAUGES = ("metrics_stale", "health_ok_generation_hangs")


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
        self.faults = FaultSet(self._faults_changed)
        self._clock = clock
        digits = random.Random(self.spec.seed)
        self._desk = Desk(
            self.spec, clock, new_id or (lambda: f"{digits.getrandbits(64):016x}"), lambda: len(self._flights)
        )
        self._scheduler = Scheduler(self.spec)
        self._metrics = Metrics(self.spec, clock())
        self._loop = EngineLoop(self._scheduler, self._metrics)
        self._flights: set[Flight] = set()
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._reopening: asyncio.Task[None] | None = None
        self._port = 0
        self._host = "127.0.0.1"
        self._draining = False
        self._closed = False
        self._stale_metrics: bytes | None = None
        self._landed = asyncio.Event()
        self._date = (0, b"")
        self._metrics_route = Resolved(Route(lambda _, __: self._metrics_reply()), "/metrics")

    # life

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> None:
        """Listen; `port` 0 takes a free one. Raises OSError when the address is taken."""
        self._host = host
        self._server = await self._listen(self._bound_socket(port))
        self._refuse_or_listen()

    async def close(self) -> None:
        """End at once: nothing listens, no connection stays. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._stop_listening()
        self._loop.close()
        for connection in tuple(self._connections):
            connection.close()
        await self._wait_for(lambda: not self._connections, _FLUSH_SECONDS)
        for connection in tuple(self._connections):
            connection.abort()
        await self._wait_for(lambda: not self._connections, _FLUSH_SECONDS)

    async def shutdown(self, drain_seconds: float = 0.0) -> None:
        """Do what vLLM does on SIGTERM, then close.

        Without a drain (its default) everything in flight fails at once and the port closes. With one, what is in
        flight finishes, new requests get an instant 500 on the open port, /health stays 200 to the end (captured).
        """
        if drain_seconds > 0:
            self._draining = True
            await self._wait_for(lambda: not self._flights, drain_seconds)
            if not self._flights:
                await asyncio.sleep(self.spec.drain_linger)
        self._stop_listening()
        self.fail_in_flight()
        await self.close()

    def fail_in_flight(self) -> None:
        """Everything in flight gets the error of a dead engine process."""
        for flight in tuple(self._flights):
            flight.fail(engine_died())

    # what it shows

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

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

    def metrics_text(self) -> bytes:
        """What /metrics says now; frozen and paused engines do not say the truth."""
        if self._stale_metrics is not None:
            return self._stale_metrics
        paused = self.faults.active("paused")
        running, waiting = (0, 0) if paused else (self.running, self.waiting)
        return self._metrics.render(Gauges(running, waiting, self.kv_usage, self._scheduler.totals))

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
            "faults": self.faults.listing(),
        }

    # what its connections ask of it

    def connected(self, connection: Connection) -> None:
        self._connections.add(connection)

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
        )
        connection.attach(exchange)
        if early:
            exchange.do(Reply(200))
        else:
            self._answer(exchange, resolved.route)

    def _resolve(self, request: ReceivedRequest) -> Resolved:
        if request.path == "/metrics" and request.method == "GET":
            return self._metrics_route
        return resolve(request.method, request.path, self.spec)

    def _answer(self, exchange: Exchange, route: Route) -> None:
        outcome = self._outcome(exchange.request, route)
        if isinstance(outcome, Generation):
            self._generate(exchange, outcome, route)
        else:
            exchange.do(outcome)

    def _outcome(self, request: ReceivedRequest, route: Route) -> Outcome:
        early = before_routing(request, self.spec)
        if early is not None:
            return early
        if self._draining and route.generation:
            return refusal_reply(shutting_down(), cors=False)
        try:
            return route.handle(self._desk, request)
        except Refusal as refusal:
            return refusal_reply(refusal, anthropic=route.anthropic)
        except RoutingRefusal as refusal:
            return routing_reply(refusal)

    def _generate(self, exchange: Exchange, generation: Generation, route: Route) -> None:
        flight = Flight(
            exchange,
            generation,
            spec=self.spec,
            loop=self._loop,
            metrics=self._metrics,
            landed=self._flight_landed,
        )
        most = self.spec.max_num_queued_requests
        if most is not None and self.running + self.waiting + flight.sequences > most:
            self._metrics.rejected()
            exchange.do(refusal_reply(queue_full(), anthropic=route.anthropic))
            return
        self._flights.add(flight)
        flight.start()

    def _flight_landed(self, flight: Flight) -> None:
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
        return Reply(200, self.metrics_text(), CONTENT_TYPE)

    # faults that are states of the engine

    def _faults_changed(self) -> None:
        if any(map(self.faults.active, _FROZEN_GAUGES)):
            if self._stale_metrics is None:
                self._stale_metrics = self.metrics_text()
        else:
            self._stale_metrics = None
        if self.faults.active("paused") or self.faults.active("health_ok_generation_hangs"):
            self._loop.freeze()
        else:
            self._loop.thaw()
        self._refuse_or_listen()

    def _refuse_or_listen(self) -> None:
        if self.faults.active("refuse"):
            self._stop_listening()
        elif self._server is None and self._reopening is None and self._port and not self._closed:
            # The kernel queues connections from here on, before the event loop has begun to accept them.
            bound = self._bound_socket(self._port)
            self._reopening = asyncio.get_running_loop().create_task(self._reopen(bound))

    async def _reopen(self, bound: socket.socket) -> None:
        self._server = await self._listen(bound)
        self._reopening = None

    # listening

    def _bound_socket(self, port: int) -> socket.socket:
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((self._host, port))
            bound.listen(2048)
        except OSError:
            bound.close()
            raise
        bound.setblocking(False)
        self._port = bound.getsockname()[1]
        return bound

    async def _listen(self, bound: socket.socket) -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(lambda: Connection(self), sock=bound, backlog=2048)

    def _stop_listening(self) -> None:
        if self._reopening is not None:
            self._reopening.cancel()
            self._reopening = None
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while not condition():
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return
            self._landed.clear()
            try:
                await asyncio.wait_for(self._landed.wait(), left)
            except TimeoutError:
                return
