"""What the SQLite store asks of its connection. Every function runs on the store's worker thread.

Functions that write are to be called inside a transaction of ``in_transaction``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

import orjson

from gateway.model import AliasTable, Revision, Target
from gateway.stores.interfaces import Conflict, KeyRecord, NotFound, Versions

T = TypeVar("T")

_KEY_COLUMNS = "id, name, tenant, roles, aliases, created_at, expires_at, revoked_at, pepper_version"
_REVISION_COLUMNS = "alias, number, targets, author, created_at, note, source"


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


def _rows(db: sqlite3.Connection, sql: str, *values: object) -> list[tuple[Any, ...]]:
    return db.execute(sql, values).fetchall()


def versions(db: sqlite3.Connection) -> Versions:
    """Both counters."""
    return Versions(**dict(_rows(db, "SELECT name, value FROM counters")))


def _counter(db: sqlite3.Connection, name: str) -> int:
    return int(scalar(db, "SELECT value FROM counters WHERE name = ?", name))


def _record(
    db: sqlite3.Connection, counter: str, *, at: float, author: str, verb: str, subject: str, detail: object
) -> None:
    """What every write does besides its own change, in the same transaction: the counter and the audit row."""
    db.execute("UPDATE counters SET value = value + 1 WHERE name = ?", (counter,))
    db.execute(
        "INSERT INTO audit (at, author, verb, subject, detail) VALUES (?, ?, ?, ?, ?)",
        (at, author, verb, subject, orjson.dumps(detail).decode()),
    )


def _key(row: tuple[Any, ...]) -> KeyRecord:
    key_id, name, tenant, roles, aliases, *rest = row
    return KeyRecord(key_id, name, tenant, tuple(orjson.loads(roles)), tuple(orjson.loads(aliases)), *rest)


def key_where(db: sqlite3.Connection, where: str, *values: object) -> KeyRecord | None:
    """The first key for which an SQL condition holds. The condition is always a literal of the code."""
    rows = _rows(db, f"SELECT {_KEY_COLUMNS} FROM keys WHERE {where} LIMIT 1", *values)  # noqa: S608
    return _key(rows[0]) if rows else None


def all_keys(db: sqlite3.Connection) -> Sequence[KeyRecord]:
    """All keys, oldest first."""
    return tuple(map(_key, _rows(db, f"SELECT {_KEY_COLUMNS} FROM keys ORDER BY created_at, rowid")))  # noqa: S608


def named_key(db: sqlite3.Connection, name: str) -> KeyRecord:
    """A key by id, else the newest of that name. Raises ``NotFound``."""
    found = key_where(db, "id = ?", name) or key_where(db, "name = ? ORDER BY created_at DESC, rowid DESC", name)
    if found is None:
        raise NotFound("no key has that id or name")
    return found


def add_key(db: sqlite3.Connection, digest: bytes, record: KeyRecord, author: str) -> None:
    """Insert a key. Raises ``Conflict`` as the interface says."""
    live = "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?)"
    taken = key_where(
        db,
        f"id IN (?, ?) OR digest = ? OR (name = ? AND {live})",
        record.id,
        record.name,
        digest,
        record.name,
        record.created_at,
    )
    if taken is not None:
        raise Conflict(f"key {taken.id} ({taken.name}) already has that name or id. Revoke it, or choose another name")
    row = (
        record.id,
        record.name,
        record.tenant,
        orjson.dumps(record.roles).decode(),
        orjson.dumps(record.aliases).decode(),
        record.created_at,
        record.expires_at,
        record.revoked_at,
        record.pepper_version,
        digest,
    )
    db.execute(f"INSERT INTO keys ({_KEY_COLUMNS}, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)  # noqa: S608
    detail = {
        "name": record.name,
        "tenant": record.tenant,
        "roles": record.roles,
        "aliases": record.aliases,
        "expires_at": record.expires_at,
    }
    _record(db, "keys", at=record.created_at, author=author, verb="key.create", subject=record.id, detail=detail)


def revoke_key(db: sqlite3.Connection, key_id: str, at: float, author: str) -> KeyRecord:
    """End a live key; an ended one is given as it is. Raises ``NotFound``."""
    found = named_key(db, key_id)
    if found.revoked_at is None:
        db.execute("UPDATE keys SET revoked_at = ? WHERE id = ?", (at, found.id))
        _record(db, "keys", at=at, author=author, verb="key.revoke", subject=found.id, detail={"name": found.name})
    return found if found.revoked_at is not None else named_key(db, found.id)


def _revision(row: tuple[Any, ...]) -> Revision:
    alias, number, targets, *rest = row
    return Revision(alias, number, tuple(Target(model, weight) for model, weight in orjson.loads(targets)), *rest)


def alias_table(db: sqlite3.Connection) -> AliasTable:
    """The whole table and its generation, of one moment."""
    return in_transaction(db, "DEFERRED", _read_alias_table)


def _read_alias_table(db: sqlite3.Connection) -> AliasTable:
    rows = _rows(
        db,
        f"SELECT {_REVISION_COLUMNS} FROM aliases JOIN revisions "  # noqa: S608
        "ON revisions.alias = aliases.name AND revisions.number = aliases.revision ORDER BY alias",
    )
    current = {row[0]: _revision(row) for row in rows}
    return AliasTable(generation=_counter(db, "aliases"), current=MappingProxyType(current))


def history(db: sqlite3.Connection, alias: str) -> Sequence[Revision]:
    """All revisions of an alias, oldest first. Raises ``NotFound``."""
    rows = _rows(db, f"SELECT {_REVISION_COLUMNS} FROM revisions WHERE alias = ? ORDER BY number", alias)  # noqa: S608
    if not rows:
        raise NotFound("no alias has that name")
    return tuple(map(_revision, rows))


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
    detail = {"revision": number, "from": now, "targets": targets, "note": wanted.note, "source": wanted.source}
    _record(
        db,
        "aliases",
        at=wanted.created_at,
        author=wanted.author,
        verb="alias.set",
        subject=wanted.alias,
        detail=detail,
    )
    return replace(wanted, number=number)


def _lost(db: sqlite3.Connection, alias: str, expect: int, now: int) -> str:
    if now == 0:
        return f"{alias} does not exist; revision {expect} was expected"
    latest = history(db, alias)[-1]
    models = ", ".join(target.model for target in latest.targets)
    return f"{alias} is at revision {now} ({models}, set by {latest.author}); revision {expect} was expected"
