"""Whatever is done to keys, in whatever order: after a refresh the ring says of each what the store says."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.identity.keyring import MISS, KeyRing
from gateway.identity.keys import Digester, new_key
from gateway.model import Principal, Target
from gateway.secret import Secret
from gateway.stores.chain import first_break
from gateway.stores.interfaces import Conflict, KeyRecord, KeySecret, NotFound
from gateway.stores.sqlite import SqliteStore

PEPPERS = {1: Secret("a" * 43), 2: Secret("b" * 43)}
DIGESTERS = {version: Digester(pepper.reveal().encode()) for version, pepper in PEPPERS.items()}
KINDS = ("create", "rotate", "revoke", "assign", "note", "use", "wait")


class Play:
    """A store that two sides write, a ring over it, and every secret that was ever given out."""

    def __init__(self, store: SqliteStore) -> None:
        self.now = 100.0
        self.store = store
        self.ring = KeyRing(store, PEPPERS, lambda: self.now, monotonic=lambda: self.now, capacity=3)
        self.dice = random.Random(7)
        self.given: list[tuple[str, bytes]] = []

    async def step(self, kind: str, number: int, version: int) -> None:
        made = new_key("live", self.dice)
        mark = DIGESTERS[version](made.text.reveal())
        secret = KeySecret(self.now, pepper_version=version)
        name = f"app{number}"
        try:
            if kind == "create":
                expires_at = self.now + 5 if number else None
                record = KeyRecord(made.id, name, "t1", (), ("*",), self.now, expires_at, secrets=(secret,))
                await self.store.add_key(mark, record, author="ann")
                self.given.append((made.text.reveal(), mark))
            elif kind == "rotate":
                until = self.now + version
                await self.store.rotate_key(name, mark, secret, overlap_until=until, author="ann")
                self.given.append((made.text.reveal(), mark))
            elif kind == "revoke":
                await self.store.revoke_key(name, at=self.now, author="ann")
            elif kind == "assign":
                await self.store.assign_alias(name, [Target("m")], author="ann", at=self.now)
            elif kind == "note":
                await self.store.note(at=self.now, author="ann", verb="key.seen", subject=name, detail={})
            elif kind == "use":
                for text, _ in self.given[number:]:
                    if self.ring.lookup(text) is MISS:
                        await self.ring.fetch(text)
            else:
                self.now += 1
        except (Conflict, NotFound):
            pass

    async def check(self) -> None:
        await self.ring.refresh()
        for text, mark in self.given:
            found = await self.store.find_key(mark)
            assert found is not None
            said = self.ring.lookup(text)
            said = await self.ring.fetch(text) if said is MISS else said
            assert isinstance(said, Principal) == found.live(self.now)
            assert said is None or (isinstance(said, Principal) and said.id == found.key.id)


# Drawn by a seed: hypothesis's own lists repeat themselves too much for a key to be made, seen and revoked in one.
@settings(deadline=None, max_examples=10)
@given(seed=st.integers())
def test_the_ring_agrees_with_the_store_after_a_refresh(seed: int) -> None:
    dice = random.Random(seed)

    async def body(folder: Path) -> None:
        store = await SqliteStore.open(folder / "state.db")
        play = Play(store)
        for _ in range(60):
            await play.step(dice.choice(KINDS), dice.randrange(2), dice.choice([1, 2]))
            if dice.random() < 0.4:
                await play.check()
        lines = await store.audit()
        assert first_break(lines) is None
        assert (await store.audit_head())[0] == len(lines)
        assert all(sum(one.live(play.now) for one in key.secrets) <= 2 for key in await store.list_keys())
        await play.ring.close()
        await store.close()

    with TemporaryDirectory() as folder:
        asyncio.run(body(Path(folder)))
