"""Where an alias stands when a write of it is judged, and the words of a refusal. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from gateway.model import Revision, Target
from gateway.stores.interfaces import Conflict, NotFound


class Deletion(NamedTuple):
    """How an alias was taken out of the table last: the revision that was current, when (Unix seconds), by whom."""

    number: int
    at: float
    author: str


class Standing(NamedTuple):
    """An alias at one moment. ``deletion`` is its last one; it may exist again since."""

    alias: str
    current: Revision | None = None
    deletion: Deletion | None = None

    @property
    def number(self) -> int:
        """The number of the current revision; 0: there is none."""
        return 0 if self.current is None else self.current.number

    @property
    def next_number(self) -> int:
        """The number of the next revision: those of a deleted alias are not given again."""
        return 1 + max(self.number, 0 if self.deletion is None else self.deletion.number)

    def judge(self, expect: int | None) -> None:
        """Raise ``Conflict``, with who changed the alias, when and to what, unless ``expect`` is current."""
        if expect is not None and expect != self.number:
            raise Conflict(f"{self._as_it_is()}; revision {expect} was expected")

    def existing(self, expect: int | None) -> Revision:
        """The current revision. Raises as ``judge`` does, and ``NotFound``."""
        self.judge(expect)
        if self.current is None:
            raise NotFound("no alias has that name")
        return self.current

    def _as_it_is(self) -> str:
        if self.current is not None:
            now = self.current
            aims = _aims(now.targets)
            return f"{self.alias} is at revision {now.number} ({aims}, set by {now.author} at {utc(now.created_at)})"
        if self.deletion is not None:
            number, at, author = self.deletion
            return f"{self.alias} was deleted at revision {number} (by {author} at {utc(at)})"
        return f"{self.alias} does not exist"


def utc(at: float) -> str:
    """Unix seconds as a refusal tells them."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _aims(targets: tuple[Target, ...]) -> str:
    if len(targets) == 1:
        return targets[0].model
    return ", ".join(f"{target.model} ({target.weight})" for target in targets)
