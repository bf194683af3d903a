"""The tables of the SQLite store, as the steps that lead from an empty file to the current schema.

A step is never edited once released: a change of the schema is a new step. The number of steps is the schema version,
kept in ``user_version``. A step is a run of SQL statements and of functions for what SQL cannot say; all steps that a
file needs run in one transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from gateway.stores.chain import GENESIS, entry_hash

Part = str | Callable[[sqlite3.Connection], None]
"""What a step is made of."""

APPLICATION_ID = 0x67774C4D
"""Marks a file as ours (``application_id``), so that a wrong path cannot put tables into another program's database."""

_APPEND_ONLY = "BEGIN SELECT RAISE(ABORT, 'the audit trail is append-only'); END"

_FIRST: tuple[Part, ...] = (
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


def _chain_audit(db: sqlite3.Connection) -> None:
    """Copy the lines of the first schema into the chain, in their order."""
    previous = GENESIS
    found = db.execute("SELECT at, author, verb, subject, detail FROM audit_unchained ORDER BY id")
    for number, (at, author, verb, subject, detail) in enumerate(found, 1):
        line = (number, at, author, verb, subject, detail)
        seal = entry_hash(previous, *line)
        db.execute("INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*line, previous, seal))
        previous = seal


_SEVERAL_SECRETS: tuple[Part, ...] = (
    "ALTER TABLE keys RENAME TO keys_of_one_secret",
    """
    CREATE TABLE keys (
        id                  TEXT NOT NULL UNIQUE,
        name                TEXT NOT NULL,
        tenant              TEXT NOT NULL,
        roles               TEXT NOT NULL,
        aliases             TEXT NOT NULL,
        created_at          REAL NOT NULL,
        expires_at          REAL,
        revoked_at          REAL,
        requests_per_minute INTEGER,
        tokens_per_minute   INTEGER,
        tokens_per_day      INTEGER,
        concurrency         INTEGER
    ) STRICT
    """,
    """
    INSERT INTO keys (rowid, id, name, tenant, roles, aliases, created_at, expires_at, revoked_at)
    SELECT rowid, id, name, tenant, roles, aliases, created_at, expires_at, revoked_at FROM keys_of_one_secret
    """,
    """
    CREATE TABLE key_secrets (
        key_id         TEXT NOT NULL,
        digest         BLOB NOT NULL UNIQUE,
        created_at     REAL NOT NULL,
        expires_at     REAL,
        pepper_version INTEGER NOT NULL
    ) STRICT
    """,
    """
    INSERT INTO key_secrets (key_id, digest, created_at, expires_at, pepper_version)
    SELECT id, digest, created_at, revoked_at, pepper_version FROM keys_of_one_secret ORDER BY rowid
    """,
    "DROP TABLE keys_of_one_secret",
    "CREATE INDEX keys_by_name ON keys (name)",
    "CREATE INDEX secrets_by_key ON key_secrets (key_id)",
    """
    CREATE TABLE pepper_marks (
        version INTEGER PRIMARY KEY,
        mark    BLOB NOT NULL
    ) STRICT
    """,
)

# REPLACE deletes without the trigger for deletions, so what is put in is judged too: only the next line may come.
_CHAINED_AUDIT: tuple[Part, ...] = (
    "ALTER TABLE audit RENAME TO audit_unchained",
    """
    CREATE TABLE audit (
        number   INTEGER PRIMARY KEY,
        at       REAL NOT NULL,
        author   TEXT NOT NULL,
        verb     TEXT NOT NULL,
        subject  TEXT NOT NULL,
        detail   TEXT NOT NULL,
        previous BLOB NOT NULL,
        hash     BLOB NOT NULL
    ) STRICT
    """,
    """
    CREATE TABLE audit_head (
        one    INTEGER PRIMARY KEY CHECK (one = 1),
        number INTEGER NOT NULL,
        hash   BLOB NOT NULL
    ) STRICT
    """,
    "INSERT INTO audit_head (one, number, hash) VALUES (1, 0, zeroblob(32))",
    "CREATE TRIGGER audit_takes_the_next_line BEFORE INSERT ON audit "  # noqa: S608
    f"WHEN (NEW.number, NEW.previous) IS NOT (SELECT number + 1, hash FROM audit_head) {_APPEND_ONLY}",
    """
    CREATE TRIGGER audit_moves_its_head AFTER INSERT ON audit
    BEGIN UPDATE audit_head SET number = NEW.number, hash = NEW.hash; END
    """,
    _chain_audit,
    "DROP TABLE audit_unchained",
    f"CREATE TRIGGER audit_keeps_rows BEFORE DELETE ON audit {_APPEND_ONLY}",
    f"CREATE TRIGGER audit_keeps_values BEFORE UPDATE ON audit {_APPEND_ONLY}",
    f"CREATE TRIGGER audit_keeps_its_head BEFORE DELETE ON audit_head {_APPEND_ONLY}",
    "CREATE TRIGGER audit_head_goes_on BEFORE UPDATE ON audit_head "
    f"WHEN NEW.number IS NOT OLD.number + 1 {_APPEND_ONLY}",
)

# A deleted alias has no row in ``aliases``; its revisions stay, and its last deletion is kept to tell who did it.
_ALIASES_WITH_A_HISTORY: tuple[Part, ...] = (
    "ALTER TABLE revisions ADD COLUMN canary_of INTEGER",
    """
    CREATE TABLE alias_deletions (
        alias      TEXT PRIMARY KEY,
        revision   INTEGER NOT NULL,
        deleted_at REAL NOT NULL,
        author     TEXT NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE alias_uses (
        alias    TEXT NOT NULL,
        revision INTEGER NOT NULL,
        used_at  REAL NOT NULL,
        PRIMARY KEY (alias, revision)
    ) STRICT, WITHOUT ROWID
    """,
)

_INSTANCES: tuple[Part, ...] = (
    """
    CREATE TABLE instances (
        id         TEXT PRIMARY KEY,
        name       TEXT NOT NULL,
        version    TEXT NOT NULL,
        admin_url  TEXT NOT NULL,
        started_at REAL NOT NULL,
        seen_at    REAL NOT NULL,
        generation INTEGER NOT NULL,
        table_age  REAL NOT NULL,
        degraded   INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
)

_ORDERS_ABOUT_ENGINES: tuple[Part, ...] = (
    """
    CREATE TABLE engine_orders (
        url      TEXT PRIMARY KEY,
        added    INTEGER NOT NULL,
        draining INTEGER NOT NULL,
        labels   TEXT NOT NULL,
        author   TEXT NOT NULL,
        at       REAL NOT NULL,
        note     TEXT NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    "INSERT INTO counters (name, value) VALUES ('fleet', 0)",
)

MIGRATIONS: tuple[tuple[Part, ...], ...] = (
    _FIRST,
    (*_SEVERAL_SECRETS, *_CHAINED_AUDIT),
    (*_ALIASES_WITH_A_HISTORY, *_INSTANCES),
    _ORDERS_ABOUT_ENGINES,
)
