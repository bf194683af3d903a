"""What the audit trail says of each kind of write, the same in every store. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import NamedTuple

from gateway.model import EngineOrder, Revision
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


def alias_set(made: Revision, before: Revision | None) -> Change:
    """A revision made current; ``before`` is the one that was. The verb tells what happened:

    ==============  =======================================================
    alias.canary    source canary, and a trial: of another model or weight
    alias.promote   source canary, and none: the model that was tried stays
    alias.abort     source rollback, and ``before`` was a trial
    alias.rollback  source rollback, and ``before`` was none
    alias.set       any other source
    ==============  =======================================================
    """
    detail = {
        "revision": made.number,
        "from": 0 if before is None else before.number,
        "targets": _targets(made),
        "note": made.note,
        "source": made.source,
        **({} if made.canary_of is None else {"canary_of": made.canary_of}),
    }
    return Change(made.created_at, made.author, _alias_verb(made, before), made.alias, detail)


def alias_deleted(last: Revision, at: float, author: str, note: str) -> Change:
    """An alias taken out of the table; ``last`` is the revision that was current."""
    detail = {"revision": last.number, "targets": _targets(last), "note": note}
    return Change(at, author, "alias.delete", last.alias, detail)


def engine_added(order: EngineOrder) -> Change:
    """An engine made part of the fleet by this order."""
    return Change(order.at, order.author, "fleet.add", order.url, {"labels": dict(order.labels), "note": order.note})


def engine_removed(last: EngineOrder, at: float, author: str, note: str) -> Change:
    """The end of an order that added an engine; ``last`` is how it stood, a drain included."""
    return Change(at, author, "fleet.remove", last.url, {"labels": dict(last.labels), "note": note})


def engine_drained(order: EngineOrder) -> Change:
    """A drain that begins or is lifted: ``order`` says which."""
    verb = "fleet.drain" if order.draining else "fleet.undrain"
    return Change(order.at, order.author, verb, order.url, {"note": order.note})


def _alias_verb(made: Revision, before: Revision | None) -> str:
    if made.source == "canary":
        return "alias.promote" if made.canary_of is None else "alias.canary"
    if made.source == "rollback":
        return "alias.rollback" if before is None or before.canary_of is None else "alias.abort"
    return "alias.set"


def _targets(revision: Revision) -> list[list[str | int]]:
    return [[target.model, target.weight] for target in revision.targets]
