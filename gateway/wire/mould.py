"""Moulds: how the ordinary chunks of one stream are shown without parsing them. Pure.

The chunks of one stream begin and end with the same bytes (id, time and model before, a null ``finish_reason`` behind).
A mould is learned from a chunk that was parsed and judged; what fits it is shown with the model's name swapped. Inside
a JSON string every quote is escaped, so raw bytes such as ``"finish_reason"`` can only be a member.

There are two. ``mould`` takes any one event. ``framed_mould`` takes what one read from an engine most often is, a whole
chunk of a chunked body that holds one event with one piece of text, so that neither the HTTP parser nor the cutting of
events is needed; what it gives is a whole chunk again. It is written for few and common operations: between two chunks
the kernel's own code passes through the caches, and a chunk costs what its instructions cost to fetch again.
``x in data`` with bytes for ``x`` is avoided: it raises and drops a ``TypeError`` inside (1,800 instructions, CPython
3.11 to 3.13).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

Cast = Callable[[bytes], bytes | None]

_REASON = b'"finish_reason"'
_NO_REASON = b'"finish_reason":null'
_CARRIAGE = ord("\r")
_TEXT = re.compile(rb'"(?:content|text|reasoning|reasoning_content)":"((?:[^"\\]|\\.)*)"')
_CHUNK_END = b"\n\n\r\n"  # of the event, then of the chunk
_MOST_BYTES = 4096  # of an event that is learned from
_MOST_SIZES = 64


class Passage(NamedTuple):
    """The mould of a whole chunk. ``counted`` gives how many events have been cast since it was last asked, and their
    bytes."""

    cast: Cast
    counted: Callable[[], tuple[int, int]]


def mould(event: bytes, needle: bytes, swapped: bytes) -> Cast | None:
    """The mould of a parsed event's kind; ``None`` if that is no ordinary one.

    ``needle`` is the member that ``swapped`` takes the place of. The cast takes an event with its empty line and gives
    it as it is to be shown, or ``None`` for anything but one event of this mould.
    """
    before, _, rest = event.partition(needle)
    tail = rest[rest.rfind(_REASON) :] + b"\n\n"
    if rest.count(_REASON) != 1 or before.count(_REASON) or event.count(b"\n") or not tail.startswith(_NO_REASON):
        return None
    head, shown = before + needle, before + swapped
    end = len(head)

    def cast(data: bytes) -> bytes | None:
        if not data.startswith(head) or not data.endswith(tail) or data.find(b"\n") != len(data) - 2:
            return None
        if _CARRIAGE in data or data.count(_REASON) != 1 or not (data.isascii() or _valid_utf8(data)):
            return None
        return shown + data[end:]

    return cast


def framed_mould(event: bytes, needle: bytes, swapped: bytes) -> Passage | None:
    """As ``mould``, for an event that ``mould`` takes, when it stands alone in a whole chunk of a chunked body.

    The cast takes the chunk with its size line and gives the one to be shown, or ``None`` for anything else. Its text
    must be printable, which rules out line ends.
    """
    text = _TEXT.search(event) if len(event) <= _MOST_BYTES else None
    if text is None or event.find(needle) > text.start():
        return None
    head, tail = event[: text.start(1)], event[text.end(1) :] + _CHUNK_END
    if head.count(_REASON):
        return None
    shown, behind = head.replace(needle, swapped), -len(tail)
    long = len(head) + len(tail) + len(_REASON)  # a shorter chunk has no room for a finish reason in its text
    fronts: dict[int, tuple[bytes, int, bytes, int]] = {}
    events = passed = 0

    def learn(size: int) -> tuple[bytes, int, bytes, int]:
        """How a chunk of this size begins, for how many bytes, how the one to be shown does, and its event's size."""
        if len(fronts) >= _MOST_SIZES:
            fronts.clear()
        line = size_line(size)
        length = size - len(line) - 2 + len(shown) - len(head)
        known = fronts[size] = line + head, len(line) + len(head), b"%x\r\n%b" % (max(0, length), shown), length
        return known

    def cast(data: bytes) -> bytes | None:
        nonlocal events, passed
        size = len(data)
        try:
            front, start, becomes, length = fronts[size]
        except KeyError:
            front, start, becomes, length = learn(size)
        if data[:start] != front or data[behind:] != tail:
            return None
        text = data[start:behind]
        try:
            if not text.decode().isprintable() or (size > long and text.find(_REASON) >= 0):
                return None
        except UnicodeDecodeError:
            return None
        events += 1
        passed += length
        return becomes + data[start:]

    def counted() -> tuple[int, int]:
        nonlocal events, passed
        told, events, passed = (events, passed), 0, 0
        return told

    return Passage(cast, counted)


def size_line(size: int) -> bytes:
    """The size line, as servers write it, of a chunk that takes ``size`` bytes with this line and the last line end.

    Of 21 bytes, say, no chunk is made: 16 would be data behind a line of one digit, 15 behind one of two. The line is
    then longer than the chunk, so that nothing begins with it.
    """
    for digits in range(1, 8):
        line = b"%x\r\n" % max(0, size - digits - 4)
        if len(line) == digits + 2:
            return line
    return b" " * (size + 1)


def whole_chunks(data: bytes) -> list[bytes] | None:
    """The chunks that a read brought when each holds an event of its own; ``None`` for one, and for a part of one."""
    pieces = data.split(_CHUNK_END)
    return [piece + _CHUNK_END for piece in pieces[:-1]] if len(pieces) > 2 and not pieces[-1] else None


def _valid_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
