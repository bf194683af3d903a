"""What the admin API and the command line do to a store, once for both."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from gateway.admin.schemas import AliasOrder, KeyOrder, RotateOrder, limits_of
from gateway.identity.keys import digest, new_key
from gateway.model import Principal, Revision, Target
from gateway.secret import Secret
from gateway.stores.interfaces import KeyRecord, KeySecret, StateStore

KEY_ENVIRONMENT = "live"


@dataclass(frozen=True, slots=True)
class Mint:
    """What secrets of keys are made with: the newest pepper, its version and the source of randomness."""

    pepper: Secret
    version: int
    random: Random

    def digest(self, text: Secret) -> bytes:
        """The keyed hash under which the store keeps a secret."""
        return digest(self.pepper.reveal().encode(), text.reveal())


async def issue_key(
    store: StateStore, mint: Mint, order: KeyOrder, *, author: str, now: float
) -> tuple[KeyRecord, Secret]:
    """Make a key and store its keyed hash. The text is returned and kept nowhere. Raises what ``add_key`` raises."""
    made = new_key(KEY_ENVIRONMENT, mint.random)
    record = KeyRecord(
        id=made.id,
        name=order.name,
        tenant=order.tenant,
        roles=tuple(order.roles),
        aliases=tuple(order.aliases),
        created_at=now,
        expires_at=None if order.expires_in is None else now + order.expires_in,
        limits=limits_of(order.limits),
        secrets=(KeySecret(now, pepper_version=mint.version),),
    )
    await store.add_key(mint.digest(made.text), record, author=author)
    return record, made.text


async def rotate_key(
    store: StateStore, mint: Mint, key_id: str, order: RotateOrder, *, author: str, now: float
) -> tuple[KeyRecord, Secret]:
    """Give a key another secret under its old id. Raises what the store's ``rotate_key`` raises."""
    text = new_key(KEY_ENVIRONMENT, mint.random, key_id).text
    secret = KeySecret(now, pepper_version=mint.version)
    record = await store.rotate_key(key_id, mint.digest(text), secret, overlap_until=now + order.overlap, author=author)
    return record, text


async def assign(
    store: StateStore, alias: str, order: AliasOrder, *, author: str, now: float, unserved: bool = False
) -> Revision:
    """Point an alias at a model. Raises what ``assign_alias`` and ``note`` raise.

    ``unserved`` says that only ``force`` allows it. That goes into the audit trail first: an assignment that was lost
    to another one leaves a line of what was tried, and none is made without its line.
    """
    if unserved:
        detail = {"model": order.model, "force": True, "source": order.source}
        await store.note(at=now, author=author, verb="alias.force", subject=alias, detail=detail)
    return await store.assign_alias(
        alias,
        (Target(order.model),),
        author=author,
        at=now,
        note=order.note,
        source=order.source,
        expect_revision=order.expect_revision,
    )


def principal_of(key: KeyRecord) -> Principal:
    """Who calls with a key, as far as the policy asks."""
    return Principal(key.id, key.tenant, key.name, key.roles, key.aliases, limits=key.limits)
