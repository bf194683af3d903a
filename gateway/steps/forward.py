"""Step 6: one attempt at one replica. Nothing reaches the client before the engine has shown that it answers.

vLLM sends a stream's status line at once, however long the request then waits, and reports failure as an event inside
it (captured, 0.32.0). So the client's headers are held until the first event: a failure before it is an HTTP error, or
another replica's chance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from gateway.errors import EngineFailure, EngineProtocolError
from gateway.model import Endpoint, InferenceRequest
from gateway.telemetry.trace import Trace, overhead
from gateway.wire.exchange import Exchange, Flow
from gateway.wire.mould import Passage, whole_chunks
from gateway.wire.reply import Reply, refusal, rename
from gateway.wire.sse import SseScanner, StreamFacts, StreamFault, StreamPlan
from gateway.wire.upstream import Answer

_ERROR_BODY = 64 * 1024
_INLINE_PARSE = 256 * 1024  # a larger answer is parsed in a thread: it would hold the event loop for a millisecond

_JSON = b"application/json"
_EVENTS = b"text/event-stream"
# What an answer that is not JSON may be, by endpoint: subtitles and plain transcripts.
_TEXTS = frozenset({b"text/plain", b"text/vtt", b"text/srt", b"application/x-subrip"})
_AUDIO = frozenset({Endpoint.TRANSCRIPTIONS, Endpoint.TRANSLATIONS})

_STREAM_LINES = (
    b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n"
)


class Lane(Protocol):
    """A replica as this step needs it."""

    def enter(self) -> None:
        """One more request is in flight there."""
        ...

    def answered(self) -> None:
        """The first event of a stream has come."""
        ...

    def leave(self) -> None:
        """One less."""
        ...

    def send(
        self, path: str, content_type: bytes, body: bytes, request_id: str, *, total: float | None
    ) -> Awaitable[Answer]:
        """Send a request; returns with the head of the answer. Raises ``EngineFailure``."""
        ...


class Begun(Protocol):
    """A client's stream that has begun already."""

    def join(self, flow: Flow) -> None:
        """The answer that it goes on with."""
        ...


class Order(NamedTuple):
    """What is to be sent to an engine that serves ``model``, and how its answer is to be shown.

    ``shown`` are header lines for the client that are known beforehand; ``body`` is what ``accept.render`` made.
    ``begun`` is there when the client's stream has begun before there was an answer.
    """

    request: InferenceRequest
    model: str
    shown: bytes
    content_type: bytes
    body: bytes
    total: float | None
    answer_limit: int
    begun: Begun | None = None


async def forward(exchange: Exchange, order: Order, lane: Lane, trace: Trace, clock: Callable[[], float]) -> None:
    """Send the order to the replica and its answer to the client.

    Raises ``EngineFailure``; when ``exchange.started`` is set by then, part of an answer is with the client.
    """
    request = order.request
    route = request.route
    trace.sent, trace.answered = clock(), 0.0
    lane.enter()
    answer: Answer | None = None
    try:
        answer = await lane.send(
            route.upstream_path or route.path,
            order.content_type,
            order.body,
            f"{trace.request_id}-{trace.attempts}",
            total=None if request.stream else order.total,
        )
        if answer.status != 200:
            raise refusal(answer.status, await answer.read_some(_ERROR_BODY))
        if request.stream:
            await _relay_stream(exchange, order, answer, trace, clock, lane=lane)
            return
        body = await answer.read(order.answer_limit)
        trace.answered = clock()
        trace.waited += trace.answered - trace.sent
        media = _media_type(answer)
        if len(body) > _INLINE_PARSE:
            reply = await asyncio.to_thread(_read_reply, body, media, request)
        else:
            reply = _read_reply(body, media, request)
        trace.usage, trace.finish = reply.usage, reply.finish
        trace.status, trace.response_bytes = 200, len(reply.body)
        lines = _lines(b"content-type: %b\r\n" % media, order, trace, clock())
        exchange.respond(200, lines, reply.body)
    finally:
        lane.leave()
        if not trace.answered:
            trace.waited += clock() - trace.sent
        if answer is not None:
            answer.close()


def _media_type(answer: Answer) -> bytes:
    declared = answer.header(b"content-type")
    if declared is None or declared == _JSON:
        return declared or b""
    return declared.partition(b";")[0].strip().lower()


def _read_reply(body: bytes, media: bytes, request: InferenceRequest) -> Reply:
    if media == _JSON:
        return rename(body, request.alias)
    if media in _TEXTS and request.route.endpoint in _AUDIO:
        return Reply(body)
    raise EngineProtocolError


def _lines(first: bytes, order: Order, trace: Trace, now: float) -> bytes:
    added = trace.overhead = overhead(trace, now)
    queued = f"{trace.queued * 1e3:.3f}" if trace.queued else "0.000"
    own = (
        f"x-request-id: {trace.request_id}\r\nx-gateway-overhead-ms: {added * 1e3:.3f}\r\n"
        f"x-gateway-queue-ms: {queued}\r\n"
    )
    return first + order.shown + own.encode()


def stream_lines(order: Order, trace: Trace) -> bytes:
    """The header lines of a stream that begins before there is an answer."""
    return b"%b%bx-request-id: %b\r\n" % (_STREAM_LINES, order.shown, trace.request_id.encode())


