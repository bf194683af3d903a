"""Step 2: who calls. Absent, malformed and unknown credentials get one and the same answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gateway.errors import Refusal
from gateway.model import Principal

_MAX_CREDENTIAL = 256


class Keys(Protocol):
    """What the request path asks of the key ring."""

    @property
    def epoch(self) -> int | None:
        """Moves whenever any key may have changed; ``None`` while what is known is too old to be used."""
        ...

    def lookup(self, presented: str) -> Principal | object | None:
        """The principal, ``None`` for a key known to be no good, anything else when it must be fetched."""
        ...

    async def fetch(self, presented: str) -> Principal | None:
        """The principal from the store. Raises ``Unavailable`` when it cannot be asked."""
        ...


def credential(head: Mapping[bytes, bytes]) -> str:
    """The one API key that a request carries. Raises ``Refusal``: none, malformed (401), or two (400)."""
    bearer, direct = head.get(b"authorization"), head.get(b"x-api-key")
    if bearer is not None and direct is not None:
        raise Refusal("invalid_request", "Send one credential: 'Authorization' or 'x-api-key', not both.")
    if bearer is not None:
        scheme, _, direct = bearer.partition(b" ")
        if scheme.lower() != b"bearer":
            raise Refusal("invalid_api_key")
    if not direct or len(direct) > _MAX_CREDENTIAL:
        raise Refusal("invalid_api_key")
    return direct.decode("latin-1")


async def authenticate(head: Mapping[bytes, bytes], keys: Keys) -> Principal:
    """The principal behind a request. Raises ``Refusal`` (401, 400) or ``Unavailable`` (503)."""
    presented = credential(head)
    found = keys.lookup(presented)
    if isinstance(found, Principal):
        return found
    fetched = None if found is None else await keys.fetch(presented)
    if fetched is None:
        raise Refusal("invalid_api_key")
    return fetched
