"""What the control loops of one instance do: follow the store, name what engines serve, say what changed."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path

from gateway.errors import Unavailable
from gateway.identity.keyring import KeyRing
from gateway.model import EngineOrders
from gateway.policy.names import automatic_aliases, is_model
from gateway.stores.aliases import AliasView, name_served_models
from gateway.stores.interfaces import Notifying, StateStore, StoreError, StoreUnavailable
from gateway.stores.kept import keep_orders, keep_table, kept_orders, kept_table
from gateway.stores.orders import OrderView

Report = Callable[[str], None]
_REFUSED = (-1, -1)


class Control:
    """Steps for the supervisor's loops. Expected failures are reported when they begin and when they end."""

    def __init__(
        self,
        store: StateStore,
        keys: KeyRing,
        aliases: AliasView,
        report: Report,
        *,
        folder: Path,
        verify: Callable[[], Awaitable[None]],
        obey: Callable[[EngineOrders], None],
        listed: Callable[[], Sequence[str]],
    ) -> None:
        """``folder`` is where the last known alias table is kept. ``verify`` is awaited once the store can be read.

        ``obey`` gets the orders about engines whenever they change; ``listed`` tells what engines say they serve.
        """
        self._folder = folder
        self._verify = verify
        self._verified = False
        self._kept: tuple[int, int] | None = None
        self._store = store
        self._keys = keys
        self._aliases = aliases
        self._orders = OrderView(store)
        self._obey = obey
        self._listed = listed
        self._report = report
        self._store_down = False
        self._name_models = False
        self._nameless: frozenset[str] = frozenset()
        self._turn = asyncio.Lock()

    async def first(self) -> None:
        """Before listening: what the aliases are and what is ordered, by the store or as it was last known.

        Only an installation without any alias gets automatic ones. Raises ``StoreUnavailable`` when the store cannot be
        read and nothing was kept, and what ``verify`` raises.
        """
        try:
            await self.reload()
        except StoreUnavailable as error:
            await self._serve_kept(error)
        else:
            self._name_models = not self._aliases.table.current

    async def _serve_kept(self, error: StoreUnavailable) -> None:
        table = await asyncio.to_thread(kept_table, self._folder)
        if table is None:
            raise error
        self._aliases.serve_kept(table)
        orders = await asyncio.to_thread(kept_orders, self._folder)
        if orders is not None:
            self._orders.orders = orders
            self._obey(orders)
        self._store_down = True
        self._report(
            f"{_cause(error)}; started without it, by the alias table of generation {table.generation} as it was "
            "last known here. API keys cannot be checked until it is back"
        )

    async def reload(self) -> None:
        """Take in what changed in the store. Raises ``StoreUnavailable``; what was known then stands.

        One at a time: of two readings at once, the older one could be the last to be taken in.
        """
        async with self._turn:
            if not self._verified:
                await self._verify()
                self._verified = True
            await self._keys.refresh()
            await self._aliases.refresh()
            if await self._orders.refresh():
                self._obey(self._orders.orders)

    async def keep(self) -> None:
        """Keep aliases and orders on disk if they have changed. A disk that refuses is reported once, until it takes
        them."""
        table, orders = self._aliases.table, self._orders.orders
        generations = table.generation, orders.generation
        if self._aliases.degraded or generations == self._kept:
            return
        try:
            await asyncio.to_thread(keep_table, self._folder, table)
            await asyncio.to_thread(keep_orders, self._folder, orders)
        except OSError as error:
            if self._kept != _REFUSED:
                self._report(f"the alias table cannot be kept in {self._folder}: {error.strerror}")
            self._kept = _REFUSED
            return
        self._kept = generations

    async def sync(self) -> None:
        """``reload``, with an unreachable store reported."""
        try:
            await self.reload()
        except Unavailable as error:
            if not self._store_down:
                self._report(f"{_cause(error)}; serving what is cached")
            self._store_down = True
            return
        if self._store_down:
            self._report("state store: back")
        self._store_down = False

    async def follow(self, store: Notifying) -> None:
        """``sync`` at each word of a change, sooner than the next poll would find it."""
        async with aclosing(store.changes()) as changes:
            async for _ in changes:
                await self.sync()

    async def name_models(self) -> None:
        """In a new installation, give each served model an alias by its name, if it is fit."""
        if not self._name_models:
            return
        named, nameless = automatic_aliases(self._listed())
        for model in nameless:
            if model not in self._nameless:
                self._report(f"made no alias for a served model whose name can be none. {_what_to_do(model)}")
        self._nameless = frozenset(nameless)
        missing = {alias: model for alias, model in named.items() if alias not in self._aliases.table.current}
        if not missing:
            return
        try:
            made = await name_served_models(self._store, missing)
            await self.reload()
        except StoreError as error:
            self._report(f"cannot make aliases: {error}")
            return
        for revision in made:
            self._report(f"made alias {revision.label} for served model {revision.targets[0].model}")


def _cause(error: Unavailable) -> str:
    """What is wrong with the store, as a sentence that goes on."""
    words = str(error).rstrip(".")
    return words if words.startswith("state store") else f"state store: {words}"


def _what_to_do(model: str) -> str:
    """How to give a served model an alias. Safe to be pasted into a shell: the name is an engine's word."""
    if is_model(model):
        return f"Give it one: gateway alias set NAME --model {shlex.quote(model)}"
    return f"Start its engine with another --served-model-name than {shlex.quote(model)}"
