"""Aliases in the Redis store: what is read for them, and their write as a plan for ``RedisState.write``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import orjson

from gateway.model import AliasTable, Revision
from gateway.stores import trail
from gateway.stores.interfaces import Conflict, NotFound
from gateway.stores.redis_records import revision_of, revision_text
from gateway.stores.redis_scripts import ALIASES, Command, history_of
from gateway.stores.redis_state import Planned, RedisState


async def table(state: RedisState) -> AliasTable:
    """All current revisions and the generation, of one moment."""
    head, (text,) = await state.read_bulk(Command("HVALS", ALIASES))
    current = await state.decoded(text, _by_alias)
    return AliasTable(head.versions.aliases, MappingProxyType(current))


async def history(state: RedisState, alias: str) -> Sequence[Revision]:
    """All revisions, oldest first. Raises ``NotFound``."""
    _, (text,) = await state.read_bulk(Command("HVALS", history_of(alias)))
    with state.decoding():
        made = sorted(map(revision_of, orjson.loads(text)), key=lambda revision: revision.number)
    if not made:
        raise NotFound("no alias has that name")
    return tuple(made)


async def plan_assignment(state: RedisState, wanted: Revision, expect: int | None) -> Planned[Revision]:
    """``wanted`` under the next number, made current. Raises ``Conflict``: ``expect`` is not current."""
    head, (text,) = await state.read(Command("HGET", ALIASES, (wanted.alias,)))
    with state.decoding():
        current = None if text is None else revision_of(orjson.loads(text))
    now = current.number if current is not None else 0
    if expect is not None and expect != now:
        raise Conflict(_lost(wanted.alias, current, expect))
    made = replace(wanted, number=now + 1)
    written = revision_text(made)
    commands = (
        Command("HSET", ALIASES, (made.alias, written)),
        Command("HSET", history_of(made.alias), (made.number, written)),
    )
    return Planned(head, made, trail.alias_set(made, now), "aliases", commands)


def _by_alias(found: list[dict[str, Any]]) -> dict[str, Revision]:
    found.sort(key=itemgetter("alias"))
    return {values["alias"]: revision_of(values) for values in found}


def _lost(alias: str, current: Revision | None, expect: int) -> str:
    if current is None:
        return f"{alias} does not exist; revision {expect} was expected"
    models = ", ".join(target.model for target in current.targets)
    is_at = f"{alias} is at revision {current.number} ({models}, set by {current.author})"
    return f"{is_at}; revision {expect} was expected"
