"""Aliases in the SQLite store. Every function runs on the store's worker thread.

Functions that write are to be called inside a transaction of ``in_transaction``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import orjson

from gateway.model import AliasTable, Revision, Target
from gateway.stores import trail
from gateway.stores.audit_queries import append
from gateway.stores.interfaces import Conflict, NotFound
from gateway.stores.queries import count, in_transaction, move, rows, scalar

_REVISION_COLUMNS = "alias, number, targets, author, created_at, note, source"


def _revision(row: tuple[Any, ...]) -> Revision:
    alias, number, targets, *rest = row
    return Revision(alias, number, tuple(Target(model, weight) for model, weight in orjson.loads(targets)), *rest)


def alias_table(db: sqlite3.Connection) -> AliasTable:
    """The whole table and its generation, of one moment."""
    return in_transaction(db, "DEFERRED", _read_alias_table)


def _read_alias_table(db: sqlite3.Connection) -> AliasTable:
    found = rows(
        db,
        f"SELECT {_REVISION_COLUMNS} FROM aliases JOIN revisions "  # noqa: S608
        "ON revisions.alias = aliases.name AND revisions.number = aliases.revision ORDER BY alias",
    )
    current = {row[0]: _revision(row) for row in found}
    return AliasTable(generation=count(db, "aliases"), current=MappingProxyType(current))


def history(db: sqlite3.Connection, alias: str) -> Sequence[Revision]:
    """All revisions of an alias, oldest first. Raises ``NotFound``."""
    found = rows(db, f"SELECT {_REVISION_COLUMNS} FROM revisions WHERE alias = ? ORDER BY number", alias)  # noqa: S608
    if not found:
        raise NotFound("no alias has that name")
    return tuple(map(_revision, found))


def assign_alias(db: sqlite3.Connection, wanted: Revision, expect: int | None) -> Revision:
    """Append ``wanted`` under the next number and make it current. Raises ``Conflict``: ``expect`` is not current."""
    now = scalar(db, "SELECT revision FROM aliases WHERE name = ?", wanted.alias) or 0
    if expect is not None and expect != now:
        raise Conflict(_lost(db, wanted.alias, expect, now))
    number = 1 + (scalar(db, "SELECT max(number) FROM revisions WHERE alias = ?", wanted.alias) or 0)
    targets = [[target.model, target.weight] for target in wanted.targets]
    row = (wanted.alias, number, orjson.dumps(targets).decode(), wanted.author, wanted.created_at)
    db.execute(
        f"INSERT INTO revisions ({_REVISION_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
        (*row, wanted.note, wanted.source),
    )
    db.execute("INSERT OR REPLACE INTO aliases (name, revision) VALUES (?, ?)", (wanted.alias, number))
    made = replace(wanted, number=number)
    move(db, "aliases")
    append(db, trail.alias_set(made, now))
    return made


def _lost(db: sqlite3.Connection, alias: str, expect: int, now: int) -> str:
    if now == 0:
        return f"{alias} does not exist; revision {expect} was expected"
    latest = history(db, alias)[-1]
    models = ", ".join(target.model for target in latest.targets)
    return f"{alias} is at revision {now} ({models}, set by {latest.author}); revision {expect} was expected"
