"""What an instance tells the others: that it lives, which alias table it serves by, and which revisions are used."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from gateway.model import Instance
from gateway.stores.interfaces import StateStore, StoreUnavailable
from gateway.telemetry.revisions import RevisionStats


class Heartbeat:
    """``beat`` is the step of a control loop; ``close`` takes the instance off the list, as far as the store lets it.

    An unreachable store is not reported here: the loop that reads it does that.
    """

    def __init__(self, store: StateStore, describe: Callable[[], Instance], revisions: RevisionStats) -> None:
        self._store = store
        self._describe = describe
        self._revisions = revisions

    async def beat(self) -> None:
        """Say that the instance lives, and when revisions last served."""
        with suppress(StoreUnavailable):
            await self._store.beat(self._describe())
            await self._tell_uses()

    async def _tell_uses(self) -> None:
        uses = self._revisions.take_uses()
        if not uses:
            return
        try:
            await self._store.note_uses(uses)
        except StoreUnavailable:
            self._revisions.give_back(uses)
            raise

    async def close(self) -> None:
        """The instance ends."""
        with suppress(StoreUnavailable):
            await self._tell_uses()
            await self._store.forget_instance(self._describe().id)
