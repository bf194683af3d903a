"""A head that comes again: known byte for byte, the digits of content-length apart, without parsing it. Pure.

Messages on kept connections differ in little but their bodies. What was learned of one head from a parser holds for
another that is the same, and its body is as long as it says, since nothing else frames it.
"""

from __future__ import annotations

import re

LENGTH = b"content-length"
HEAD_END = b"\r\n\r\n"
MORE_DIGITS = 9
"""By how much one head may be longer than another that is the same."""

_LENGTHS = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,9})\r\n", re.IGNORECASE).finditer


class SameHead:
    """The bytes of a head around the digits of its length. ``digits`` and ``length`` are those of the newest one."""

    __slots__ = ("_before", "_behind", "_start", "_until", "digits", "length")

    def __init__(self, before: bytes, behind: bytes) -> None:
        self._before = before
        self._behind = behind
        self._start = len(before)
        self._until = len(before) + MORE_DIGITS + 1
        self.digits = b"0"
        self.length = 0

    def body_at(self, data: bytes) -> int:
        """Where the body begins in bytes that begin with this head; 0 if they do not."""
        start, behind = self._start, self._behind
        if data[:start] != self._before:
            return 0
        end = data.find(b"\r", start, self._until)
        digits = data[start:end]
        body = end + len(behind)
        if end < 0 or data[end:body] != behind or not digits.isdigit():
            return 0
        self.digits, self.length = digits, int(digits)
        return body


class Opening(SameHead):
    """The head of an answer, which others of the same engine have too for a while: until their date changes."""

    __slots__ = ("headers", "status")

    def __init__(self, before: bytes, behind: bytes, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        super().__init__(before, behind)
        self.status = status
        # The one that is asked for stands first.
        self.headers = sorted(headers, key=lambda header: header[0] != b"content-type")


def opening(data: bytes, body_bytes: int, status: int, headers: list[tuple[bytes, bytes]]) -> Opening | None:
    """The opening of an answer that a parser took for a head and so many bytes of its body.

    ``None`` for one that is not good for others: that of an error, one with a word on the connection, one that does not
    say how long its body is.
    """
    around = around_length(opening_of(data, body_bytes))
    usual = status == 200 and data.startswith(b"HTTP/1.1 ") and all(name != b"connection" for name, _ in headers)
    return Opening(*around, status, headers) if around is not None and usual else None


def around_length(opening: bytes) -> tuple[bytes, bytes] | None:
    """A head before and behind the digits of its one content-length; ``None`` where it has not exactly one."""
    lengths = list(_LENGTHS(opening))
    if len(lengths) != 1:
        return None
    return opening[: lengths[0].start(1)], opening[lengths[0].end(1) :]


def opening_of(data: bytes, body_bytes: int) -> bytes:
    """The head in bytes that a parser took for a head and so many bytes of its body; empty where it ends elsewhere."""
    end = data.find(HEAD_END) + len(HEAD_END)
    return data[:end] if end + body_bytes == len(data) else b""
