"""The audit trail and the marks of peppers in the SQLite store. Every function runs on the store's worker thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from gateway.stores.chain import sealed
from gateway.stores.interfaces import AuditEntry
from gateway.stores.queries import rows, scalar
from gateway.stores.trail import Change


def append(db: sqlite3.Connection, change: Change) -> None:
    """Add the next line, in the transaction of what it tells of. The schema moves the head with it."""
    number, previous = head(db)
    line = sealed(previous, number + 1, *change)
    db.execute(
        "INSERT INTO audit (number, at, author, verb, subject, detail, previous, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (line.number, line.at, line.author, line.verb, line.subject, line.detail, line.previous, line.hash),
    )


def lines(db: sqlite3.Connection, after: int, limit: int) -> Sequence[AuditEntry]:
    """Lines with a number above ``after``, oldest first."""
    found = rows(
        db,
        "SELECT number, at, author, verb, subject, detail, previous, hash FROM audit "
        "WHERE number > ? ORDER BY number LIMIT ?",
        after,
        limit,
    )
    return tuple(AuditEntry(*row) for row in found)


def head(db: sqlite3.Connection) -> tuple[int, bytes]:
    """Number and hash of the newest line, as kept apart from the lines."""
    ((number, seal),) = rows(db, "SELECT number, hash FROM audit_head")
    return number, seal


def mark_of(db: sqlite3.Connection, version: int) -> bytes | None:
    """The mark kept for a version of the pepper."""
    mark: bytes | None = scalar(db, "SELECT mark FROM pepper_marks WHERE version = ?", version)
    return mark


def keep_mark(db: sqlite3.Connection, version: int, mark: bytes) -> bytes:
    """Keep a mark unless one is kept already; the one that is kept then."""
    db.execute("INSERT INTO pepper_marks (version, mark) VALUES (?, ?) ON CONFLICT DO NOTHING", (version, mark))
    return mark_of(db, version) or mark
