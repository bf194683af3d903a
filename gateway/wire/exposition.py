"""Metrics in Prometheus's text format, read for the few names that are wanted. Pure.

An engine's page has 50 to 100 kB and up to a thousand lines, of which about thirty matter, and it is read each second
from each replica. So nothing is parsed that was not asked for: a name is looked for as bytes at the beginning of a
line, and only its own lines are read. All lines of a family stand together (the format's own rule), so they are looked
for up to the next ``# HELP`` or ``# TYPE``; and names that are asked for in the order of the page are found without
going over it again.

Read: escapes in labels, labels in any order and with blanks, timestamps, exemplars (OpenMetrics), CRLF, a last line
without its end. Not read: lines that begin with blanks, and names in quotes, which no engine writes; such a name is
absent, which whoever expects it will notice.
"""

from __future__ import annotations

import re
from math import nan

MAX_BYTES = 2 * 1024 * 1024  # a page over this is taken as empty: whoever read it may have cut its last line
MAX_LINES = 1024  # of one name, those of names that begin with it included; one per data-parallel rank is usual
MAX_LINE = 16 * 1024  # the longest known, vLLM's cache_config_info, has 1.5 kB
MAX_LABELS = 128  # of one line; that one has 37
UNREADABLE = b""  # a line without a value
_MANY_MARKS = 64

_AFTER_NAME = b"{ \t"
_BEFORE_LABEL = b"{,"
_HEADS = (b"\n# HELP ", b"\n# TYPE ")
_LABEL = re.compile(rb'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"([^"\\]*+(?:\\.[^"\\]*+)*+)"[ \t]*,?')
_BRACES = re.compile(rb'[ \t]*\{(?:[^"}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+\}')
_ESCAPE = re.compile(rb'\\([n"\\])')


class Exposition:
    """One page. Names are found in whatever order they are asked for, fastest in the page's own."""

    def __init__(self, text: bytes) -> None:
        self._text = b"\n%b\n" % text if len(text) <= MAX_BYTES else b"\n"
        # Places before and after the family that was read last, each where some family ends or the page begins. Names
        # with one stem, as a histogram's sum and count, are taken to be of one family.
        self._stem = ""
        self._before = 0
        self._after = 0

    def lines(self, name: str) -> list[bytes]:
        """What follows the name in each line of exactly this name; nothing if it is absent.

        More than ``MAX_LINES`` end in one that is ``UNREADABLE``.
        """
        text, needle = self._text, b"\n" + name.encode()
        length = len(needle)
        stem = name.rpartition("_")[0]
        start = self._before if stem == self._stem else self._after
        at = text.find(needle, start)
        if at < 0 or text[at + length] not in _AFTER_NAME:
            at = self._search(needle, at, start)
            if at < 0:
                return []
        after = at + length
        mark = text.find(b"#", after)  # one byte is found much faster than several, and is seldom another
        end = mark - 1 if text.startswith(_HEADS, mark - 1) else self._family_end(mark)
        self._stem, self._before, self._after = stem, start if at >= start else 0, end
        found = [text[after : text.find(b"\n", after)]]
        at = text.find(needle, after, end)
        return found if at < 0 else self._more(needle, at, end, found)

    def _more(self, needle: bytes, at: int, end: int, found: list[bytes]) -> list[bytes]:
        """``found`` and the lines from ``at`` on."""
        text, length = self._text, len(needle)
        for _ in range(MAX_LINES - 1):
            after = at + length
            if text[after] in _AFTER_NAME:
                found.append(text[after : text.find(b"\n", after)])
            at = text.find(needle, after, end)
            if at < 0:
                return found
        found.append(UNREADABLE)
        return found

    def _search(self, needle: bytes, at: int, start: int) -> int:
        """Where the name's first line begins: at ``at``, after it, or else before ``start``; -1 if nowhere."""
        at = self._exact(needle, at, len(self._text))
        if at >= 0 or not start:
            return at
        end = start + len(needle)
        return self._exact(needle, self._text.find(needle, 0, end), end)

    def _exact(self, needle: bytes, at: int, end: int) -> int:
        """The first place from ``at`` on where the name is whole, and not the beginning of another."""
        text, length = self._text, len(needle)
        for _ in range(MAX_LINES):
            if at < 0 or text[at + length] in _AFTER_NAME:
                return at
            at = text.find(needle, at + length, end)
        return -1

    def _family_end(self, at: int) -> int:
        """Where the family ends whose first mark, at ``at``, may be another thing's."""
        text = self._text
        for _ in range(_MANY_MARKS):
            if at < 0:
                return len(text)
            if text.startswith(_HEADS, at - 1):
                return at - 1
            at = text.find(b"#", at + 1)
        end = text.find(b"\n# TYPE ", at)
        return len(text) if at < 0 or end < 0 else end


def value(line: bytes) -> float:
    """The number in a line, after its labels and before a timestamp; NaN is also what is none."""
    if len(line) > MAX_LINE:
        return nan
    if b"#" in line:  # in a label, or before an exemplar, which has braces of its own
        braces = _BRACES.match(line)
        rest = line[braces.end() :] if braces else line
    else:
        rest = line[line.rfind(b"}") + 1 :]
    try:
        if b"_" not in rest:
            return float(rest)
    except ValueError:
        pass
    words = rest.split(None, 1)
    return number(words[0]) if words else nan


def number(text: bytes) -> float:
    """The number written there; NaN is also what is none, as Python's ``1_000``."""
    if b"_" in text:
        return nan
    try:
        return float(text)
    except ValueError:
        return nan


def label(line: bytes, name: str) -> str | None:
    """The value of one label of a line; ``None`` where it has none of that name."""
    key = name.encode()
    begin = line.find(key + b'="')
    if begin < 0 and key not in line:
        return None
    plain = b"\\" not in line and b"#" not in line  # no escapes, and no exemplar with labels of its own
    # Where there are no escapes, each quote is an end of a value; after an even number of them no value is open.
    if plain and begin > 0 and line[begin - 1] in _BEFORE_LABEL and not line.count(b'"', 0, begin) % 2:
        start = begin + len(key) + 2
        end = line.find(b'"', start)
        if end >= 0:
            return line[start:end].decode("utf-8", "replace")
    return labels(line).get(name)


def labels(line: bytes) -> dict[str, str]:
    """A line's labels, ``MAX_LABELS`` at most, up to the first thing that is none; of two with one name, the first."""
    found: dict[str, str] = {}
    opening = line.find(b"{")
    if len(line) > MAX_LINE or opening < 0 or line[:opening].strip(b" \t"):
        return found
    at = opening + 1
    for _ in range(MAX_LABELS):
        match = _LABEL.match(line, at)
        if match is None:
            break
        at = match.end()
        found.setdefault(match[1].decode(), _ESCAPE.sub(_unescape, match[2]).decode("utf-8", "replace"))
    return found


def _unescape(match: re.Match[bytes]) -> bytes:
    char: bytes = match[1]
    return b"\n" if char == b"n" else char
