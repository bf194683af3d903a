"""What the commands act on: the store itself or a running gateway. The commands do not know which."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, Self

from gateway.admin.schemas import AliasOrder, AliasView, KeyOrder, KeyView, NewKeyView


class CliFault(Exception):
    """A command was refused or failed. The message is for a person and says what to do next."""


class Backend(AbstractAsyncContextManager["Backend"], Protocol):
    """Keys and aliases. Every method raises ``CliFault``, or one of the errors of the store; so does entering."""

    async def __aenter__(self) -> Self:
        """Take what the work needs."""
        ...

    async def create_key(self, order: KeyOrder) -> NewKeyView:
        """Make a key."""
        ...

    async def list_keys(self) -> Sequence[KeyView]:
        """All keys, oldest first."""
        ...

    async def show_key(self, key: str) -> KeyView:
        """A key by id or name."""
        ...

    async def revoke_key(self, key: str) -> KeyView:
        """End a key by id or name."""
        ...

    async def list_aliases(self) -> Sequence[AliasView]:
        """All aliases by name."""
        ...

    async def show_alias(self, name: str) -> AliasView:
        """The current revision of an alias."""
        ...

    async def set_alias(self, name: str, order: AliasOrder) -> AliasView:
        """Append a revision."""
        ...
