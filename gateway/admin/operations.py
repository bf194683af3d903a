"""What the admin API and the command line do to the keys of a store, once for both."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from gateway.admin.schemas import KeyOrder, RotateOrder, limits_of
from gateway.identity.keys import digest, new_key
from gateway.model import Principal
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


def principal_of(key: KeyRecord) -> Principal:
    """Who calls with a key, as far as the policy asks."""
    return Principal(key.id, key.tenant, key.name, key.roles, key.aliases, limits=key.limits)
