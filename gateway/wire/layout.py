"""Reading one process's pages of metrics again and again, faster than each by itself. Pure.

Such pages hold the same lines in the same order for hours, and only figures grow. So where a name's lines stood is
remembered, and the next page is looked at there; where something else stands, the name is searched for as on any page
(``exposition``). A remembered place is believed only if the name stands there. That a name has got one more line is
seen around those that are known; where lines of a name do not stand together, as with a histogram for each rank, by a
page that has become longer than figures make it.
"""

from __future__ import annotations

from typing import Protocol

from gateway.wire.exposition import MAX_BYTES, Exposition

_AFTER_NAME = b"{ \t"
_SLACK = 128  # bytes by which figures may lengthen a page between two looks; a histogram is longer, a line may be not
_MOST = 128  # names whose places are remembered; each engine is asked for about thirty
_NEVER = b"\n\0"  # stands on no page
_IN_HISTOGRAM = (b"_count", b"_sum")


class Lines(Protocol):
    """A page, by the lines of a name."""

    def lines(self, name: str) -> list[bytes]:
        """What follows the name in each line of exactly this name. The list is not to be changed."""
        ...


class Layout:
    """What the pages of one process have in common."""

    __slots__ = ("_length", "known")

    def __init__(self) -> None:
        self._length = 0
        self.known: dict[str, _Known] = {}

    def page(self, text: bytes) -> Lines:
        """The next page. What it says of a name is what ``Exposition`` says.

        While a name's lines stay as they were, they are the same list.
        """
        if not text.endswith(b"\n") or len(text) > MAX_BYTES:
            return Exposition(text)
        if abs(len(text) - self._length) > _SLACK:
            self.known.clear()
        self._length = len(text)
        return _Page(self, text)


class _Known:
    """Where the lines of a name begin, and what follows the name there. Without places it is searched each time.

    ``whole``, which begins at ``at``, is an only line that did not change from one page to the next, and what is around
    it as long as it stays the only one.
    """

    __slots__ = ("at", "lines", "needle", "places", "whole")

    def __init__(self, needle: bytes, places: list[int], lines: list[bytes]) -> None:
        self.needle = needle
        self.places = places
        self.lines = lines
        self.at = 0
        self.whole = _NEVER

    def move(self, places: list[int], lines: list[bytes], text: bytes) -> None:
        """They are elsewhere now, or have other figures."""
        self.places, self.whole = places, _NEVER
        if lines != self.lines:
            self.lines = lines
        elif len(places) == 1:
            end = places[0] + len(self.needle) + len(lines[0])
            before, behind = _before(text, self.needle, places[0]), _behind(text, self.needle, end)
            if before >= 0 and behind:
                self.at, self.whole = before, text[before:end] + behind


def _before(text: bytes, needle: bytes, at: int) -> int:
    """Where that begins which shows that no other line of the name is before ``at``; -1 where nothing does.

    A comment shows it. Before the count and the sum of a histogram there is another part of it, with changing figures.
    """
    line = text.rfind(b"\n", 0, at)
    if line >= 0 and text.startswith(b"\n#", line):
        return line
    stem, mark, _ = needle.rpartition(b"_")
    return at if line >= 0 and needle.endswith(_IN_HISTOGRAM) and text.startswith(stem + mark, line) else -1


def _behind(text: bytes, needle: bytes, end: int) -> bytes:
    """As much of what stands behind a line as shows that it is no other line of the name; nothing where it may be."""
    following = text[end : end + len(needle) + 1]
    for index, (one, other) in enumerate(zip(following, needle, strict=False)):
        if one != other:
            return following[: index + 1]
    return following if len(following) > len(needle) and following[-1] not in _AFTER_NAME else b""


class _Page:
    """One page of a known layout. ``_drift`` is by how much the name before had moved."""

    __slots__ = ("_drift", "_known", "_text", "_whole")

    def __init__(self, layout: Layout, text: bytes) -> None:
        self._known = layout.known
        self._text = text
        self._drift = 0
        self._whole: Exposition | None = None

    def lines(self, name: str) -> list[bytes]:
        """What follows the name in each line of exactly this name."""
        known = self._known.get(name)
        if known is not None:
            at = known.at + self._drift
            if self._text.startswith(known.whole, at if at > 0 else 0):  # so it is with most names of most pages
                if self._drift:
                    known.at = at
                    known.places[0] += self._drift
                return known.lines
            if known.places and self._again(known):
                return known.lines
        found = self._search(name)
        if known is not None or len(self._known) < _MOST:
            self._known[name] = found
        return found.lines

    def _again(self, known: _Known) -> bool:
        """Find the lines near their places, as they are now; false if one of them is not there."""
        needle, text, drift, last, end = known.needle, self._text, self._drift, -1, 0
        length = len(needle)
        places: list[int] = []
        lines: list[bytes] = []
        for place in known.places:
            at = max(place + drift, 0)
            if not text.startswith(needle, at):
                at = text.find(needle, max(at - _SLACK, 0), at + length + _SLACK)
                drift = at - place
            after = at + length
            if at <= last or text[after] not in _AFTER_NAME:
                return False
            end = text.find(b"\n", after)
            places.append(at)
            lines.append(text[after:end])
            last = at
        if text.startswith(needle, end) or text.startswith(needle, max(text.rfind(b"\n", 0, places[0]), 0)):
            return False
        self._drift = drift
        known.move(places, lines, text)
        return True

    def _search(self, name: str) -> _Known:
        """The lines as any page is searched for them, and where each of them begins."""
        if self._whole is None:
            self._whole = Exposition(self._text)
        lines, needle = self._whole.lines(name), b"\n" + name.encode()
        places: list[int] = []
        at = -1
        for line in lines:
            at = self._text.find(b"%b%b\n" % (needle, line), at + 1)
            if at < 0:  # it begins the page, or is none
                return _Known(needle, [], lines)
            places.append(at)
        return _Known(needle, places, lines)
