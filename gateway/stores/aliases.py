"""The alias table as one instance knows it: a snapshot, replaced whole when the store's counter moves."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

from gateway.model import AliasTable, Revision, Target
from gateway.recent import keep
from gateway.stores.interfaces import Conflict, NotFound, StateStore


class AliasView:
    """Reads the store in ``refresh``; the request path reads ``table`` and never waits, but for a revision that is not
    current, the first time that somebody asks for it.

    When the store cannot be read the last known table stays, without limit: an alias that does not move is better than
    none. ``degraded`` says that the store has not been read since the start, so that ``table`` is what was kept.
    """

    def __init__(self, store: StateStore, *, pinned: int = 10_000) -> None:
        self._store = store
        self._version: int | None = None
        self._max_pinned = pinned
        self._pinned: OrderedDict[tuple[str, int], Revision] = OrderedDict()
        self.table = AliasTable()
        self.degraded = False

    async def refresh(self) -> bool:
        """Take in what changed; whether anything did. Raises ``StoreUnavailable``; the table then stands."""
        version = (await self._store.versions()).aliases
        if version == self._version:
            return False
        self.table = await self._store.alias_table()
        self._version, self.degraded = version, False
        return True

    def serve_kept(self, table: AliasTable) -> None:
        """Serve by a table that was kept, until the store can be read."""
        self.table, self.degraded = table, True

    async def revision(self, alias: str, number: int) -> Revision | None:
        """A revision of an alias that is in the table; ``None``: there is none of that number.

        Revisions never change, so that one which was read once is known for good; of a number that has not been given
        yet nothing is remembered. Raises ``StoreUnavailable``.
        """
        now = self.table.current.get(alias)
        if now is None or number >= now.number:
            return now if now is not None and number == now.number else None
        known = self._pinned.get((alias, number))
        if known is None:
            try:
                known = await self._store.alias_revision(alias, number)
            except NotFound:
                return None
            keep(self._pinned, (alias, number), known, self._max_pinned)
        return known


async def name_served_models(
    store: StateStore, named: Mapping[str, str], now: Callable[[], float] = time.time
) -> list[Revision]:
    """Make the aliases ``named``, alias to served model, unless one of that name was ever made.

    Returns the revisions that were made. Raises ``StoreUnavailable``.
    """
    made = []
    for alias, model in named.items():
        if await _was_made(store, alias):
            continue
        try:
            made.append(
                await store.assign_alias(
                    alias, (Target(model),), author="gateway", at=now(), source="automatic", expect_revision=0
                )
            )
        except Conflict:
            continue
    return made


async def _was_made(store: StateStore, alias: str) -> bool:
    """Whether an alias of that name exists or did once: what was deleted must not come back by itself."""
    try:
        await store.alias_revision(alias, 1)
    except NotFound:
        return False
    return True
