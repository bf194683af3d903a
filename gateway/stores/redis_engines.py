"""Orders about engines in the Redis store: what is read, and a change of one as a plan for ``RedisState.write``."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeVar

from gateway.model import EngineOrder, EngineOrders
from gateway.stores.engine_standing import Decide, EngineStanding
from gateway.stores.redis_records import order_of, order_text
from gateway.stores.redis_scripts import ENGINES, Command
from gateway.stores.redis_state import Head, Planned, RedisState

T = TypeVar("T")


async def engine_orders(state: RedisState) -> EngineOrders:
    """All orders and their generation, of one moment."""
    head, found = await _read(state)
    return EngineOrders(head.versions.fleet, MappingProxyType(found))


async def plan_change(state: RedisState, url: str, decide: Decide[T]) -> Planned[T]:
    """What is decided about an engine. Raises what ``decide`` does.

    All orders are read for it, since their number counts: HLEN would need a right that no documented user has yet.
    """
    head, found = await _read(state)
    decided = decide(EngineStanding(url, found.get(url), len(found)))
    kept = decided.order
    command = Command("HDEL", ENGINES, (url,)) if kept is None else Command("HSET", ENGINES, (url, order_text(kept)))
    return Planned(head, decided.result, decided.change, "fleet", (command,))


async def _read(state: RedisState) -> tuple[Head, dict[str, EngineOrder]]:
    head, (lists,) = await state.read_bulk(Command("HVALS", ENGINES))
    return head, await state.decoded(lists, _by_url)


def _by_url(found: Iterable[dict[str, Any]]) -> dict[str, EngineOrder]:
    return {order.url: order for order in sorted(map(order_of, found), key=attrgetter("url"))}
