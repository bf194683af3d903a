"""Server-sent events of an engine, read, judged and rewritten as bytes while they pass. Pure.

An event is forwarded whole, in one piece, as soon as its empty line has come; line ends become ``\\n``. What reaches
the client is JSON objects, ``[DONE]``, plain event names and one fixed comment; other fields and the words of comments
are dropped. Data that is not a JSON object, and lines that are no field of an event, end the stream as an engine fault.

Hot path: the ordinary chunks of one vLLM stream begin and end with the same bytes (id, time and model before, a null
``finish_reason`` behind). A chunk in such a mould, in one line of valid UTF-8, is not parsed: its beginning is put in
place with the model's name swapped. Everything else is parsed. Inside a JSON string every quote is escaped, so raw
bytes such as ``"finish_reason"`` can only be a member.

Facts built on (captured, vLLM 0.32.0): a failure comes as an event with ``error`` followed by ``[DONE]`` and a clean
end, so ``[DONE]`` proves nothing and a ``finish_reason`` does; usage comes as a last chunk with ``choices: []``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import orjson

from gateway.model import Dialect, Usage
from gateway.wire.mould import Cast, Passage, framed_mould, mould
from gateway.wire.trouble import Trouble, trouble_of

MAX_EVENT_BYTES = 8 * 1024 * 1024

_DONE = b"data: [DONE]\n\n"
_KEEP_ALIVE = b": keep-alive\n\n"
_BOM = b"\xef\xbb\xbf"
_EVENT_NAME = re.compile(rb"event: ?([A-Za-z0-9_.-]{1,64})")
_FIELDS = (b":", b"event:", b"id:", b"retry:")
_making = tuple.__new__  # a named tuple's own constructor takes three times as long
_ERROR_STATUS = 500  # what an error event means that gives no status, as those of Anthropic's form do
_CARRIAGE = ord("\r")


class StreamFault(Exception):
    """The engine's stream is malformed (``status`` is ``None``), or has said that it failed, with that status.

    ``trouble`` is what it said of itself, ``passed`` what stood before the fault in the same read.
    """

    def __init__(self, status: int | None = None, trouble: Trouble | None = None) -> None:
        super().__init__()
        self.status = status
        self.trouble = trouble
        self.passed = b""


@dataclass(slots=True)
class StreamFacts:
    """What a stream has shown so far. ``events`` counts those with data; chunks are not tokens, ``usage`` is."""

    events: int = 0
    usage: Usage | None = None
    finish: str | None = None
    ended: bool = False
    finished: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """How one stream is to be shown.

    ``model`` is the name the caller used. ``show_usage``: whether the caller asked for the usage chunk. ``choices`` is
    how many finish reasons make the answer whole.
    """

    dialect: Dialect
    model: str
    show_usage: bool = False
    choices: int = 1


class SseScanner:
    """Feed bytes, get bytes. Raises ``StreamFault`` once, after which it takes no more."""

    def __init__(self, plan: StreamPlan) -> None:
        self.facts = StreamFacts()
        self._plan = plan
        self._judge = _JUDGES[plan.dialect]
        self._buffer = bytearray()
        self._scanned = 0
        self._carriage = False
        self._begun = False
        # Set only between whole events: while some of one is held back, nothing may overtake it.
        self._cast: Cast | None = None
        self.framed: Passage | None = None
        self._learned: Cast | None = None
        self._learned_framed: Passage | None = None

    def feed(self, data: bytes) -> bytes:
        """The bytes to pass on for these bytes (often none). Raises ``StreamFault``."""
        cast = self._cast
        if cast is not None:
            shown = cast(data)
            if shown is not None:
                self.facts.events += 1
                return shown
        shown = self._read(data)
        whole = not self._buffer and not self._carriage
        self._cast = self._learned if whole else None
        self.framed = self._learned_framed if whole else None
        return shown

    def _read(self, data: bytes) -> bytes:
        if self._carriage or _CARRIAGE in data:
            data = self._unify(data)
        if not self._begun:
            return self._first(data)
        if not self._buffer and data.endswith(b"\n\n"):
            return self._events(data[:-2].split(b"\n\n"))
        return self._slow(data)

    def end(self) -> bytes:
        """The engine's body ended cleanly: what is still to be sent. Raises ``StreamFault`` if it is not whole."""
        if self.facts.ended:
            return b""
        if self._buffer.strip(b"\n"):
            raise StreamFault
        self.facts.ended = True
        if not self.whole:
            raise StreamFault
        return _DONE if self._plan.dialect is Dialect.OPENAI else b""

    @property
    def whole(self) -> bool:
        """Whether every choice has said why it ended."""
        return self.facts.finish is not None and len(self.facts.finished) >= self._plan.choices

    # --- cutting

    def _first(self, data: bytes) -> bytes:
        """The bytes of the stream's beginning, where a byte order mark may stand and is skipped."""
        self._buffer += data
        if len(self._buffer) < len(_BOM) and _BOM.startswith(self._buffer):
            return b""
        self._begun = True
        data = bytes(self._buffer).removeprefix(_BOM)
        self._buffer.clear()
        return self._slow(data)

    def _unify(self, data: bytes) -> bytes:
        """Make ``\\r\\n`` and lone ``\\r`` one ``\\n``; a pair may be cut between two reads."""
        if self._carriage and data.startswith(b"\n"):
            data = data[1:]
        self._carriage = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _slow(self, data: bytes) -> bytes:
        buffer = self._buffer
        buffer += data
        cut = buffer.rfind(b"\n\n", max(0, self._scanned - 1))
        if cut < 0:
            self._scanned = len(buffer)
            if len(buffer) > MAX_EVENT_BYTES:
                raise StreamFault
            return b""
        events = bytes(buffer[:cut]).split(b"\n\n")
        del buffer[: cut + 2]
        self._scanned = len(buffer)
        return self._events(events)

    def _events(self, events: list[bytes]) -> bytes:
        shown: list[bytes] = []
        try:
            shown.extend(self._event(event) for event in events)
        except StreamFault as fault:
            fault.passed = b"".join(shown)
            raise
        return b"".join(shown)

    # --- one event

    def _event(self, event: bytes) -> bytes:
        event = event.strip(b"\n")
        if self.facts.ended or not event:
            return b""
        if self._learned is not None and (shown := self._learned(event + b"\n\n")) is not None:
            self.facts.events += 1
            return shown
        if event.startswith(b"data: ") and event.find(b"\n") < 0:
            return self._data(event, event[6:])
        name, data = _parts(event)
        if data is None:
            return _KEEP_ALIVE if event.startswith(b":") else b""
        return self._data(b"%bdata: %b" % (name, data.replace(b"\n", b"\ndata: ")), data)

    def _data(self, event: bytes, data: bytes) -> bytes:
        return self._done() if data.strip() == b"[DONE]" else self._chunk(event, data)

    def _chunk(self, event: bytes, data: bytes) -> bytes:
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            raise StreamFault from None
        if not isinstance(chunk, dict):
            raise StreamFault
        self.facts.events += 1
        show, holder = self._judge(self, chunk)
        if not show:
            return b""
        if holder is None or "model" not in holder:
            return event + b"\n\n"
        return self._renamed(event, chunk, holder)

    def _end(self) -> None:
        self.facts.ended = True
        self._learned = self._learned_framed = None  # what follows is looked at, and dropped

    def _done(self) -> bytes:
        self._end()
        if not self.whole:
            raise StreamFault
        return _DONE

    def _renamed(self, event: bytes, chunk: dict[str, Any], holder: dict[str, Any]) -> bytes:
        swapped = swap_model(event, chunk, self._plan.model) if holder is chunk else None
        if swapped is not None:
            if chunk.get("usage") is None:
                self._learn(event, b'"model":' + orjson.dumps(chunk["model"]), swapped[0])
            return swapped[1] + b"\n\n"
        holder["model"] = self._plan.model
        name = event[: event.index(b"data: ")]
        try:
            return b"%bdata: %b\n\n" % (name, orjson.dumps(chunk))
        except orjson.JSONEncodeError:
            raise StreamFault from None

    def _learn(self, event: bytes, needle: bytes, swapped: bytes) -> None:
        learned = mould(event, needle, swapped)
        if learned is not None:
            self._learned, self._learned_framed = learned, framed_mould(event, needle, swapped)

    # --- what a chunk says, by dialect: (whether it is shown, the object whose model is renamed)

    def _judge_openai(self, chunk: dict[str, Any]) -> tuple[bool, dict[str, Any] | None]:
        if says_error(chunk):
            raise StreamFault(error_status(chunk), trouble_of(chunk))
        choices = chunk.get("choices")
        if isinstance(choices, list):
            for choice in choices:
                self._judge_choice(choice)
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self.facts.usage = read_usage(usage)
            if not choices and not self._plan.show_usage:
                return False, None
        return True, chunk

    def _judge_choice(self, choice: Any) -> None:
        if isinstance(choice, dict) and isinstance(choice.get("finish_reason"), str):
            self.facts.finish = choice["finish_reason"]
            index = choice.get("index", 0)
            if isinstance(index, int) and 0 <= index < self._plan.choices:
                self.facts.finished.add(index)

    def _judge_responses(self, chunk: dict[str, Any]) -> tuple[bool, dict[str, Any] | None]:
        kind, response = chunk.get("type"), chunk.get("response")
        if kind in ("error", "response.failed") or says_error(chunk):
            raise StreamFault(error_status(chunk), trouble_of(chunk))
        if not isinstance(response, dict):
            return True, None
        if kind in ("response.completed", "response.incomplete"):
            self._finish(str(response.get("status")), response.get("usage"))
        return True, response

    def _judge_anthropic(self, chunk: dict[str, Any]) -> tuple[bool, dict[str, Any] | None]:
        kind, message, delta = chunk.get("type"), chunk.get("message"), chunk.get("delta")
        if kind == "error" or says_error(chunk):
            raise StreamFault(error_status(chunk), trouble_of(chunk))
        if kind == "message_start" and isinstance(message, dict):
            self._note_usage(message.get("usage"))
        elif kind == "message_delta" and isinstance(delta, dict) and isinstance(delta.get("stop_reason"), str):
            self._finish(delta["stop_reason"], chunk.get("usage"))
        elif kind == "message_stop":
            if not self.whole:
                raise StreamFault
            self._end()
        return True, message if isinstance(message, dict) else None

    def _finish(self, reason: str, usage: Any) -> None:
        self.facts.finish = reason
        self.facts.finished.update(range(self._plan.choices))
        self._note_usage(usage)

    def _note_usage(self, usage: Any) -> None:
        """Counts add up over events: SGLang gives a message's input at its start, its output at its end (captured)."""
        if isinstance(usage, dict):
            now, before = read_usage(usage), self.facts.usage or Usage()
            self.facts.usage = Usage(
                now.prompt or before.prompt, now.completion or before.completion, now.cached or before.cached
            )


