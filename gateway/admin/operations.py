"""What the admin API and the command line do to a store, once for both."""

from __future__ import annotations

from random import Random

from gateway.admin.schemas import AliasOrder, KeyOrder
from gateway.identity.keys import digest, new_key
from gateway.model import Revision, Target
from gateway.secret import Secret
from gateway.stores.interfaces import KeyRecord, StateStore

KEY_ENVIRONMENT = "live"


async def issue_key(
    store: StateStore, pepper: Secret, order: KeyOrder, *, author: str, now: float, random: Random
) -> tuple[KeyRecord, Secret]:
    """Make a key and store its keyed hash. The text is returned and kept nowhere. Raises what ``add_key`` raises."""
    made = new_key(KEY_ENVIRONMENT, random)
    record = KeyRecord(
        id=made.id,
        name=order.name,
        tenant=order.tenant,
        roles=tuple(order.roles),
        aliases=tuple(order.aliases),
        created_at=now,
        expires_at=None if order.expires_in is None else now + order.expires_in,
    )
    await store.add_key(digest(pepper.reveal().encode(), made.text.reveal()), record, author=author)
    return record, made.text


async def assign(store: StateStore, alias: str, order: AliasOrder, *, author: str, now: float) -> Revision:
    """Point an alias at a model. Raises what ``assign_alias`` raises."""
    return await store.assign_alias(
        alias,
        (Target(order.model),),
        author=author,
        at=now,
        note=order.note,
        source=order.source,
        expect_revision=order.expect_revision,
    )
