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
    """Where the lines of a name begin, and what follows the name there.

    ``whole`` is the first line with what is around it. Without places, the name is searched for each time.
    """

    __slots__ = ("lines", "needle", "places", "whole")

    def __init__(self, needle: bytes, places: list[int], lines: list[bytes]) -> None:
        self.needle = needle
        self.places = places
        self.lines = lines
        self.whole = b"%b%b\n" % (needle, lines[0]) if places else b""


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
        if known is not None and known.places and (self._same(known) or self._again(known)):
            return known.lines
        found = self._search(name)
        if known is not None or len(self._known) < _MOST:
            self._known[name] = found
        return found.lines

    def _same(self, known: _Known) -> bool:
        """Whether the name has one line, and that is what it was: so it is with most names of most pages."""
        at = known.places[0] + self._drift
        if len(known.places) > 1 or at < 0 or not self._text.startswith(known.whole, at):
            return False
        if self._drift:
            known.places[0] = at
        return not self._more(known.needle, at, at + len(known.whole) - 1)

    def _more(self, needle: bytes, begin: int, end: int) -> bool:
        """Whether the line before ``begin``, or the one behind ``end``, may be one more of the name."""
        text = self._text
        return text.startswith(needle, end) or text.startswith(needle, max(text.rfind(b"\n", 0, begin), 0))

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
        if self._more(needle, places[0], end):
            return False
        self._drift, known.places = drift, places
        if lines != known.lines:
            known.lines, known.whole = lines, text[places[0] : places[0] + length + len(lines[0]) + 1]
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
