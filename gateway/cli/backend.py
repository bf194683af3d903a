"""What the commands act on: the store itself or a running gateway. The commands do not know which."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:  # a command that only reports its faults need not wait for the schemas
    from gateway.admin.aliasorders import ChangeOrder
    from gateway.admin.aliasviews import (
        AliasList,
        AliasView,
        DiffView,
        HistoryPage,
        InstanceList,
        WrittenView,
    )
    from gateway.admin.comparison import ComparisonView
    from gateway.admin.explainviews import DecisionView
    from gateway.admin.fleetviews import AddOrder, EngineChange, FleetList, FleetOrder, ReplicaView
    from gateway.admin.rules import ExplanationView
    from gateway.admin.schemas import KeyOrder, KeyView, NewKeyView, RotateOrder
    from gateway.admin.trail import AuditPage


class CliFault(Exception):
    """A command was refused or failed. The message is for a person and says what to do next."""


class Misuse(CliFault):
    """An option is not one that can be acted on: wrong usage, exit code 2."""


class NotThere(CliFault):
    """What was asked for does not exist."""


class Backend(AbstractAsyncContextManager["Backend"], Protocol):
    """Keys, aliases, engines, instances, the audit trail, the policy.

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

    async def list_aliases(self) -> AliasList:
        """All aliases by name."""
        ...

    async def show_alias(self, name: str, number: int | None) -> AliasView:
        """A revision of an alias; ``None``: the current one."""
        ...

    async def change_alias(self, name: str, order: ChangeOrder) -> WrittenView:
        """Do what the order says, by its kind."""
        ...

    async def alias_history(self, name: str, before: int | None) -> HistoryPage:
        """Revisions of an alias with a number below ``before``, newest first."""
        ...

    async def alias_diff(self, name: str, old: int | None, new: int | None) -> DiffView:
        """What differs between two revisions of an alias, as ``DiffPair`` means them."""
        ...

    async def compare_alias(self, name: str) -> ComparisonView:
        """How an alias's trial does, by what the instance that is asked has counted."""
        ...

    async def list_fleet(self) -> FleetList:
        """All replicas by URL, sources of engines, and orders about engines that are not among the replicas."""
        ...

    async def show_replica(self, reference: str) -> ReplicaView:
        """A replica by its engine's id or URL. Raises ``NotThere`` as well."""
        ...

    async def add_engine(self, order: AddOrder) -> EngineChange:
        """Make an engine part of the fleet."""
        ...

    async def change_engine(self, reference: str, order: FleetOrder) -> EngineChange:
        """Do what the order says, by its kind, to an engine that is meant by its id or URL."""
        ...

    async def explain_choice(self, request_id: str | None, alias: str | None) -> DecisionView:
        """Why a request was placed so; without its id the newest one was. Raises ``NotThere`` as well."""
        ...

    async def instances(self) -> InstanceList:
        """The gateways of the last hour."""
        ...

    async def audit_page(self, after: int, limit: int) -> AuditPage:
        """Lines of the audit trail with a number above ``after``, and the newest line of all."""
        ...

    async def explain(self, key: str, alias: str) -> ExplanationView:
        """What the access policy makes of a key, by id or name, and an alias."""
        ...
