"""Running instances in the Redis store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gateway.model import Instance
from gateway.stores.presence import remembered
from gateway.stores.redis_records import instance_of, instance_text
from gateway.stores.redis_scripts import INSTANCES, Command
from gateway.stores.redis_state import RedisState


async def beat(state: RedisState, instance: Instance) -> None:
    """Keep what an instance tells. One that is new clears away those that have been silent for long."""
    (added,) = await state.aside(Command("HSET", INSTANCES, (instance.id, instance_text(instance))))
    if added:
        await _remove(state, ())


async def instances(state: RedisState) -> Sequence[Instance]:
    """All that are remembered, oldest first."""
    return remembered(await _all(state))


async def forget(state: RedisState, instance_id: str) -> None:
    """Remove one that has ended."""
    await _remove(state, (instance_id,))


async def _remove(state: RedisState, ended: Sequence[str]) -> None:
    known = await _all(state)
    silent = {instance.id for instance in known} - {instance.id for instance in remembered(known)}
    if silent or ended:
        await state.aside(Command("HDEL", INSTANCES, (*ended, *silent)))


async def _all(state: RedisState) -> list[Instance]:
    _, (lists,) = await state.read_bulk(Command("HVALS", INSTANCES))
    return await state.decoded(lists, _instances)


def _instances(found: Iterable[dict[str, Any]]) -> list[Instance]:
    return [instance_of(values) for values in found]
