"""What the control loops of one instance do: follow the store, look at the engines, say what changed."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import httpx

from gateway.errors import Unavailable
from gateway.fleet.probe import probe_all
from gateway.fleet.registry import Registry
from gateway.fleet.replica import State
from gateway.identity.keyring import KeyRing
from gateway.policy.names import automatic_aliases, is_model
from gateway.stores.aliases import AliasView, name_served_models
from gateway.stores.interfaces import Notifying, StateStore, StoreError, StoreUnavailable
from gateway.stores.kept import keep_table, kept_table

Report = Callable[[str], None]
_REFUSED = -1


class Control:
    """Steps for the supervisor's loops. Expected failures are reported when they begin and when they end."""

    def __init__(
        self,
        store: StateStore,
        keys: KeyRing,
        aliases: AliasView,
        registry: Registry,
        report: Report,
        *,
        folder: Path,
        verify: Callable[[], Awaitable[None]],
    ) -> None:
        """``folder`` is where the last known alias table is kept. ``verify`` is awaited once the store can be read."""
        self._folder = folder
        self._verify = verify
        self._verified = False
        self._kept: int | None = None
        self._store = store
        self._keys = keys
        self._aliases = aliases
        self._registry = registry
        self._report = report
        self._told: dict[int, tuple[State, str]] = {}
        self._store_down = False
        self._name_models = False
        self._nameless: frozenset[str] = frozenset()
        self._turn = asyncio.Lock()

    async def first(self, client: httpx.AsyncClient) -> None:
        """Before listening: what the aliases are, by the store or as they were last known, and which engines are there.

        Only an installation without any alias gets automatic ones. Raises ``StoreUnavailable`` when the store cannot be
        read and nothing was kept, and what ``verify`` raises.
        """
        try:
            await self.reload()
        except StoreUnavailable as error:
            await self._serve_kept(error)
        else:
            self._name_models = not self._aliases.table.current
        await self.probe(client)

    async def _serve_kept(self, error: StoreUnavailable) -> None:
        table = await asyncio.to_thread(kept_table, self._folder)
        if table is None:
            raise error
        self._aliases.serve_kept(table)
        self._store_down = True
        self._report(
            f"state store: {error}; started without it, by the alias table of generation {table.generation} as it was "
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

    async def keep(self) -> None:
        """Keep the alias table on disk if it has changed. A disk that refuses is reported once, until it takes one."""
        table = self._aliases.table
        if self._aliases.degraded or table.generation == self._kept:
            return
        try:
            await asyncio.to_thread(keep_table, self._folder, table)
        except OSError as error:
            if self._kept != _REFUSED:
                self._report(f"the alias table cannot be kept in {self._folder}: {error.strerror}")
            self._kept = _REFUSED
            return
        self._kept = table.generation

    async def sync(self) -> None:
        """``reload``, with an unreachable store reported."""
        try:
            await self.reload()
        except Unavailable as error:
            if not self._store_down:
                self._report(f"state store: {error}; serving what is cached")
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

    async def probe(self, client: httpx.AsyncClient) -> None:
        """Look at every engine; in a new installation give each served model an alias by its name, if it is fit."""
        await probe_all(client, self._registry)
        for replica in self._registry.replicas:
            life = replica.life
            if self._told.get(replica.index) != (life.state, life.reason):
                self._told[replica.index] = life.state, life.reason
                serves = ", ".join(life.seen.models) or "nothing yet"
                why = f"; {life.reason}" if life.reason else ""
                self._report(f"replica {replica.index} at {replica.spec.url}: {life.state.value}, serves {serves}{why}")
        if self._name_models:
            await self._make_aliases()

    async def _make_aliases(self) -> None:
        named, nameless = automatic_aliases(self._registry.served_models())
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


def _what_to_do(model: str) -> str:
    """How to give a served model an alias. Safe to be pasted into a shell: the name is an engine's word."""
    if is_model(model):
        return f"Give it one: gateway alias set NAME --model {shlex.quote(model)}"
    return f"Start its engine with another --served-model-name than {shlex.quote(model)}"
