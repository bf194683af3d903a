"""API keys in the Redis store: what is read for them, and their writes as plans for ``RedisState.write``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import orjson

from gateway.stores import trail
from gateway.stores.interfaces import Conflict, FoundKey, KeyRecord, KeySecret, NotFound
from gateway.stores.redis_records import StoredKey, key_of, key_text
from gateway.stores.redis_scripts import KEYS, NAMES, SECRETS, Command
from gateway.stores.redis_state import Head, Planned, RedisState

_MAX_LIVE_SECRETS = 2
# How many keys of one name are remembered under it, the newest. Only the newest is ever asked for, and a name is given
# again only when the keys before have ended; without a bound a name that is given again each day would grow for ever.
_NAMESAKES = 16


async def found_by(state: RedisState, digest: bytes) -> FoundKey | None:
    """The key with a secret of that keyed hash, live or not."""
    _, (owner,) = await state.read(Command("HGET", SECRETS, (digest.hex(),)))
    if owner is None:
        return None
    with state.decoding():
        key_id = orjson.loads(owner)
    for key in await _with_ids(state, [key_id]):
        return key.found(digest)
    return None


async def named(state: RedisState, name: str) -> tuple[Head, StoredKey]:
    """A key by id, else the newest of that name, and the head of the first look. Raises ``NotFound``."""
    head, (text, ids) = await state.read(Command("HGET", KEYS, (name,)), Command("HGET", NAMES, (name,)))
    with state.decoding():
        if text is not None:
            return head, key_of(orjson.loads(text))
        namesakes: list[str] = orjson.loads(ids or "[]")
    if not namesakes:
        raise NotFound("no key has that id or name")
    return head, max(await _with_ids(state, namesakes), key=_age)


async def all_keys(state: RedisState) -> Sequence[KeyRecord]:
    """All keys, oldest first."""
    _, (lists,) = await state.read_bulk(Command("HVALS", KEYS))
    return await state.decoded(lists, _by_age)


async def plan_add(state: RedisState, digest: bytes, record: KeyRecord, author: str) -> Planned[None]:
    """A new key. Raises ``Conflict`` as the interface says."""
    head, (same_id, owner, ids) = await state.read(
        Command("HMGET", KEYS, (record.id, record.name)),
        Command("HGET", SECRETS, (digest.hex(),)),
        Command("HGET", NAMES, (record.name,)),
    )
    with state.decoding():
        taken = [key_of(orjson.loads(text)) for text in same_id if text is not None]
        owners = [] if owner is None else [orjson.loads(owner)]
        namesakes: list[str] = orjson.loads(ids or "[]")
    taken += await _with_ids(state, owners)
    taken += [key for key in await _with_ids(state, namesakes) if key.record.live(record.created_at)]
    if taken:
        held = taken[0].record
        raise Conflict(f"key {held.id} ({held.name}) already has that name or id. Revoke it, or choose another name")
    commands = (
        _put(StoredKey(record, (digest,), head.number + 1)),
        Command("HSET", SECRETS, (digest.hex(), orjson.dumps(record.id))),
        Command("HSET", NAMES, (record.name, orjson.dumps([*namesakes, record.id][-_NAMESAKES:]))),
    )
    return Planned(head, None, trail.key_created(record, author), "keys", commands)


async def plan_rotation(
    state: RedisState, key_id: str, digest: bytes, secret: KeySecret, *, overlap_until: float, author: str
) -> Planned[KeyRecord]:
    """Another secret for a live key, an end for those before. Raises ``NotFound``, ``Conflict``."""
    head, key = await named(state, key_id)
    _, (owner,) = await state.read(Command("HGET", SECRETS, (digest.hex(),)))
    _judge_rotation(key.record, secret, in_use=owner is not None)
    rotated = key.with_secrets_ended(overlap_until).with_secret(digest, secret)
    change = trail.key_rotated(key.record, secret, overlap_until, author)
    commands = (_put(rotated), Command("HSET", SECRETS, (digest.hex(), orjson.dumps(key.record.id))))
    return Planned(head, rotated.record, change, "keys", commands)


async def plan_revocation(state: RedisState, key_id: str, at: float, author: str) -> Planned[KeyRecord]:
    """The end of a live key and of all its secrets; nothing for an ended one. Raises ``NotFound``."""
    head, key = await named(state, key_id)
    if key.record.revoked_at is not None:
        return Planned(head, key.record)
    ended = key.with_secrets_ended(at)
    ended = replace(ended, record=replace(ended.record, revoked_at=at))
    return Planned(head, ended.record, trail.key_revoked(key.record, at, author), "keys", (_put(ended),))


async def _with_ids(state: RedisState, ids: Sequence[str]) -> list[StoredKey]:
    if not ids:
        return []
    _, (texts,) = await state.read(Command("HMGET", KEYS, tuple(ids)))
    with state.decoding():
        return [key_of(orjson.loads(text)) for text in texts]


def _put(key: StoredKey) -> Command:
    return Command("HSET", KEYS, (key.record.id, key_text(key)))


def _by_age(found: Iterable[dict[str, Any]]) -> tuple[KeyRecord, ...]:
    return tuple(key.record for key in sorted(map(key_of, found), key=_age))


def _age(key: StoredKey) -> tuple[float, int]:
    return key.record.created_at, key.order


def _judge_rotation(record: KeyRecord, secret: KeySecret, *, in_use: bool) -> None:
    who, now = f"key {record.id} ({record.name})", secret.created_at
    if not record.live(now):
        raise Conflict(f"{who} has ended. Make a new key")
    if sum(one.live(now) for one in record.secrets) >= _MAX_LIVE_SECRETS:
        raise Conflict(f"{who} has two live secrets. Wait until the older one ends, or revoke the key")
    if in_use:
        raise Conflict(f"{who} was given a secret that is in use. Make another secret")
