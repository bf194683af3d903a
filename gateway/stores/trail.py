"""What the audit trail says of each kind of write, the same in every store. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import NamedTuple

from gateway.model import Revision
from gateway.stores.interfaces import KeyRecord, KeySecret


class Change(NamedTuple):
    """A line of the trail before it has a number: when (Unix seconds), by whom, what was done to what.

    ``detail`` is JSON data. It never holds a secret or a hash of one.
    """

    at: float
    author: str
    verb: str
    subject: str
    detail: Mapping[str, object]


def key_created(record: KeyRecord, author: str) -> Change:
    """A new key: all that it may do."""
    detail = {
        "name": record.name,
        "tenant": record.tenant,
        "roles": record.roles,
        "aliases": record.aliases,
        "expires_at": record.expires_at,
        "limits": {name: figure for name, figure in asdict(record.limits).items() if figure is not None},
    }
    return Change(record.created_at, author, "key.create", record.id, detail)


def key_rotated(record: KeyRecord, secret: KeySecret, overlap_until: float, author: str) -> Change:
    """Another secret for a key, and until when the ones before open the door."""
    detail = {
        "name": record.name,
        "overlap_until": overlap_until,
        "expires_at": secret.expires_at,
        "pepper_version": secret.pepper_version,
    }
    return Change(secret.created_at, author, "key.rotate", record.id, detail)


def key_revoked(record: KeyRecord, at: float, author: str) -> Change:
    """The end of a key."""
    return Change(at, author, "key.revoke", record.id, {"name": record.name})


def alias_set(made: Revision, before: int) -> Change:
    """A revision made current; ``before`` is the number of the one that was (0: none)."""
    detail = {
        "revision": made.number,
        "from": before,
        "targets": [[target.model, target.weight] for target in made.targets],
        "note": made.note,
        "source": made.source,
    }
    return Change(made.created_at, made.author, "alias.set", made.alias, detail)
