"""What every group of queries of the SQLite store is made with. Every function runs on the store's worker thread.

Functions that write are to be called inside a transaction of ``in_transaction``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields
from typing import Any, TypeVar

from gateway.stores.interfaces import Versions

T = TypeVar("T")

_COUNTERS = frozenset(field.name for field in fields(Versions))


def in_transaction(db: sqlite3.Connection, kind: str, work: Callable[[sqlite3.Connection], T]) -> T:
    """Do the work in one transaction of that kind (``IMMEDIATE``, ``DEFERRED``), whole or not at all."""
    db.execute(f"BEGIN {kind}")
    try:
        result = work(db)
        db.execute("COMMIT")
    except BaseException:
        # A full disk makes SQLite roll back by itself; a second rollback would raise and hide the cause.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return result


def scalar(db: sqlite3.Connection, sql: str, *values: object) -> Any:
    """The first column of the first row, or ``None``."""
    with closing(db.execute(sql, values)) as cursor:
        row = cursor.fetchone()
    return None if row is None else row[0]


def rows(db: sqlite3.Connection, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """All rows."""
    return db.execute(sql, values).fetchall()


def versions(db: sqlite3.Connection) -> Versions:
    """All counters. One that a newer gateway has put into the file meanwhile is let go."""
    found = rows(db, "SELECT name, value FROM counters")
    return Versions(**{name: value for name, value in found if name in _COUNTERS})


def count(db: sqlite3.Connection, name: str) -> int:
    """One counter."""
    return int(scalar(db, "SELECT value FROM counters WHERE name = ?", name))


def move(db: sqlite3.Connection, name: str) -> None:
    """Move a counter by one: whoever polls it learns of a write."""
    db.execute("UPDATE counters SET value = value + 1 WHERE name = ?", (name,))
