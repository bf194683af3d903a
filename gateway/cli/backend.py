"""What the commands act on: the store itself or a running gateway. The commands do not know which."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, Self

from gateway.admin.rules import ExplanationView
from gateway.admin.schemas import AliasOrder, AliasView, KeyOrder, KeyView, NewKeyView, RotateOrder
from gateway.admin.trail import AuditPage


class CliFault(Exception):
    """A command was refused or failed. The message is for a person and says what to do next."""


class Backend(AbstractAsyncContextManager["Backend"], Protocol):
    """Keys, aliases, the audit trail, the policy.

    Every method raises ``CliFault``, or one of the errors of the store; so does entering.
    """

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

    async def rotate_key(self, key: str, order: RotateOrder) -> NewKeyView:
        """Give a key, by id or name, another text."""
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

    async def audit_page(self, after: int, limit: int) -> AuditPage:
        """Lines of the audit trail with a number above ``after``, and the newest line of all."""
        ...

    async def explain(self, key: str, alias: str) -> ExplanationView:
        """What the access policy makes of a key, by id or name, and an alias."""
        ...
