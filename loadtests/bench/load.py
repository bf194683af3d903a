"""The load generator, a process of its own: a closed loop of precomputed requests over keep-alive connections.

It talks with whoever started it in lines of JSON: it reads one `Job`, warms the target up, prints ``{"ready": true}``,
waits for a line, runs, and prints one `Outcome`. Every answer is checked; what is not as it must be is an error.
"""

import asyncio
import dataclasses
import gc
import json
import sys
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from time import perf_counter
from typing import cast

import httptools
import uvloop

from loadtests.bench.answers import ANSWER
from loadtests.bench.scenarios import Scenario, by_name, requests_of
from loadtests.bench.stats import percentile

ANSWER_MARK = ANSWER.encode()
ERROR_MARK = b'"error"'
STREAM_END = b"data: [DONE]\n\n"
GRACE_SECONDS = 60.0
"""How long answers may still be under way when no new request is sent; then they count as errors."""
ERRORS_KEPT = 5


@dataclass(frozen=True, slots=True)
class Job:
    """What to run. Ends at `seconds` or at `requests`, whichever comes first; `requests` 0 leaves the time alone."""

    scenario: str
    port: int
    credential: str
    seconds: float
    requests: int
    warmup_seconds: float
    slack: int
    """Events that a stream may be short of, for a target that merges some."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was measured. Times in seconds; percentiles are None when nothing was counted."""

    requests: int
    seconds: float
    chunks: int
    bodies: int
    """Bytes of answer bodies."""
    p50: float | None
    p99: float | None
    ttft_p50: float | None
    ttft_p99: float | None
    errors: int
    first_errors: tuple[str, ...]


@dataclass(slots=True)
class Tally:
    """Counts of one phase, warm-up or measurement."""

    limit: int
    until: float
    sent: int = 0
    chunks: int = 0
    bodies: int = 0
    errors: int = 0
    first_errors: list[str] = dataclasses.field(default_factory=list)
    latencies: "array[float]" = dataclasses.field(default_factory=lambda: array("d"))
    firsts: "array[float]" = dataclasses.field(default_factory=lambda: array("d"))
    ended: float = 0.0

    def may_send(self, now: float) -> bool:
        return now < self.until and (not self.limit or self.sent < self.limit)

    def fail(self, why: str) -> None:
        self.errors += 1
        if len(self.first_errors) < ERRORS_KEPT:
            self.first_errors.append(why)


def fault(scenario: Scenario, status: int, body: bytes, chunks: int, slack: int) -> str | None:
    """What is wrong with an answer, or None. `body` is the whole body, or the last bytes of a stream."""
    if status != scenario.status:
        return f"status {status} instead of {scenario.status}: {body[:200]!r}"
    if not scenario.stream:
        mark = ERROR_MARK if scenario.status >= 400 else ANSWER_MARK
        return None if mark in body else f"the body is not the engine's answer: {body[:200]!r}"
    if not body.endswith(STREAM_END):
        return f"the stream does not end with [DONE]: {body[-200:]!r}"
    short = scenario.chunks - (chunks - 1)
    return f"the stream lacks {short} of {scenario.chunks} events" if short > slack else None