_Judge = Callable[[SseScanner, dict[str, Any]], tuple[bool, dict[str, Any] | None]]
_JUDGES: Mapping[Dialect, _Judge] = MappingProxyType(
    {
        Dialect.OPENAI: SseScanner._judge_openai,
        Dialect.RESPONSES: SseScanner._judge_responses,
        Dialect.ANTHROPIC: SseScanner._judge_anthropic,
    }
)


def _parts(event: bytes) -> tuple[bytes, bytes | None]:
    """The line that names an event (or nothing) and its data, ``None`` when it has none, as a comment does.

    Raises ``StreamFault`` for a line that is no field of an event.
    """
    name, data = b"", []
    for line in event.split(b"\n"):
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif match := _EVENT_NAME.fullmatch(line):
            name = b"event: %b\n" % match[1]
        elif not line.startswith(_FIELDS):
            raise StreamFault
    return name, b"\n".join(data) if data else None


def swap_model(text: bytes, parsed: Mapping[str, Any], model: str) -> tuple[bytes, bytes] | None:
    """The member ``"model":...`` as it is to be shown, and ``text`` with it in place of the one at the top.

    ``None`` when ``text`` has to be written anew from ``parsed``. Quotes inside JSON strings are escaped, so these
    bytes can only be a member; where the name of the member stands once, it is the one at the top.
    """
    needle = b'"model":' + orjson.dumps(parsed["model"])
    if text.count(b'"model"') != 1 or text.find(needle) < 0:
        return None
    shown = b'"model":' + orjson.dumps(model)
    return shown, text.replace(needle, shown)


def says_error(chunk: Mapping[str, Any]) -> bool:
    """Whether an engine's object is an error: in OpenAI's form, or flat as SGLang and older vLLM send it."""
    return chunk.get("error") is not None or chunk.get("object") == "error"


def error_status(chunk: Mapping[str, Any]) -> int:
    """The HTTP status that an error object gives, or 500."""
    error = chunk.get("error")
    code = (error if isinstance(error, dict) else chunk).get("code")
    return code if isinstance(code, int) and 400 <= code < 600 else _ERROR_STATUS


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Token counts from any of the three usage objects that engines send; what is missing or odd counts as 0."""
    get = usage.get
    details = get("prompt_tokens_details") or get("input_tokens_details")
    cached = details.get("cached_tokens") if type(details) is dict else 0
    prompt, completion = get("prompt_tokens"), get("completion_tokens")
    if prompt is None:
        prompt = get("input_tokens")
    if completion is None:
        completion = get("output_tokens")
    counts = (
        prompt if type(prompt) is int and prompt >= 0 else 0,
        completion if type(completion) is int and completion >= 0 else 0,
        cached if type(cached) is int and cached >= 0 else 0,
    )
    return _making(Usage, counts)
