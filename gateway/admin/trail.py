"""The audit trail as shown, and the walk that proves it whole. Once for the admin API and the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal, Protocol

from pydantic import Field

from gateway.admin.schemas import PAGE, Closed, Query
from gateway.stores.chain import GENESIS, first_break
from gateway.stores.interfaces import AuditEntry

Fault = Literal["changed", "cut", "ahead", "expected"]
WORDS: Mapping[Fault, str] = MappingProxyType(
    {
        "changed": "the line, or the one before it, is not what was written",
        "cut": "lines are missing from here to the end",
        "ahead": "the line was added without the store's knowledge",
        "expected": "the trail is not the one whose hash was given: it was rewritten from the start or cut",
    }
)
"""What a fault of the trail means."""

_POINT = r"(?:0|[1-9][0-9]{0,17}):[0-9a-f]{64}"
_HASH = r"^[0-9a-f]{64}$"


class Point(Closed):
    """A line's number and hash, in hexadecimal: whoever knows it can hold the trail up to there against it."""

    number: int
    hash: Annotated[str, Field(pattern=_HASH)]


class AuditView(Closed):
    """One line. ``detail`` is JSON text, exactly as it was hashed; ``at`` is Unix seconds."""

    number: int
    at: float
    author: str
    verb: str
    subject: str
    detail: str
    previous: Annotated[str, Field(pattern=_HASH)]
    hash: Annotated[str, Field(pattern=_HASH)]


class AuditPage(Closed):
    """Lines, oldest first, and the newest line of all as the store knows it."""

    lines: list[AuditView]
    head: Point


class AuditPaging(Query):
    """Which lines: at most ``limit`` with a number above ``after``."""

    after: Annotated[int, Field(ge=0, le=2**62)] = 0
    limit: Annotated[int, Field(ge=1, le=PAGE)] = PAGE


class AuditExpectation(Query):
    """What the trail is held against besides itself: a point ``NUMBER:HASH`` that was kept elsewhere."""

    expect: Annotated[str, Field(pattern=f"^{_POINT}$")] | None = None


class VerdictView(Closed):
    """What a walk found: ``whole``, or the number of the first line that is not as it should be, and why.

    ``lines`` are those that are whole, ``head`` the hash of the last of them.
    """

    whole: bool
    lines: int
    head: str
    broken_at: int | None
    fault: Fault | None


class Trail(Protocol):
    """What the walk needs of a store. Both raise what the store raises."""

    async def audit(self, *, after: int = 0, limit: int = 1_000) -> Sequence[AuditEntry]:
        """Lines with a number above ``after``, oldest first."""
        ...

    async def audit_head(self) -> tuple[int, bytes]:
        """Number and hash of the newest line, kept apart from the lines."""
        ...


@dataclass(slots=True)
class _Walk:
    number: int = 0
    seal: bytes = GENESIS

    def broken(self, number: int, fault: Fault) -> VerdictView:
        return VerdictView(whole=False, lines=self.number, head=self.seal.hex(), broken_at=number, fault=fault)

    def whole(self) -> VerdictView:
        return VerdictView(whole=True, lines=self.number, head=self.seal.hex(), broken_at=None, fault=None)


def point(text: str) -> tuple[int, bytes]:
    """A point from ``NUMBER:HASH``. Raises ``ValueError`` without quoting it."""
    if re.fullmatch(_POINT, text) is None:
        raise ValueError("expected NUMBER:HASH as 'gateway audit verify' prints it")
    number, _, seal = text.partition(":")
    return int(number), bytes.fromhex(seal)


async def verify(trail: Trail, expect: tuple[int, bytes] | None = None, *, page: int = PAGE) -> VerdictView:
    """Walk the whole trail in constant memory; lines that are written meanwhile are walked as well.

    The chain finds any line that was changed, removed or put in between; the head, lines cut off at the end. Who can
    write both can write another whole trail: only a hash kept elsewhere (``expect``) finds that.
    """
    head = await trail.audit_head()
    walk = _Walk()
    marks: list[tuple[tuple[int, bytes], Fault]] = [(head, "changed")]
    if expect is not None:
        marks.append((expect, "expected"))
    while lines := await trail.audit(after=walk.number, limit=page):
        verdict = _walked(walk, lines, marks)
        if verdict is not None:
            return verdict
    if walk.number < head[0]:
        return walk.broken(walk.number + 1, "cut")
    if expect is not None and walk.number < expect[0]:
        return walk.broken(walk.number + 1, "expected")
    known, _ = head if walk.number == head[0] else await trail.audit_head()
    return walk.broken(known + 1, "ahead") if walk.number > known else walk.whole()


def _walked(
    walk: _Walk, lines: Sequence[AuditEntry], marks: Sequence[tuple[tuple[int, bytes], Fault]]
) -> VerdictView | None:
    """Move the walk over some lines. A verdict ends it."""
    for line in lines:
        if first_break((line,), walk.number, walk.seal) is not None:
            return walk.broken(walk.number + 1, "changed")
        for (number, seal), fault in marks:
            if number == line.number and seal != line.hash:
                return walk.broken(number, fault)
        walk.number, walk.seal = line.number, line.hash
    return None


def audit_view(entry: AuditEntry) -> AuditView:
    """A line as shown."""
    return AuditView(
        number=entry.number,
        at=entry.at,
        author=entry.author,
        verb=entry.verb,
        subject=entry.subject,
        detail=entry.detail,
        previous=entry.previous.hex(),
        hash=entry.hash.hex(),
    )


def audit_entry(view: AuditView) -> AuditEntry:
    """A line as the chain knows it."""
    return AuditEntry(
        number=view.number,
        at=view.at,
        author=view.author,
        verb=view.verb,
        subject=view.subject,
        detail=view.detail,
        previous=bytes.fromhex(view.previous),
        hash=bytes.fromhex(view.hash),
    )
