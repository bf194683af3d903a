"""What the Redis store keeps, as values and as text. Pure.

Reading raises ``ValueError``, ``KeyError`` or ``TypeError`` for what no store has written. A line of the audit trail is
the exception: one that cannot be read comes back as a line that breaks the chain, so that verification finds it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType
from typing import Any

import orjson

from gateway.model import EngineOrder, Instance, Limits, Revision, Target
from gateway.stores.interfaces import AuditEntry, FoundKey, KeyRecord, KeySecret
from gateway.stores.standing import Deletion

_INSTANCE_FIELDS = tuple(field.name for field in fields(Instance))


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key with what only the store knows: a keyed hash for each of its secrets, and its place among all keys."""

    record: KeyRecord
    digests: tuple[bytes, ...]
    order: int

    def found(self, digest: bytes) -> FoundKey | None:
        """The key as found by one of its secrets."""
        for own, secret in zip(self.digests, self.record.secrets, strict=True):
            if own == digest:
                return FoundKey(self.record, secret)
        return None

    def with_secret(self, digest: bytes, secret: KeySecret) -> StoredKey:
        """The key with another secret, newest first."""
        pairs = [(digest, secret), *zip(self.digests, self.record.secrets, strict=True)]
        pairs.sort(key=lambda pair: pair[1].created_at, reverse=True)  # stable: of one time, the one that came last
        return replace(
            self,
            record=replace(self.record, secrets=tuple(one for _, one in pairs)),
            digests=tuple(one for one, _ in pairs),
        )

    def with_secrets_ended(self, at: float) -> StoredKey:
        """The key with secrets that end at ``at`` at the latest."""
        ended = tuple(
            replace(one, expires_at=at) if one.expires_at is None or one.expires_at > at else one
            for one in self.record.secrets
        )
        return replace(self, record=replace(self.record, secrets=ended))


def key_text(key: StoredKey) -> bytes:
    """A key as JSON."""
    values = asdict(key.record)
    for digest, secret in zip(key.digests, values["secrets"], strict=True):
        secret["digest"] = digest.hex()
    values["limits"] = {name: figure for name, figure in values["limits"].items() if figure is not None}
    return orjson.dumps({**values, "order": key.order})


def key_of(values: dict[str, Any]) -> StoredKey:
    """A key from parsed JSON."""
    secrets = values["secrets"]
    record = KeyRecord(
        id=values["id"],
        name=values["name"],
        tenant=values["tenant"],
        roles=tuple(values["roles"]),
        aliases=tuple(values["aliases"]),
        created_at=values["created_at"],
        expires_at=values["expires_at"],
        revoked_at=values["revoked_at"],
        limits=Limits(**values["limits"]),
        secrets=tuple(KeySecret(one["created_at"], one["expires_at"], one["pepper_version"]) for one in secrets),
    )
    return StoredKey(record, tuple(bytes.fromhex(one["digest"]) for one in secrets), values["order"])


def revision_text(revision: Revision) -> bytes:
    """A revision as JSON."""
    targets = [[target.model, target.weight] for target in revision.targets]
    return orjson.dumps({**asdict(revision), "targets": targets})


class Aims(dict[tuple[tuple[str, int], ...], tuple[Target, ...]]):
    """Targets by their parsed JSON: the many revisions of a table that aim at the same share one value of it."""

    def __missing__(self, pairs: tuple[tuple[str, int], ...]) -> tuple[Target, ...]:
        self[pairs] = made = tuple(Target(model, weight) for model, weight in pairs)
        return made


def revision_of(values: dict[str, Any], aims: Aims | None = None) -> Revision:
    """A revision from parsed JSON; ``aims`` is shared by those that are read together."""
    return Revision(
        alias=values["alias"],
        number=values["number"],
        targets=(Aims() if aims is None else aims)[tuple(map(tuple, values["targets"]))],
        author=values["author"],
        created_at=values["created_at"],
        note=values["note"],
        source=values["source"],
        canary_of=values.get("canary_of"),  # no revision of schema 1 has it
    )


def deletion_text(deletion: Deletion) -> bytes:
    """A deletion as a JSON list."""
    return orjson.dumps(list(deletion))


def deletion_of(text: bytes) -> Deletion:
    """A deletion from JSON."""
    return Deletion(*orjson.loads(text))


def order_text(order: EngineOrder) -> bytes:
    """An order about an engine as JSON."""
    values = {field.name: getattr(order, field.name) for field in fields(order)}
    return orjson.dumps({**values, "labels": dict(order.labels)})


def order_of(values: dict[str, Any]) -> EngineOrder:
    """An order from parsed JSON."""
    return EngineOrder(
        url=values["url"],
        added=values["added"],
        draining=values["draining"],
        labels=MappingProxyType(dict(values["labels"])),
        author=values["author"],
        at=values["at"],
        note=values["note"],
    )


def instance_text(instance: Instance) -> bytes:
    """An instance as JSON."""
    return orjson.dumps(asdict(instance))


def instance_of(values: dict[str, Any]) -> Instance:
    """An instance from parsed JSON. What a newer gateway says besides is let go: it runs next to this one."""
    return Instance(**{name: values[name] for name in _INSTANCE_FIELDS})


def line_text(line: AuditEntry) -> bytes:
    """A line of the audit trail as a JSON list; its number is its id in the stream."""
    seals = (line.previous.hex(), line.hash.hex())
    return orjson.dumps([line.at, line.author, line.verb, line.subject, line.detail, *seals])


def line_of(entry: tuple[bytes, Sequence[bytes]]) -> AuditEntry:
    """A line from an entry of the stream."""
    key, (_, text, *_) = entry
    number = int(key.partition(b"-")[0])
    try:
        at, author, verb, subject, detail, previous, seal = orjson.loads(text)
        return AuditEntry(number, at, author, verb, subject, detail, bytes.fromhex(previous), bytes.fromhex(seal))
    except (ValueError, TypeError):
        return AuditEntry(number, math.nan, "", "", "", "", b"", b"")
