"""API keys in the SQLite store. Every function runs on the store's worker thread.

Functions that write are to be called inside a transaction of ``in_transaction``.
"""

from __future__ import annotations

import hmac
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import orjson

from gateway.model import Limits
from gateway.stores import trail
from gateway.stores.audit_queries import append
from gateway.stores.interfaces import Conflict, FoundKey, KeyRecord, KeySecret, NotFound
from gateway.stores.queries import move, rows

# One row for each secret, a key's rows side by side and the newest first. The conditions are literals of this module.
_KEY_WIDTH, _LIMITS_WIDTH = 8, len(Limits.__dataclass_fields__)
_SELECT: Final = """
    SELECT keys.id, keys.name, keys.tenant, keys.roles, keys.aliases, keys.created_at, keys.expires_at, keys.revoked_at,
        keys.requests_per_minute, keys.tokens_per_minute, keys.tokens_per_day, keys.concurrency,
        key_secrets.created_at, key_secrets.expires_at, key_secrets.pepper_version, key_secrets.digest
    FROM keys JOIN key_secrets ON key_secrets.key_id = keys.id
    {where}
    ORDER BY keys.created_at, keys.rowid, key_secrets.created_at DESC, key_secrets.rowid DESC
"""
_ALL = _SELECT.format(where="")
_BY_DIGEST = _SELECT.format(where="WHERE keys.id = (SELECT key_id FROM key_secrets WHERE digest = ?)")
_BY_NAME = _SELECT.format(
    where="""
    WHERE keys.rowid = (
        SELECT rowid FROM keys WHERE id = ?1 OR name = ?1 ORDER BY id = ?1 DESC, created_at DESC, rowid DESC LIMIT 1
    )
    """
)
_TAKEN = """
    SELECT id, name FROM keys
    WHERE id IN (:id, :name)
        OR (name = :name AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > :at))
        OR id = (SELECT key_id FROM key_secrets WHERE digest = :digest)
    LIMIT 1
"""
_MAX_LIVE_SECRETS = 2


def find_key(db: sqlite3.Connection, digest: bytes) -> FoundKey | None:
    """The key with a secret of that digest, live or not."""
    found = rows(db, _BY_DIGEST, digest)
    for row in found:
        if hmac.compare_digest(row[-1], digest):
            return FoundKey(_record(found), _secret(row))
    return None


def all_keys(db: sqlite3.Connection) -> Sequence[KeyRecord]:
    """All keys, oldest first."""
    return tuple(_records(rows(db, _ALL)))


def named_key(db: sqlite3.Connection, name: str) -> KeyRecord:
    """A key by id, else the newest of that name. Raises ``NotFound``."""
    found = rows(db, _BY_NAME, name)
    if not found:
        raise NotFound("no key has that id or name")
    return _record(found)


def add_key(db: sqlite3.Connection, digest: bytes, record: KeyRecord, author: str) -> None:
    """Insert a key and its one secret. Raises ``Conflict`` as the interface says."""
    (secret,) = record.secrets
    values = {"id": record.id, "name": record.name, "at": record.created_at, "digest": digest}
    taken = db.execute(_TAKEN, values).fetchone()
    if taken is not None:
        key_id, name = taken
        raise Conflict(f"key {key_id} ({name}) already has that name or id. Revoke it, or choose another name")
    row = (
        record.id,
        record.name,
        record.tenant,
        orjson.dumps(record.roles).decode(),
        orjson.dumps(record.aliases).decode(),
        record.created_at,
        record.expires_at,
        record.revoked_at,
        *astuple(record.limits),
    )
    db.execute(
        "INSERT INTO keys (id, name, tenant, roles, aliases, created_at, expires_at, revoked_at,"
        " requests_per_minute, tokens_per_minute, tokens_per_day, concurrency)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        row,
    )
    _add_secret(db, record.id, digest, secret)
    _tell(db, trail.key_created(record, author))


def rotate_key(
    db: sqlite3.Connection, key_id: str, digest: bytes, secret: KeySecret, *, overlap_until: float, author: str
) -> KeyRecord:
    """Add a secret to a live key and bound those before. Raises ``NotFound``, ``Conflict`` as the interface says."""
    record = named_key(db, key_id)
    if not record.live(secret.created_at):
        raise Conflict(f"key {record.id} ({record.name}) has ended. Make a new key")
    if sum(one.live(secret.created_at) for one in record.secrets) >= _MAX_LIVE_SECRETS:
        raise Conflict(
            f"key {record.id} ({record.name}) has two live secrets. Wait until the older one ends, or revoke the key"
        )
    if find_key(db, digest) is not None:
        raise Conflict(f"key {record.id} ({record.name}) was given a secret that is in use. Make another secret")
    _end_secrets(db, record.id, overlap_until)
    _add_secret(db, record.id, digest, secret)
    _tell(db, trail.key_rotated(record, secret, overlap_until, author))
    return named_key(db, record.id)


def revoke_key(db: sqlite3.Connection, key_id: str, at: float, author: str) -> KeyRecord:
    """End a live key and all its secrets; an ended one is given as it is. Raises ``NotFound``."""
    record = named_key(db, key_id)
    if record.revoked_at is not None:
        return record
    db.execute("UPDATE keys SET revoked_at = ? WHERE id = ?", (at, record.id))
    _end_secrets(db, record.id, at)
    _tell(db, trail.key_revoked(record, at, author))
    return named_key(db, record.id)


def _tell(db: sqlite3.Connection, change: trail.Change) -> None:
    move(db, "keys")
    append(db, change)


def _add_secret(db: sqlite3.Connection, key_id: str, digest: bytes, secret: KeySecret) -> None:
    db.execute(
        "INSERT INTO key_secrets (key_id, digest, created_at, expires_at, pepper_version) VALUES (?, ?, ?, ?, ?)",
        (key_id, digest, secret.created_at, secret.expires_at, secret.pepper_version),
    )


def _end_secrets(db: sqlite3.Connection, key_id: str, at: float) -> None:
    """Let the secrets of a key end at ``at`` at the latest."""
    db.execute(
        "UPDATE key_secrets SET expires_at = ?1 WHERE key_id = ?2 AND (expires_at IS NULL OR expires_at > ?1)",
        (at, key_id),
    )


def _records(found: Iterable[tuple[Any, ...]]) -> Iterator[KeyRecord]:
    for _, group in groupby(found, key=itemgetter(0)):
        yield _record(list(group))


def _record(group: Sequence[tuple[Any, ...]]) -> KeyRecord:
    """The key that the rows of one key make."""
    key_id, name, tenant, roles, aliases, created_at, expires_at, revoked_at = group[0][:_KEY_WIDTH]
    return KeyRecord(
        id=key_id,
        name=name,
        tenant=tenant,
        roles=tuple(orjson.loads(roles)),
        aliases=tuple(orjson.loads(aliases)),
        created_at=created_at,
        expires_at=expires_at,
        revoked_at=revoked_at,
        limits=Limits(*group[0][_KEY_WIDTH : _KEY_WIDTH + _LIMITS_WIDTH]),
        secrets=tuple(map(_secret, group)),
    )


def _secret(row: tuple[Any, ...]) -> KeySecret:
    return KeySecret(*row[_KEY_WIDTH + _LIMITS_WIDTH : -1])
