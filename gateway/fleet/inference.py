"""One inference against a replica: sent, timed, and read to its proper end.

Facts built on (captured, vLLM 0.32.0): a stream's head comes at once and says nothing, its first event comes with the
first token; failure may be an event inside a 200 that ends cleanly, so only a ``finish_reason`` proves an answer whole.
vLLM 0.11.0 answers a route that its model does not have with 200 and an error object.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import orjson

from gateway.errors import EngineFailure, EngineProtocolError, EngineRefused, EngineTimeout
from gateway.fleet.warmup import Call
from gateway.model import Dialect
from gateway.wire.answer import Answer
from gateway.wire.reply import refusal
from gateway.wire.sse import SseScanner, StreamFault, StreamPlan, error_status, says_error

_JSON = b"application/json"
_EVENTS = b"text/event-stream"
_KEPT = 64 * 1024  # bytes of a whole answer that are looked at: an error is short, a vector for each token is not

# vLLM: "The model does not support Embeddings API"; llama.cpp: "This server does not support completions"; SGLang:
# "This model does not appear to be an embedding model".
_OTHER_KIND = re.compile(rb"does not (?:support|appear to be)", re.IGNORECASE)
_TEXT = re.compile(rb'"text"\s*:\s*"(?!")')  # quotes inside a JSON string are escaped: this can only be a member


class Sender(Protocol):
    """A replica to send to."""

    def send(
        self, path: str, content_type: bytes, body: bytes, request_id: str, *, total: float | None
    ) -> Awaitable[Answer]:
        """Send a request; returns with the head of the answer. Raises ``EngineFailure``."""
        ...


class Timing(NamedTuple):
    """How long an inference took, in seconds from its sending, and how many events brought text.

    ``first_token`` is when the first token's event came; for a model that generates nothing, the end of the answer.
    """

    first_token: float
    total: float
    tokens: int


class InferenceRefused(EngineRefused):
    """The engine refused this inference with ``status``.

    ``other_kind``: it said that its model is not of the kind that was asked.
    """

    def __init__(self, status: int, known: EngineRefused, *, other_kind: bool) -> None:
        super().__init__(known.spec.code, known.message, elsewhere=known.elsewhere, fault=known.fault)
        self.status = status
        self.other_kind = other_kind


async def infer(sender: Sender, call: Call, request_id: str, patience: float, clock: Callable[[], float]) -> Timing:
    """Do one inference, ``patience`` seconds at most. Raises ``EngineFailure``.

    ``InferenceRefused`` is an error of the engine's that says nothing more of it; what means that it is full, closing
    or dead is raised as such. The connection is back in its pool afterwards if the answer was whole, else closed at
    once, on cancellation too. Of the answer, no more than one event or 64 KiB is held.
    """
    begun = clock()
    answer: Answer | None = None
    try:
        async with asyncio.timeout(patience):
            answer = await sender.send(call.path, _JSON, call.body, request_id, total=patience)
            if answer.status != 200:
                raise _refused(answer.status, await answer.read_some(_KEPT))
            reader = _reader(call, answer, clock)
            answer.pipe(reader)
            await reader.done
    except TimeoutError:
        raise EngineTimeout from None
    finally:
        if answer is not None:
            answer.close()
    ended = clock()
    first = ended if reader.first is None else reader.first
    return Timing(first - begun, ended - begun, reader.tokens)


def _refused(status: int, body: bytes = b"") -> EngineFailure:
    known = refusal(status, body)
    if type(known) is not EngineRefused:
        return known
    return InferenceRefused(status, known, other_kind=_OTHER_KIND.search(body) is not None)


def _reader(call: Call, answer: Answer, clock: Callable[[], float]) -> _Reader:
    """Who reads this answer. JSON where a stream was asked for can only be an error."""
    media = (answer.header(b"content-type") or b"").partition(b";")[0].strip().lower()
    if media == _EVENTS and call.stream:
        return _Events(clock)
    if media == _JSON:
        return _Whole(failed=call.stream)
    raise EngineProtocolError


class _Reader(ABC):
    """Takes an answer's body (``Sink``). ``done`` resolves at its proper end, with ``EngineFailure`` otherwise."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.tokens = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @abstractmethod
    def feed(self, data: bytes) -> None:
        """Some of the body."""

    @abstractmethod
    def end(self) -> None:
        """The body ended as its framing promised."""

    def fail(self, error: EngineFailure) -> None:
        """The body will not end."""
        if not self.done.done():
            self.done.set_exception(error)

    def _succeed(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class _Events(_Reader):
    """A stream of a completion."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._scanner = SseScanner(StreamPlan(Dialect.OPENAI, ""))

    def feed(self, data: bytes) -> None:
        """Some of the stream."""
        if self.done.done():
            return
        try:
            shown = self._scanner.feed(data)
        except StreamFault as fault:
            self.fail(_failure(fault))
            return
        if self.first is None and self._scanner.facts.events:
            self.first = self._clock()
        self.tokens += len(_TEXT.findall(shown))

    def end(self) -> None:
        """The stream ended as its framing promised."""
        if self.done.done():
            return
        try:
            self._scanner.end()
        except StreamFault as fault:
            self.fail(_failure(fault))
            return
        self._succeed()

    def fail(self, error: EngineFailure) -> None:
        """Behind its last event, nothing of a stream is missing."""
        if self._scanner.facts.ended and self._scanner.whole:
            self._succeed()
        else:
            super().fail(error)


def _failure(fault: StreamFault) -> EngineFailure:
    if fault.status is None:
        return EngineProtocolError()
    known = refusal(fault.status, trouble=fault.trouble)
    return InferenceRefused(fault.status, known, other_kind=False) if type(known) is EngineRefused else known


class _Whole(_Reader):
    """An answer in one JSON object; ``failed`` when only an error can be one. Vectors are counted off, not kept."""

    def __init__(self, *, failed: bool) -> None:
        super().__init__()
        self._failed = failed
        self._kept = bytearray()
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Some of the answer."""
        self._size += len(data)
        self._kept += data[: _KEPT - len(self._kept)]

    def end(self) -> None:
        """The answer is complete."""
        failure = self._judge()
        if failure is None:
            self._succeed()
        else:
            self.fail(failure)

    def _judge(self) -> EngineFailure | None:
        if self._size > _KEPT:
            return EngineProtocolError() if self._failed or not self._kept.startswith((b"{", b"[")) else None
        try:
            answer = orjson.loads(self._kept)
        except orjson.JSONDecodeError:
            return EngineProtocolError()
        if isinstance(answer, dict) and says_error(answer):
            return _refused(error_status(answer), bytes(self._kept))
        return EngineProtocolError() if self._failed or not isinstance(answer, (dict, list)) else None
