"""Running instances in the SQLite store. Every function runs on the store's worker thread.

Functions that write are to be called inside a transaction of ``in_transaction``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import astuple, replace

from gateway.model import Instance
from gateway.stores.presence import MEMORY, remembered
from gateway.stores.queries import rows

_COLUMNS = "id, name, version, admin_url, started_at, seen_at, generation, table_age, degraded"


def beat(db: sqlite3.Connection, instance: Instance) -> None:
    """Keep what an instance tells, and forget those that have been silent for long."""
    db.execute(
        f"INSERT OR REPLACE INTO instances ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
        astuple(instance),
    )
    db.execute("DELETE FROM instances WHERE seen_at < (SELECT max(seen_at) FROM instances) - ?", (MEMORY,))


def instances(db: sqlite3.Connection) -> Sequence[Instance]:
    """All that are remembered, oldest first."""
    found = rows(db, f"SELECT {_COLUMNS} FROM instances")  # noqa: S608
    return remembered(replace(Instance(*row), degraded=bool(row[-1])) for row in found)


def forget(db: sqlite3.Connection, instance_id: str) -> None:
    """Remove one that has ended."""
    db.execute("DELETE FROM instances WHERE id = ?", (instance_id,))
