"""Aliases in the SQLite store. Every function runs on the store's worker thread.

Functions that write are to be called inside a transaction of ``in_transaction``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import orjson

from gateway.model import AliasTable, Revision, Target
from gateway.stores import trail
from gateway.stores.audit_queries import append
from gateway.stores.interfaces import NotFound
from gateway.stores.queries import count, in_transaction, move, rows
from gateway.stores.standing import Deletion, Standing

_REVISION_COLUMNS = "alias, number, targets, author, created_at, note, source, canary_of"
_CURRENT = "ON revisions.alias = aliases.name AND revisions.number = aliases.revision"


class _Aims(dict[str, tuple[Target, ...]]):
    """Targets by their JSON text: the many revisions of a table that aim at the same share one value of it."""

    def __missing__(self, text: str) -> tuple[Target, ...]:
        self[text] = made = tuple(Target(model, weight) for model, weight in orjson.loads(text))
        return made


def _revisions(found: Iterable[tuple[Any, ...]]) -> list[Revision]:
    aims = _Aims()
    return [Revision(alias, number, aims[targets], *rest) for alias, number, targets, *rest in found]


def alias_table(db: sqlite3.Connection) -> AliasTable:
    """The whole table and its generation, of one moment."""
    return in_transaction(db, "DEFERRED", _read_alias_table)


def _read_alias_table(db: sqlite3.Connection) -> AliasTable:
    query = f"SELECT {_REVISION_COLUMNS} FROM aliases JOIN revisions {_CURRENT} ORDER BY alias"  # noqa: S608
    current = {revision.alias: revision for revision in _revisions(rows(db, query))}
    return AliasTable(generation=count(db, "aliases"), current=MappingProxyType(current))


def history(db: sqlite3.Connection, alias: str) -> Sequence[Revision]:
    """All revisions of an alias, oldest first. Raises ``NotFound``."""
    found = rows(db, f"SELECT {_REVISION_COLUMNS} FROM revisions WHERE alias = ? ORDER BY number", alias)  # noqa: S608
    if not found:
        raise NotFound("no alias has that name")
    return tuple(_revisions(found))


def revision(db: sqlite3.Connection, alias: str, number: int) -> Revision:
    """Any revision of an alias, deleted or not. Raises ``NotFound``."""
    query = f"SELECT {_REVISION_COLUMNS} FROM revisions WHERE alias = ? AND number = ?"  # noqa: S608
    for found in _revisions(rows(db, query, alias, number)):
        return found
    raise NotFound("no revision of that alias has that number")


def assign_alias(db: sqlite3.Connection, wanted: Revision, expect: int | None) -> Revision:
    """Append ``wanted`` under the next number and make it current. Raises ``Conflict``: ``expect`` is not current."""
    before = _standing(db, wanted.alias)
    before.judge(expect)
    made = replace(wanted, number=before.next_number)
    targets = [[target.model, target.weight] for target in made.targets]
    row = (made.alias, made.number, orjson.dumps(targets).decode(), made.author, made.created_at)
    db.execute(
        f"INSERT INTO revisions ({_REVISION_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
        (*row, made.note, made.source, made.canary_of),
    )
    db.execute("INSERT OR REPLACE INTO aliases (name, revision) VALUES (?, ?)", (made.alias, made.number))
    _tell(db, trail.alias_set(made, before.current))
    return made


def delete_alias(
    db: sqlite3.Connection, alias: str, *, author: str, at: float, note: str, expect: int | None
) -> Revision:
    """Take an alias out of the table; the revision that was current. Raises ``NotFound``, ``Conflict``."""
    last = _standing(db, alias).existing(expect)
    db.execute("DELETE FROM aliases WHERE name = ?", (alias,))
    db.execute(
        "INSERT OR REPLACE INTO alias_deletions (alias, revision, deleted_at, author) VALUES (?, ?, ?, ?)",
        (alias, last.number, at, author),
    )
    _tell(db, trail.alias_deleted(last, at, author, note))
    return last


def note_uses(db: sqlite3.Connection, used: Mapping[tuple[str, int], float]) -> None:
    """Keep when revisions last served, unless a later time is known."""
    db.executemany(
        "INSERT INTO alias_uses (alias, revision, used_at) VALUES (?, ?, ?) "
        "ON CONFLICT DO UPDATE SET used_at = max(used_at, excluded.used_at)",
        ((alias, number, at) for (alias, number), at in used.items()),
    )


def uses(db: sqlite3.Connection, alias: str) -> Mapping[int, float]:
    """When each revision of an alias last served, in the order of their numbers."""
    return dict(rows(db, "SELECT revision, used_at FROM alias_uses WHERE alias = ? ORDER BY revision", alias))


def _standing(db: sqlite3.Connection, alias: str) -> Standing:
    query = f"SELECT {_REVISION_COLUMNS} FROM aliases JOIN revisions {_CURRENT} WHERE name = ?"  # noqa: S608
    current = _revisions(rows(db, query, alias))
    deleted = rows(db, "SELECT revision, deleted_at, author FROM alias_deletions WHERE alias = ?", alias)
    return Standing(alias, current[0] if current else None, Deletion(*deleted[0]) if deleted else None)


def _tell(db: sqlite3.Connection, change: trail.Change) -> None:
    move(db, "aliases")
    append(db, change)
