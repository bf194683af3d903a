"""The tables of the SQLite store, as the steps that lead from an empty file to the current schema.

A step is never edited once released: a change of the schema is a new step. The number of steps is the schema version,
kept in ``user_version``.
"""

from __future__ import annotations

APPLICATION_ID = 0x67774C4D
"""Marks a file as ours (``application_id``), so that a wrong path cannot put tables into another program's database."""

_APPEND_ONLY = "BEGIN SELECT RAISE(ABORT, 'the audit trail is append-only'); END"

_FIRST = (
    """
    CREATE TABLE counters (
        name  TEXT PRIMARY KEY,
        value INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    "INSERT INTO counters (name, value) VALUES ('keys', 0), ('aliases', 0)",
    """
    CREATE TABLE keys (
        id             TEXT NOT NULL UNIQUE,
        name           TEXT NOT NULL,
        tenant         TEXT NOT NULL,
        roles          TEXT NOT NULL,
        aliases        TEXT NOT NULL,
        created_at     REAL NOT NULL,
        expires_at     REAL,
        revoked_at     REAL,
        pepper_version INTEGER NOT NULL,
        digest         BLOB NOT NULL UNIQUE
    ) STRICT
    """,
    "CREATE INDEX keys_by_name ON keys (name)",
    """
    CREATE TABLE revisions (
        alias      TEXT NOT NULL,
        number     INTEGER NOT NULL,
        targets    TEXT NOT NULL,
        author     TEXT NOT NULL,
        created_at REAL NOT NULL,
        note       TEXT NOT NULL,
        source     TEXT NOT NULL,
        PRIMARY KEY (alias, number)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE aliases (
        name     TEXT PRIMARY KEY,
        revision INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE audit (
        id      INTEGER PRIMARY KEY AUTOINCREMENT,
        at      REAL NOT NULL,
        author  TEXT NOT NULL,
        verb    TEXT NOT NULL,
        subject TEXT NOT NULL,
        detail  TEXT NOT NULL
    ) STRICT
    """,
    f"CREATE TRIGGER audit_keeps_rows BEFORE DELETE ON audit {_APPEND_ONLY}",
    f"CREATE TRIGGER audit_keeps_values BEFORE UPDATE ON audit {_APPEND_ONLY}",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (_FIRST,)
