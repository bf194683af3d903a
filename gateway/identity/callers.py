"""All who know credentials behind one face: API keys and tokens, told apart by their shape."""

from __future__ import annotations

from typing import Protocol

from gateway.identity.keyring import Miss
from gateway.model import Principal


class Ring(Protocol):
    """A cache of principals by credential."""

    @property
    def epoch(self) -> int | None:
        """Moves whenever a principal may have changed; ``None`` while what is known is too old."""
        ...

    def lookup(self, presented: str) -> Principal | Miss | None:
        """What is known; never waits."""
        ...

    async def fetch(self, presented: str) -> Principal | None:
        """Find out. Raises ``Unavailable``."""
        ...


class Callers:
    """Sends a credential to the ring that can know it. A key has no dot in it, a token has two."""

    def __init__(self, keys: Ring, tokens: Ring) -> None:
        self._keys = keys
        self._tokens = tokens

    @property
    def epoch(self) -> int | None:
        """Moves when that of either ring does; ``None`` while either has none."""
        keys, tokens = self._keys.epoch, self._tokens.epoch
        return None if keys is None or tokens is None else keys + tokens

    def lookup(self, presented: str) -> Principal | Miss | None:
        """What the ring for that shape knows; never waits."""
        return self._ring(presented).lookup(presented)

    async def fetch(self, presented: str) -> Principal | None:
        """Find out. Raises ``Unavailable``."""
        return await self._ring(presented).fetch(presented)

    def _ring(self, presented: str) -> Ring:
        return self._tokens if "." in presented else self._keys
