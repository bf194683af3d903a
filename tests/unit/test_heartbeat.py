"""What an instance tells of itself, and what happens to it while nobody listens."""

from __future__ import annotations

import asyncio

from gateway.heartbeat import Heartbeat
from gateway.model import Instance
from gateway.stores.interfaces import StoreUnavailable


class Store:
    """Keeps what it is told, unless it is out of reach."""

    def __init__(self) -> None:
        self.gone = False
        self.beats: list[Instance] = []
        self.uses: list[dict] = []
        self.forgotten: list[str] = []

    def _reach(self) -> None:
        if self.gone:
            raise StoreUnavailable("gone")

    async def beat(self, instance):
        self._reach()
        self.beats.append(instance)

    async def note_uses(self, uses):
        self._reach()
        self.uses.append(dict(uses))

    async def forget_instance(self, instance_id):
        self._reach()
        self.forgotten.append(instance_id)


class Revisions:
    """Uses to be taken."""

    def __init__(self) -> None:
        self.uses: dict = {}

    def take_uses(self):
        taken, self.uses = self.uses, {}
        return taken

    def give_back(self, uses):
        self.uses = {**uses, **self.uses}


def _instance():
    return Instance("i1", "host", "0.1.0", "http://127.0.0.1:9090", 1.0, 2.0, 7)


def test_a_beat_says_that_it_lives_and_what_was_used():
    store, revisions = Store(), Revisions()
    heartbeat = Heartbeat(store, _instance, revisions)
    revisions.uses = {("general", 1): 5.0}
    asyncio.run(heartbeat.beat())
    asyncio.run(heartbeat.beat())
    assert store.beats == [_instance(), _instance()]
    assert store.uses == [{("general", 1): 5.0}]


def test_uses_wait_while_the_store_is_gone():
    store, revisions = Store(), Revisions()
    heartbeat = Heartbeat(store, _instance, revisions)
    revisions.uses = {("general", 1): 5.0}
    store.gone = True
    asyncio.run(heartbeat.beat())
    asyncio.run(heartbeat.close())
    store.gone = False
    asyncio.run(heartbeat.beat())
    assert store.uses == [{("general", 1): 5.0}]


def test_an_instance_that_ends_tells_its_last_uses_and_is_off_the_list():
    store, revisions = Store(), Revisions()
    revisions.uses = {("general", 2): 6.0}
    asyncio.run(Heartbeat(store, _instance, revisions).close())
    assert (store.uses, store.forgotten) == ([{("general", 2): 6.0}], ["i1"])
