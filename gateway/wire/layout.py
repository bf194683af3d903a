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
_NOWHERE = -1 << 62
_IN_HISTOGRAM = (b"_count", b"_sum")


class Lines(Protocol):
    """A page, by the lines of a name."""

    def lines(self, name: str) -> list[bytes]:
        """What follows the name in each line of exactly this name. The list is not to be changed."""
        ...


class Layout:
    """What the pages of one process have in common.

    ``changed`` are the names that were asked for before and have other lines on the newest page than on the one before
    it; ``None`` where that cannot be said, and all has to be read anew.
    """

    __slots__ = ("_length", "changed", "known")

    def __init__(self) -> None:
        self._length = 0
        self.known: dict[str, _Known] = {}
        self.changed: list[str] | None = None

    def page(self, text: bytes) -> Lines:
        """The next page. What it says of a name is what ``Exposition`` says.

        While a name's lines stay as they were, they are the same list.
        """
        usual = text.endswith(b"\n") and len(text) <= MAX_BYTES
        if not usual or abs(len(text) - self._length) > _SLACK or len(self.known) >= _MOST:
            self.known.clear()
        self._length = len(text)
        if not usual:
            self.changed = None
            return Exposition(text)
        page = _Page(self.known, text)
        self.changed = page.renew() if self.known else None
        return page


class _Known:
    """Where the lines of a name begin, and what follows the name there. Without places it is searched each time.

    Lines that stand together are remembered with what is around them as long as there is no other: ``whole``, which
    begins at ``at``, nowhere for others. Of that, ``head`` is before the figure of an only line and ``tail`` behind it.
    """

    __slots__ = ("at", "head", "lines", "needle", "places", "tail", "whole")

    def __init__(self, needle: bytes, places: list[int], lines: list[bytes]) -> None:
        self.needle = needle
        self.places = places
        self.lines = lines
        self.at = _NOWHERE
        self.whole = self.head = self.tail = b""

    def move(self, places: list[int], lines: list[bytes], text: bytes) -> None:
        """They are elsewhere now, or have other figures."""
        self.places, self.at = places, _NOWHERE
        if lines != self.lines:
            self.lines = lines
        end, figure = places[0], lines[0].rfind(b" ") + 1
        if not figure:
            return
        for place, line in zip(places, lines, strict=True):
            if place != end:
                return
            end += len(self.needle) + len(line)
        before, self.tail = _before(text, self.needle, places[0]), _behind(text, self.needle, end)
        if before >= 0 and self.tail:
            self.at, self.whole = before, text[before:end] + self.tail
            self.head = text[before : places[0] + len(self.needle) + figure]

    def slide(self, by: int) -> None:
        """The lines have moved, with all that is around them."""
        self.at += by
        self.places = [place + by for place in self.places]

    def count(self, text: bytes, by: int) -> int | None:
        """The only line has moved and has another figure: by how much the next name has moved.

        ``None`` if more than that has changed.
        """
        at = self.at + by
        if at < 0 or len(self.places) > 1 or not text.startswith(self.head, at):
            return None
        end = text.find(b"\n", at + len(self.head))
        if not text.startswith(self.tail, end):
            return None
        self.slide(by)
        line = text[self.places[0] + len(self.needle) : end]
        by += len(line) - len(self.lines[0])
        self.lines, self.whole = [line], text[at:end] + self.tail
        return by


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

    def __init__(self, known: dict[str, _Known], text: bytes) -> None:
        self._known = known
        self._text = text
        self._drift = 0
        self._whole: Exposition | None = None

    def renew(self) -> list[str]:
        """Find all names that are known on this page; those whose lines have changed."""
        text, drift, changed = self._text, 0, []
        for name, known in self._known.items():
            at = known.at + drift
            if at >= 0 and text.startswith(known.whole, at):  # so it is with most names of most pages
                if drift:
                    known.slide(drift)
                continue
            before, counted = known.lines, known.count(text, drift)
            if counted is not None:
                drift = counted
                changed.append(name)
                continue
            self._drift = drift
            if not known.places or not self._again(known):
                self._known[name] = self._search(name)
            drift = self._drift
            if self._known[name].lines != before:
                changed.append(name)
        return changed

    def lines(self, name: str) -> list[bytes]:
        """What follows the name in each line of exactly this name."""
        known = self._known.get(name)
        if known is None:
            known = self._search(name)
            if len(self._known) < _MOST:
                self._known[name] = known
        return known.lines

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
