"""The hash chain of the audit trail. Pure.

Each line's hash covers the line and the hash before it (as in RFC 9162's logs, without the tree): whoever knows one
hash can tell that nothing up to it was changed, removed or put in between.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import orjson

from gateway.stores.interfaces import AuditEntry

GENESIS = bytes(32)
"""What stands before the first line."""


def entry_hash(  # noqa: PLR0917 - the fields of a line, in their order
    previous: bytes, number: int, at: float, author: str, verb: str, subject: str, detail: str
) -> bytes:
    """SHA-256 over the hash before and the line as a JSON array, which no two different lines share."""
    # A whole number of seconds may come back from a store as 1 or as 1.0, which JSON tells apart.
    line = orjson.dumps([number, float(at), author, verb, subject, detail])
    return hashlib.sha256(previous + line).digest()


def sealed(  # noqa: PLR0917 - the fields of a line, in their order
    previous: bytes, number: int, at: float, author: str, verb: str, subject: str, detail: object
) -> AuditEntry:
    """A new line, chained to the hash before."""
    text = orjson.dumps(detail).decode()
    seal = entry_hash(previous, number, at, author, verb, subject, text)
    return AuditEntry(number, at, author, verb, subject, text, previous, seal)


def first_break(entries: Iterable[AuditEntry], number: int = 0, previous: bytes = GENESIS) -> int | None:
    """The number at which a run of lines, the one after ``number`` first, stops being whole; ``None``: it is whole."""
    for entry in entries:
        number += 1
        seal = entry_hash(previous, number, entry.at, entry.author, entry.verb, entry.subject, entry.detail)
        if (entry.number, entry.previous, entry.hash) != (number, previous, seal):
            return number
        previous = seal
    return None
