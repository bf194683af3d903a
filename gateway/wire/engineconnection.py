"""One keep-alive connection to an engine: requests out, answers in, deadlines and bounds on what an engine may do."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Protocol, cast

import httptools

from gateway.errors import EngineFailure, EngineProtocolError, EngineReset, EngineTimeout
from gateway.wire.answer import Answer, Take, UpstreamLimits
from gateway.wire.deadline import NEVER, Sweeper
from gateway.wire.samehead import Opening, opening

_NO_BODY = frozenset({204, 304})
_FRAMING = (b"content-length", b"transfer-encoding")
_MAX_INTERIM = 4
_JOINED = 64 * 1024  # a smaller body is sent with its head


class Home(Protocol):
    """The pool that a connection belongs to. ``opening`` was learned by one of its connections at ``learned_at``."""

    loop: asyncio.AbstractEventLoop
    limits: UpstreamLimits
    sweeper: Sweeper
    opening: Opening | None
    learned_at: float

    def watch(self, connection: EngineConnection) -> None:
        """A connection has been made: its deadlines count from here on."""
        ...

    def give_back(self, connection: EngineConnection) -> None:
        """A connection is free again."""
        ...

    def dropped(self, connection: EngineConnection) -> None:
        """The engine closed a connection that was still good."""
        ...

    def forget(self, connection: EngineConnection) -> None:
        """A connection is gone."""
        ...


_UNPARSED = (httptools.HttpParserError, httptools.HttpParserCallbackError, httptools.HttpParserUpgrade)


class EngineConnection(asyncio.Protocol):
    """One connection to one replica, for one request at a time."""

    def __init__(self, pool: Home) -> None:
        self.loop = pool.loop
        self.limits = pool.limits
        self._sweeper = pool.sweeper
        self.heard = -math.inf  # when a byte of an answer's body last came, in the loop's seconds
        self.deadline = NEVER
        self._pool = pool
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._head: asyncio.Future[Answer] | None = None
        self._answer: Answer | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        # The list's own method, not one around it: each chunk of a stream passes here.
        self.on_body: Callable[[bytes], None] = self._body.append
        self._parser = httptools.HttpResponseParser(self)
        self._pieces = 0
        self._owed = 0  # bytes of a body that does not go through the parser
        self._take: Take | None = None
        self._chunk_ended = self._ended = self._reusable = self._paused = False
        self._interim = self._head_bytes = self._bare_bytes = self._bare_since = 0
        self._total_at = NEVER
        self._whole: int | None = None
        self._given_up: EngineFailure | None = None
        self.once = False  # it serves one request alone
        self.lost = False
        self.virgin = True  # no byte of the current answer has come

    # --- one request

    async def send(self, head: bytes, body: bytes, total_at: float, whole: int | None = None) -> Answer:
        """Send a request; returns when the answer's head has come. Raises ``EngineFailure``; see ``begin``."""
        if self.lost:
            raise self._given_up or EngineReset()
        answered = self.begin(head, body, total_at, whole)
        try:
            return await answered
        except asyncio.CancelledError:
            self.abandon(answered)
            raise

    def begin(self, head: bytes, body: bytes, total_at: float, whole: int | None = None) -> asyncio.Future[Answer]:
        """Send a request on a connection that is not lost. Who stops waiting for the answer's head says ``abandon``.

        ``total_at`` is when the whole answer must be there, in the loop's seconds. With ``whole``, the answer is given
        only when it is there, or is longer than so many bytes, or has failed behind its head.
        """
        self.virgin = True
        self._ended = self._reusable = False
        self._head_bytes = self._owed = 0
        self._total_at = total_at
        self._whole = whole
        first = self.loop.time() + self.limits.first_byte
        self.deadline = first if first < total_at else total_at
        self._head = answered = self.loop.create_future()
        self._transport.write(head + body if len(body) < _JOINED else head)
        if len(body) >= _JOINED:
            self._transport.write(body)
        return answered

    def abandon(self, answered: asyncio.Future[Answer]) -> None:
        """Nobody waits for the answer any more: the connection is closed."""
        if answered.done() and not answered.cancelled():
            answered.exception()  # seen; nobody is left to raise it to
        self.abort()

    def release(self, *, clean: bool) -> None:
        """The answer's holder is done with it."""
        self._answer = self._take = None
        self.deadline = NEVER
        # A request body still on its way means that the engine answered early and may not read the rest.
        used_up = self.lost or self.once or not self._reusable
        if clean and not used_up and not self._transport.get_write_buffer_size():
            self._pool.give_back(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Close at once; bytes not yet sent are dropped. Idempotent."""
        self.lost, self._take = True, None
        self._pool.forget(self)
        if self._transport is not None:
            self._transport.abort()

    def give_up(self, failure: Callable[[], EngineFailure]) -> None:
        """End a request of whose answer no byte of the body has come; others, and idle connections, are left alone."""
        if self._transport is None:
            self._given_up = failure()  # raised as soon as the connection is there, if it comes to be
            self.abort()
        elif self._head is not None or (self._answer is not None and not self._answer.received and not self._ended):
            self._fail(failure())
            self.abort()

    def pause(self) -> None:
        """Stop reading; the clock for silence stops too. Idempotent."""
        if not self._paused and not self.lost and not self._ended:
            self._paused = True
            self.deadline = self._total_at
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on. Idempotent."""
        if self._paused and not self.lost:
            self._paused = False
            self.deadline = min(self.loop.time() + self.limits.idle, self._total_at)
            self._transport.resume_reading()

    # --- the event loop's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected. A connection that its asker no longer waits for is closed by its deadline."""
        self._transport = cast(asyncio.Transport, transport)
        if self.lost:
            self._transport.abort()
            return
        self.deadline = self.loop.time() + self.limits.connect
        self._pool.watch(self)

    def data_received(self, data: bytes) -> None:
        """Bytes from the engine.

        Between two chunks of the body, whole chunks may pass by the parser: it stands where it stood. Deadlines are
        exact to one sweep then.
        """
        take = self._take
        if take is not None:
            if take(data):
                self.heard = self._sweeper.now
                return
            self._take, self._bare_bytes = None, 0
        answer = self._answer
        if self.lost or self._ended or answer is None:
            self._begin(data)
            return
        if self._owed:
            self._take_body(answer, data)
            return
        try:
            self._parser.feed_data(data)
        except _UNPARSED:
            self._spoilt()
            return
        if not self._body and not self._ended:
            self._count_bare(len(data))
        self._deliver()
        answer = self._answer
        # Behind the end of a chunk, any further line would have been seen as the head of the next one.
        if answer is not None and self._chunk_ended and not self._ended and not self.lost and data.endswith(b"\r\n"):
            self._take = answer.shortcut()

    def _begin(self, data: bytes) -> None:
        """Bytes while no answer is under way: the head of one, or what nobody asked for."""
        if self.lost:
            return
        if self._ended and self._answer is not None:
            self.lost = True  # bytes behind the answer: it stands, the connection does not
            return
        if self._head is None:
            self.abort()  # nothing was asked: these bytes would be taken for the next answer
            return
        self.virgin = False
        if not self._head_bytes:
            known = self._pool.opening
            if known is not None and (start := known.body_at(data)):
                self._owed = known.length
                self._take_body(self._answered(known.status, known.headers), data[start:])
                return
            self._headers = []
            self._body.clear()
            self._chunk_ended = False
            self._interim = self._bare_bytes = 0
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except _UNPARSED:
            self._spoilt()
            return
        if self._answer is not None:
            if self._pool.learned_at != self._sweeper.now:
                self._learn(self._answer, data)
            self._deliver()
        elif self._head_bytes > self.limits.head_bytes:
            self._fail(EngineProtocolError())

    def _learn(self, answer: Answer, data: bytes) -> None:
        """Have the next answer's head known again, if this one is all of ``data`` or stands before some of its body.

        At most once for each sweep: where every head is another, looking for what is the same is for nothing.
        """
        found = opening(data, sum(map(len, self._body)), answer.status, self._headers)
        if found is not None:
            self._pool.opening, self._pool.learned_at = found, self._sweeper.now

    def _take_body(self, answer: Answer, data: bytes) -> None:
        """Bytes of a body whose length is known: the parser stays where it is, between two answers."""
        left = self._owed - len(data)
        if left < 0:
            self.lost = True  # bytes behind the answer: it stands, the connection does not
            data, left = data[:left], 0
        self._owed = left
        self._ended = self._reusable = not left
        if left or answer.received:
            self._hand_on(answer, data)
        else:
            self.heard, self.deadline = self.loop.time(), NEVER
            answer.give(data)

    def _spoilt(self) -> None:
        """Bytes that are no HTTP have come: what stands before them counts."""
        self.lost = self._ended
        self._deliver()
        if not self._ended:
            self._fail(EngineProtocolError())

    def _count_bare(self, size: int) -> None:
        """Bound what comes in a row without a byte of the body: trailers and chunk extensions, which are dropped."""
        answer = self._answer
        if answer is None:
            return
        if self._bare_since != answer.received:
            self._bare_since, self._bare_bytes = answer.received, 0
        self._bare_bytes += size
        if self._bare_bytes > self.limits.head_bytes:
            self._fail(EngineProtocolError())

    def _deliver(self) -> None:
        """Hand on all that one read brought in one piece, then the end."""
        answer = self._answer
        if answer is None:
            return
        body = self._body
        if self._ended:
            del body[self._pieces :]  # what came behind the end is of another answer
        data = body[0] if len(body) == 1 else b"".join(body)
        body.clear()
        self._hand_on(answer, data)

    def _hand_on(self, answer: Answer, data: bytes) -> None:
        if data:
            self.heard = self.loop.time()
            if not self._ended and not self._paused:
                silent = self.heard + self.limits.idle
                self.deadline = silent if silent < self._total_at else self._total_at
            if not answer.feed(data):
                self.pause()
        if self._ended:
            self.deadline = NEVER
            answer.end()

    def eof_received(self) -> bool:
        """The engine closed its side: whatever was not complete is cut."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        if not self.lost:
            self._pool.dropped(self)
        self.lost = True
        self._pool.forget(self)
        self._fail(EngineReset())

    def on_deadline(self, now: float) -> None:
        """A deadline passed, unless it is one of silence and something was heard; in the pool, its time is over."""
        silent = min(self.heard + self.limits.idle + self._sweeper.interval, self._total_at)
        if self._take is not None and not self._paused and silent > now:
            self.deadline = silent
            return
        self.deadline = NEVER
        self._fail(EngineTimeout())
        self.abort()

    def _fail(self, error: EngineFailure) -> None:
        self.lost, self._take = True, None
        head, self._head = self._head, None
        if head is not None and not head.done():
            head.set_exception(error)
        if self._answer is not None and not self._ended:
            self._answer.fail(error)
        if self._transport is not None:
            self._transport.abort()

    # --- the parser's side

    def on_message_begin(self) -> None:
        """The first byte of an answer; behind a complete one, even a part of another would taint the next."""
        if self._ended:
            self.lost = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header field, or a trailer field, which is dropped."""
        if self._answer is None:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """A head is complete: interim ones are skipped, a few at most."""
        status = self._parser.get_status_code()
        if status < 200:
            self._headers = []
            self._interim += 1
            if status in (0, 101) or self._interim > _MAX_INTERIM:
                raise EngineProtocolError
            return
        if self._ended or self._answer is not None:
            self.lost = True  # a second answer to one request
            return
        if not self._framed(status) or self._head_too_large():
            raise EngineProtocolError
        self._answered(status, self._headers)

    def _answered(self, status: int, headers: list[tuple[bytes, bytes]]) -> Answer:
        """The head of the answer has come."""
        answer = self._answer = Answer(self, status, headers)
        head, self._head = self._head, None
        if head is not None and not head.done():
            if self._whole is None:
                head.set_result(answer)
            else:
                answer.gather(self._whole, head)
        return answer

    def _framed(self, status: int) -> bool:
        """Whether the body's end is marked in exactly one way; an end by closing cannot be told from a cut."""
        marks = [name for name, _ in self._headers if name in _FRAMING]
        return len(marks) == 1 or status in _NO_BODY

    def _head_too_large(self) -> bool:
        """Exact where the reads up to here were large enough to tell nothing: they may hold some of the body."""
        limit = self.limits.head_bytes
        return self._head_bytes > limit and sum(len(n) + len(v) + 4 for n, v in self._headers) > limit

    def on_chunk_header(self) -> None:
        """A chunk's size line; the last one's too, before trailers."""
        self._chunk_ended = False

    def on_chunk_complete(self) -> None:
        """The line end behind a chunk's data."""
        self._chunk_ended = True

    def on_message_complete(self) -> None:
        """The end of an answer, or of an interim one."""
        if self._answer is not None:
            if self._ended:
                self.lost = True
            else:
                self._pieces = len(self._body)
            self._ended = True
            self._reusable = self._parser.should_keep_alive()
