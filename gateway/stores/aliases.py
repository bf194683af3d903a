"""The alias table as one instance knows it: a snapshot, replaced whole when the store's counter moves."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from gateway.model import AliasTable, Revision, Target
from gateway.stores.interfaces import Conflict, StateStore


class AliasView:
    """Reads the store in ``refresh``; the request path reads ``table`` and never waits.

    When the store cannot be read the last known table stays, without limit: an alias that does not move is better than
    none.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._version: int | None = None
        self.table = AliasTable()

    async def refresh(self) -> None:
        """Take in what changed. Raises ``StoreUnavailable``; the table then stands."""
        version = (await self._store.versions()).aliases
        if version != self._version:
            self.table = await self._store.alias_table()
            self._version = version


async def name_served_models(
    store: StateStore, named: Mapping[str, str], now: Callable[[], float] = time.time
) -> list[Revision]:
    """Make the aliases ``named``, alias to served model, unless one of that name was ever made.

    Returns the revisions that were made. Raises ``StoreUnavailable``.
    """
    made = []
    for alias, model in named.items():
        try:
            made.append(
                await store.assign_alias(
                    alias, (Target(model),), author="gateway", at=now(), source="automatic", expect_revision=0
                )
            )
        except Conflict:
            continue
    return made
