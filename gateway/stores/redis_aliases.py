"""Aliases in the Redis store: what is read for them, and their write as a plan for ``RedisState.write``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import orjson

from gateway.model import AliasTable, Revision
from gateway.stores import trail
from gateway.stores.interfaces import NotFound
from gateway.stores.redis_records import Aims, deletion_of, deletion_text, revision_of, revision_text
from gateway.stores.redis_scripts import ALIASES, DELETIONS, Command, history_of, uses_of
from gateway.stores.redis_state import Head, Planned, RedisState
from gateway.stores.standing import Deletion, Standing

# Neither Redis nor the event loop does anything else meanwhile: these take each of them about a millisecond.
_USES_AT_ONCE = 64


async def table(state: RedisState) -> AliasTable:
    """All current revisions and the generation, of one moment."""
    head, (lists,) = await state.read_bulk(Command("HVALS", ALIASES))
    current = await state.decoded(lists, _by_alias)
    return AliasTable(head.versions.aliases, MappingProxyType(current))


async def history(state: RedisState, alias: str) -> Sequence[Revision]:
    """All revisions, oldest first. Raises ``NotFound``."""
    _, (lists,) = await state.read_bulk(Command("HVALS", history_of(alias)))
    made = await state.decoded(lists, _by_number)
    if not made:
        raise NotFound("no alias has that name")
    return made


async def revision(state: RedisState, alias: str, number: int) -> Revision:
    """Any revision of an alias, deleted or not. Raises ``NotFound``."""
    _, (text,) = await state.read(Command("HGET", history_of(alias), (number,)))
    if text is None:
        raise NotFound("no revision of that alias has that number")
    with state.decoding():
        return revision_of(orjson.loads(text))


async def plan_assignment(state: RedisState, wanted: Revision, expect: int | None) -> Planned[Revision]:
    """``wanted`` under the next number, made current. Raises ``Conflict``: ``expect`` is not current."""
    head, before = await _standing(state, wanted.alias)
    before.judge(expect)
    made = replace(wanted, number=before.next_number)
    written = revision_text(made)
    commands = (
        Command("HSET", ALIASES, (made.alias, written)),
        Command("HSET", history_of(made.alias), (made.number, written)),
    )
    return Planned(head, made, trail.alias_set(made, before.current), "aliases", commands)


async def plan_deletion(
    state: RedisState, alias: str, *, author: str, at: float, note: str, expect: int | None
) -> Planned[Revision]:
    """An alias taken out of the table. Raises ``NotFound``, ``Conflict``."""
    head, before = await _standing(state, alias)
    last = before.existing(expect)
    commands = (
        Command("HSET", DELETIONS, (alias, deletion_text(Deletion(last.number, at, author)))),
        Command("HDEL", ALIASES, (alias,)),
    )
    return Planned(head, last, trail.alias_deleted(last, at, author, note), "aliases", commands)


async def note_uses(state: RedisState, used: Mapping[tuple[str, int], float]) -> None:
    """Keep when revisions last served, unless a later time is known."""
    left = iter(used.items())
    while some := [
        Command("HMAX", uses_of(alias), (number, at)) for (alias, number), at in islice(left, _USES_AT_ONCE)
    ]:
        await state.aside(*some)


async def uses(state: RedisState, alias: str) -> Mapping[int, float]:
    """When each revision of an alias last served, in the order of their numbers."""
    _, (flat,) = await state.read(Command("HGETALL", uses_of(alias)))
    with state.decoding():
        return dict(sorted(zip(map(int, flat[::2]), map(float, flat[1::2]), strict=True)))


async def _standing(state: RedisState, alias: str) -> tuple[Head, Standing]:
    head, (current, deleted) = await state.read(
        Command("HGET", ALIASES, (alias,)), Command("HGET", DELETIONS, (alias,))
    )
    with state.decoding():
        return head, Standing(
            alias,
            None if current is None else revision_of(orjson.loads(current)),
            None if deleted is None else deletion_of(deleted),
        )


def _by_alias(found: Iterable[dict[str, Any]]) -> dict[str, Revision]:
    return {revision.alias: revision for revision in _sorted(found, "alias")}


def _by_number(found: Iterable[dict[str, Any]]) -> tuple[Revision, ...]:
    return tuple(_sorted(found, "number"))


def _sorted(found: Iterable[dict[str, Any]], order: str) -> list[Revision]:
    aims = Aims()
    return sorted((revision_of(values, aims) for values in found), key=attrgetter(order))
