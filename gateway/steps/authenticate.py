"""Step 2: who calls. Absent, malformed and unknown credentials get one and the same answer."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Protocol

from gateway.errors import Refusal
from gateway.model import Principal

_MAX_CREDENTIAL = 8_192  # a JWT; longer ones are refused unread


class Callers(Protocol):
    """What the request path asks of those who know credentials."""

    @property
    def epoch(self) -> int | None:
        """Moves whenever a credential may have changed; ``None`` while what is known is too old to be used."""
        ...

    def lookup(self, presented: str) -> Principal | object | None:
        """The principal, ``None`` for a credential known to be no good, anything else when it must be fetched.

        Costs next to nothing for a credential that was never good: it is asked before a source is judged.
        """
        ...

    async def fetch(self, presented: str) -> Principal | None:
        """The principal from the store or the issuer. Raises ``Unavailable`` when it cannot be asked."""
        ...


class Failures(Protocol):
    """Counts failed attempts by where they come from."""

    def blocked(self, source: str) -> int | None:
        """Seconds that a source with too many failures has to wait; ``None``: it may try."""
        ...

    def failed(self, source: str) -> None:
        """A credential from there was no good."""
        ...

    def strike(self, source: str) -> int | None:
        """``blocked``, and ``failed`` if it may try: for a credential that is known to be no good."""
        ...


def credential(head: Mapping[bytes, bytes]) -> str:
    """The one credential that a request carries. Raises ``Refusal``: none, malformed (401), or two (400)."""
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


def source_of(peer: str, headers: Sequence[tuple[bytes, bytes]], hops: int) -> str:
    """Where a request comes from: its peer, or behind ``hops`` proxies of the operator's, whom the outermost one saw.

    Each proxy appends whom it saw to ``x-forwarded-for``, to the last line or as a line of its own, which means the
    same (RFC 9110, section 5.3). Only the last ``hops`` entries of all lines are theirs; what stands further left is
    the client's own invention. Anything that is no address falls back to the peer.
    """
    if hops == 0:
        return peer
    seen = b",".join(value for name, value in headers if name == b"x-forwarded-for").split(b",")
    if len(seen) < hops:
        return peer
    try:
        return str(ipaddress.ip_address(seen[-hops].strip().decode("latin-1")))
    except ValueError:
        return peer


async def authenticate(
    head: Mapping[bytes, bytes],
    callers: Callers,
    failures: Failures,
    peer: str,
    *,
    headers: Sequence[tuple[bytes, bytes]] = (),
    hops: int = 0,
) -> Principal:
    """The principal behind a request. Raises ``Refusal`` (401, 400, 429) or ``Unavailable`` (503).

    A credential that is known is never held up: somebody who guesses from behind the same address cannot lock others
    out. One that must be found out, or is wrong, waits its turn with the other failures from there; until then nothing
    is read or verified for it. ``headers`` are all lines of the head: of those who went through ``hops`` proxies they
    say where they came from.
    """
    presented = credential(head)
    found = callers.lookup(presented)
    if isinstance(found, Principal):
        return found
    source = source_of(peer, headers, hops)
    wait = failures.blocked(source)
    if wait is not None:
        raise too_many(wait)
    fetched = None if found is None else await callers.fetch(presented)
    if fetched is None:
        failures.failed(source)
        raise Refusal("invalid_api_key")
    return fetched


def too_many(wait: int) -> Refusal:
    """For a source that has failed too often; it has to wait so many seconds."""
    return Refusal("rate_limited", "Too many failed attempts to authenticate.", retry_after=wait)
