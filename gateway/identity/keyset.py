"""An issuer's keys as a value, and why they could not be had. What makes one of a document stands in ``jwk``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from gateway.identity.jwt import KeysById
from gateway.wire.json import JsonFault, parse_object


class KeySetReason(StrEnum):
    """Why keys could not be had; a closed set, so that it may be logged."""

    URL = "url"
    UNREACHABLE = "unreachable"
    STATUS = "status"
    TOO_LARGE = "too_large"
    NOT_JSON = "not_json"
    ISSUER = "issuer"
    TOO_MANY_KEYS = "too_many_keys"
    SYMMETRIC = "symmetric_key"
    PRIVATE = "private_key"
    WEAK = "weak_key"
    CURVE = "unknown_curve"
    KID = "kid"
    DUPLICATE_KID = "duplicate_kid"
    INVALID = "invalid_key"
    UNEXPECTED = "unexpected"


class KeySetFault(Exception):
    """No keys came, or none that may be trusted. Carries a reason, never what was read."""

    def __init__(self, reason: KeySetReason) -> None:
        self.reason = reason
        super().__init__(reason.value)


@dataclass(frozen=True, slots=True)
class KeySet:
    """Keys ready to verify with. ``marks`` tell the same key from another one under the same ``kid``."""

    keys: KeysById = field(default_factory=lambda: MappingProxyType({}))
    marks: frozenset[tuple[str, str, bytes]] = frozenset()


def parse_document(body: bytes) -> dict[str, Any]:
    """A JSON object from an issuer, read as strictly as a request's body. Raises ``KeySetFault``."""
    try:
        return parse_object(body)
    except JsonFault:
        raise KeySetFault(KeySetReason.NOT_JSON) from None