class Client(asyncio.Protocol):
    """One connection: sends the next request when the last answer has ended."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._chunks = 0
        self._started = 0.0
        self._first = 0.0
        self._waiting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods, not by its class

    def send(self, request: bytes) -> None:
        """Starts one request. The connection must be idle."""
        if self._transport is None or self._transport.is_closing():
            self._finish("the target closed an idle connection")
            return
        self._body, self._chunks, self._first, self._waiting = [], 0, 0.0, True
        self._started = perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._finish(f"not HTTP: {error}")
            self.close()

    def on_body(self, body: bytes) -> None:
        if not self._first:
            self._first = perf_counter()
        if self._run.scenario.stream:
            self._count(body)
        else:
            self._body.append(body)
        self._run.tally.bodies += len(body)

    def _count(self, body: bytes) -> None:
        """Counts blank lines, also one cut in two by a read, and keeps the end of the stream."""
        tail = self._body[0] if self._body else b""
        self._chunks += body.count(b"\n\n") + (tail[-1:] == b"\n" and body[:1] == b"\n")
        self._body = [(tail + body)[-len(STREAM_END) :] if len(body) < len(STREAM_END) else body[-256:]]

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        status = self._parser.get_status_code()
        self._finish(fault(self._run.scenario, status, body, self._chunks, self._run.job.slack))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting:
            self._finish(f"connection lost before the answer ended: {exc or 'closed by the target'}")

    def abandon(self) -> None:
        if self._waiting:
            self._waiting = False
            self._run.tally.fail(f"no answer {GRACE_SECONDS:.0f} s after the run's end")

    def _finish(self, wrong: str | None) -> None:
        self._waiting = False
        now = perf_counter()
        tally = self._run.tally
        tally.ended = now
        if wrong is not None:
            tally.fail(wrong)
            self._run.leave()
            return
        tally.latencies.append(now - self._started)
        if self._run.scenario.stream:
            tally.firsts.append(self._first - self._started)
            tally.chunks += self._chunks
        self._run.next(self, now)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Run:
    """All connections of one job. A connection that met an error stays out: the run has failed anyway."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.scenario = by_name(job.scenario)
        self.tally = Tally(0, 0.0)
        self._requests = cycle(requests_of(self.scenario, job.port, job.credential))
        self._clients: list[Client] = []
        self._active = 0
        self._idle = asyncio.Event()

    async def connect(self) -> None:
        """Raises OSError when the target refuses a connection."""
        loop = asyncio.get_running_loop()
        for _ in range(self.scenario.connections):
            _, client = await loop.create_connection(lambda: Client(self), "127.0.0.1", self.job.port)
            self._clients.append(client)

    async def phase(self, seconds: float, limit: int) -> Tally:
        """Runs until `seconds` have passed or `limit` requests were sent, and until all answers are in."""
        began = perf_counter()
        self.tally = Tally(limit, began + seconds)
        self._idle.clear()
        self._active = len(self._clients)
        for client in self._clients:
            self.next(client, began)
        try:
            async with asyncio.timeout(seconds + GRACE_SECONDS):
                await self._idle.wait()
        except TimeoutError:
            for client in self._clients:
                client.abandon()
        return self.tally

    def next(self, client: Client, now: float) -> None:
        """The next request of `client`; every connection sends at least one in a phase without a limit."""
        if self.tally.may_send(now):
            self.tally.sent += 1
            client.send(next(self._requests))
        else:
            self.leave()

    def leave(self) -> None:
        self._active -= 1
        if self._active == 0:
            self._idle.set()

    def close(self) -> None:
        for client in self._clients:
            client.close()


def outcome(tally: Tally, seconds: float) -> Outcome:
    """The figures of a phase that took `seconds`."""
    latencies, firsts = sorted(tally.latencies), sorted(tally.firsts)
    return Outcome(
        requests=len(latencies),
        seconds=seconds,
        chunks=tally.chunks,
        bodies=tally.bodies,
        p50=percentile(latencies, 0.5),
        p99=percentile(latencies, 0.99),
        ttft_p50=percentile(firsts, 0.5),
        ttft_p99=percentile(firsts, 0.99),
        errors=tally.errors,
        first_errors=tuple(tally.first_errors),
    )


def say(message: object) -> None:
    print(json.dumps(message), flush=True)


async def warmed(run: Run) -> Tally:
    """Connects and warms up. A target that takes no connection has failed like one that answers wrongly."""
    try:
        await run.connect()
    except OSError as error:
        run.tally.fail(f"no connection: {error}")
        return run.tally
    return await run.phase(run.job.warmup_seconds, 0)


async def carry_out(job: Job, wait_for_go: Callable[[], object]) -> None:
    """Connects, warms up, reports ready, waits, measures, reports. A warm-up with an error is the outcome itself."""
    run = Run(job)
    try:
        warm = await warmed(run)
        if warm.errors:
            say(dataclasses.asdict(outcome(warm, job.warmup_seconds)))
            return
        say({"ready": True})
        await asyncio.get_running_loop().run_in_executor(None, wait_for_go)
        gc.collect()
        gc.freeze()
        began = perf_counter()
        tally = await run.phase(job.seconds, job.requests)
        say(dataclasses.asdict(outcome(tally, (tally.ended or perf_counter()) - began)))
    finally:
        run.close()


def main() -> None:
    job = Job(**json.loads(sys.stdin.readline()))
    uvloop.run(carry_out(job, sys.stdin.readline))


if __name__ == "__main__":
    main()