async def _relay_stream(
    exchange: Exchange, order: Order, answer: Answer, trace: Trace, clock: Callable[[], float], *, lane: Lane
) -> None:
    if _media_type(answer) != _EVENTS:
        raise EngineProtocolError
    request = order.request
    plan = StreamPlan(request.route.dialect, request.alias, request.include_usage, request.choices)

    def begin() -> None:
        lane.answered()
        _begin(exchange, order, answer, trace, clock)

    relay = StreamRelay(exchange, SseScanner(plan), begin)
    try:
        answer.pipe(relay, relay.shortcut)
        await relay.done
    finally:
        facts = relay.facts()
        trace.events, trace.last_event = facts.events, relay.last_event(clock)
        trace.response_bytes, trace.first_bytes = relay.sent_bytes, relay.first_bytes
        trace.usage, trace.finish = facts.usage, facts.finish


def _begin(exchange: Exchange, order: Order, answer: Answer, trace: Trace, clock: Callable[[], float]) -> None:
    trace.answered = clock()
    trace.waited += trace.answered - trace.sent
    trace.status = 200
    lines = _lines(_STREAM_LINES, order, trace, trace.answered)
    if order.begun is None:
        exchange.start(200, lines, answer)
    else:
        order.begun.join(answer)


class StreamRelay:
    """From the engine's bytes to the client's, without a task between them: what one read brings is one write.

    ``done`` resolves when the stream has ended, with ``EngineFailure`` when it did not end well. The last moment seen
    is kept as the loop's own time, which costs nothing to read.
    """

    def __init__(self, exchange: Exchange, scanner: SseScanner, begin: Callable[[], None]) -> None:
        self.scanner = scanner
        self.sent_bytes = self.first_bytes = 0
        self._exchange = exchange
        self._scan = scanner.feed
        self._write = exchange.write
        self._begin = begin
        self._begun = False
        self._pass_on = exchange.pass_on
        self._passage: Passage | None = None
        self._loop = asyncio.get_running_loop()
        self._ended = 0.0
        self._over = False
        self.done: asyncio.Future[None] = self._loop.create_future()

    def feed(self, data: bytes) -> None:
        """Bytes of the engine's stream."""
        if self._over:
            return
        if self._passage is not None:
            self._count_passed()
        try:
            shown = self._scan(data)
        except StreamFault as fault:
            if self._begun:
                self._show(fault.passed)
            self.fail(_failure(fault))
            return
        if self._begun and shown:
            self.sent_bytes += len(shown)
            self._write(shown)
        elif shown:
            self._show(shown)

    def shortcut(self) -> Callable[[bytes], bool] | None:
        """What may take whole chunks of the body, framing and all, until the next call of ``feed``; it returns whether
        it did.

        An ordinary chunk then costs less than half of what it costs through the parser, ``feed`` and the scanner.
        """
        passage = self.scanner.framed
        if passage is None or not self._begun or self._over:
            return None
        self._passage, cast, pass_on = passage, passage.cast, self._pass_on

        def take(data: bytes) -> bool:
            shown = cast(data)
            if shown is None:
                return self._take_several(data, passage)
            pass_on(shown)
            return True

        return take

    def _take_several(self, data: bytes, passage: Passage) -> bool:
        chunks = whole_chunks(data)
        if chunks is None:
            return False
        self._count_passed()
        shown = [chunk for chunk in map(passage.cast, chunks) if chunk is not None]
        if len(shown) < len(chunks):
            passage.counted()  # not sent: all of it is read in the usual way
            return False
        self._pass_on(b"".join(shown))
        return True

    def facts(self) -> StreamFacts:
        """What the stream has said so far."""
        self._count_passed()
        return self.scanner.facts

    def _count_passed(self) -> None:
        """Count what went past the scanner."""
        if self._passage is not None:
            events, size = self._passage.counted()
            self.scanner.facts.events += events
            self.sent_bytes += size

    def _show(self, shown: bytes) -> None:
        if not self._begun:
            # Comments before the first event say only that the request waits: the headers stay held.
            if not self.scanner.facts.events:
                return
            self._begun = True
            self.first_bytes = len(shown)
            self._begin()
        self.sent_bytes += len(shown)
        self._write(shown)

    def end(self) -> None:
        """The engine's stream ended as its framing promised."""
        if self._over:
            return
        self._ended = self._loop.time()
        try:
            self._show(self.scanner.end())
        except StreamFault as fault:
            self.fail(_failure(fault))
            return
        self._finish()

    def _finish(self) -> None:
        self._over = True
        if not self.done.done():
            self._exchange.finish()
            self.done.set_result(None)

    def fail(self, error: EngineFailure) -> None:
        """The engine's stream will not end well, unless its last event has been shown: then nothing is missing."""
        if self._over:
            return
        if self.scanner.facts.ended and self.scanner.whole:
            self._finish()
            return
        self._over = True
        if not self.done.done():
            self.done.set_exception(error)

    def last_event(self, clock: Callable[[], float]) -> float:
        """When the last bytes came, in the seconds of ``clock``; 0 for a stream that did not end well."""
        return clock() - (self._loop.time() - self._ended) if self._ended else 0.0


def _failure(fault: StreamFault) -> EngineFailure:
    """An error event before anything was shown may be another replica's chance; malformed bytes are not."""
    return EngineProtocolError() if fault.status is None else refusal(fault.status, trouble=fault.trouble)
