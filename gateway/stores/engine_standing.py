"""What a change of the order about an engine comes to, and the words of a refusal. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from gateway.model import EngineOrder
from gateway.stores import trail
from gateway.stores.interfaces import MAX_ENGINE_ORDERS, Conflict, NotFound
from gateway.stores.standing import utc

T = TypeVar("T")


class Decided(NamedTuple, Generic[T]):
    """What a change comes to: what it gives, and the order to keep (``None``: none). No ``change``: all stays."""

    result: T
    order: EngineOrder | None = None
    change: trail.Change | None = None


class EngineStanding(NamedTuple):
    """An engine at one moment: the order about it, if there is one, and how many orders there are in all."""

    url: str
    order: EngineOrder | None = None
    orders: int = 0

    def added(self, wanted: EngineOrder) -> Decided[EngineOrder]:
        """``wanted``, which adds the engine, with the drain that stands. Raises ``Conflict``: it was added, no room."""
        now = self._existing()
        if now.added:
            raise Conflict(
                f"the engine at that URL was added already (its order was last changed by {now.author} "
                f"at {utc(now.at)})"
            )
        made = replace(wanted, draining=now.draining)
        return Decided(made, made, trail.engine_added(made))

    def removed(self, *, author: str, at: float, note: str) -> Decided[EngineOrder]:
        """No order any more; the one that was there. Raises ``NotFound`` unless it added the engine."""
        if self.order is None or not self.order.added:
            raise NotFound("no engine was added at that URL")
        return Decided(self.order, None, trail.engine_removed(self.order, at, author, note))

    def drained(self, *, draining: bool, author: str, at: float, note: str) -> Decided[tuple[EngineOrder, bool]]:
        """The drain begun or lifted, and whether that changes anything. Raises ``Conflict``: there is no room."""
        if not draining and self.order is None:
            return Decided((EngineOrder(self.url), False))
        now = self._existing()
        if now.draining == draining:
            return Decided((now, False))
        made = replace(now, draining=draining, author=author, at=at, note=note)
        kept = made if made.added or made.draining else None
        return Decided((made, True), kept, trail.engine_drained(made))

    def _existing(self) -> EngineOrder:
        """The order, or an empty one for which there is room."""
        if self.order is not None:
            return self.order
        if self.orders >= MAX_ENGINE_ORDERS:
            raise Conflict(
                f"there are orders about {self.orders} engines, and no room for more: remove an engine or lift a drain"
            )
        return EngineOrder(self.url)


Decide: TypeAlias = Callable[[EngineStanding], Decided[T]]
"""A change as a store carries it out: what it comes to, from where the engine stands in the same transaction."""
