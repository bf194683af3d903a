"""The alias table as one instance knows it: current revisions at once, older ones when somebody asks."""

from __future__ import annotations

import asyncio

import pytest

from gateway.model import AliasTable, Revision, Target
from gateway.stores.aliases import AliasView
from gateway.stores.interfaces import NotFound, StoreUnavailable, Versions


def _revision(number, alias="general"):
    return Revision(alias, number, (Target(f"m{number}"),), "ops", float(number))


class Store:
    """A table at one generation, revisions 1 to 5 of one alias, and whether it can be reached."""

    def __init__(self) -> None:
        self.gone = False
        self.generation = 5
        self.reads: list[int] = []

    async def versions(self):
        if self.gone:
            raise StoreUnavailable("gone")
        return Versions(0, self.generation)

    async def alias_table(self):
        return AliasTable(self.generation, {"general": _revision(5)})

    async def alias_revision(self, alias, number):
        if self.gone:
            raise StoreUnavailable("gone")
        self.reads.append(number)
        if number > 5:
            raise NotFound("no such revision")
        return _revision(number, alias)


def test_a_refresh_says_whether_anything_changed():
    async def body():
        store = Store()
        view = AliasView(store)
        assert [await view.refresh(), await view.refresh()] == [True, False]
        store.generation += 1
        assert await view.refresh()
        assert view.table.generation == 6

    asyncio.run(body())


def test_an_older_revision_is_read_once_and_needs_no_store_afterwards():
    async def body():
        store = Store()
        view = AliasView(store)
        await view.refresh()
        assert await view.revision("general", 3) == _revision(3)
        store.gone = True
        assert await view.revision("general", 3) == _revision(3)
        assert store.reads == [3]
        with pytest.raises(StoreUnavailable):
            await view.revision("general", 2)

    asyncio.run(body())


def test_numbers_not_given_yet_and_aliases_not_in_the_table_are_not_asked_for():
    async def body():
        store = Store()
        view = AliasView(store)
        await view.refresh()
        assert await view.revision("general", 6) is None
        assert await view.revision("deleted", 1) is None
        assert await view.revision("general", 5) == _revision(5)
        assert store.reads == []

    asyncio.run(body())


def test_what_is_remembered_is_bounded():
    async def body():
        store = Store()
        view = AliasView(store, pinned=2)
        await view.refresh()
        for number in (1, 2, 3, 1):
            await view.revision("general", number)
        assert store.reads == [1, 2, 3, 1]

    asyncio.run(body())


def test_a_kept_table_serves_until_the_store_is_read():
    async def body():
        store = Store()
        store.gone = True
        view = AliasView(store)
        view.serve_kept(AliasTable(4, {"general": _revision(4)}))
        with pytest.raises(StoreUnavailable):
            await view.refresh()
        assert (view.degraded, view.table.generation) == (True, 4)
        store.gone = False
        await view.refresh()
        assert (view.degraded, view.table.generation) == (False, 5)

    asyncio.run(body())
