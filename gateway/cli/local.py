"""The commands' backend on a store of this host, with or without a gateway running on it."""

from __future__ import annotations

import getpass
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import SystemRandom
from types import TracebackType
from typing import Self

from gateway.admin.operations import assign, issue_key
from gateway.admin.schemas import (
    AliasOrder,
    AliasView,
    KeyOrder,
    KeyView,
    NewKeyView,
    alias_view,
    key_view,
    new_key_view,
)
from gateway.cli.backend import Backend, CliFault
from gateway.identity.secrets import PEPPER, given_secret, load_secret
from gateway.secret import Secret
from gateway.settings import sqlite_path
from gateway.stores.interfaces import NotFound, StateStore
from gateway.stores.open import open_store


class LocalBackend(Backend):
    """Opens the store at ``url`` for the time of one command. A running gateway sees a write within its poll."""

    def __init__(self, url: str, env: Mapping[str, str]) -> None:
        self._url = url
        self._env = env
        self._author = f"cli:{_user()}"
        self._opened: StateStore | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.close()

    async def create_key(self, order: KeyOrder) -> NewKeyView:
        """Make a key under the pepper that a gateway on this state uses."""
        store = await self._store(create=True)
        pepper = await self._pepper(store)
        now = time.time()
        record, text = await issue_key(store, pepper, order, author=self._author, now=now, random=SystemRandom())
        return new_key_view(record, now, text.reveal())

    async def list_keys(self) -> Sequence[KeyView]:
        """All keys, oldest first."""
        now = time.time()
        return [key_view(record, now) for record in await (await self._store()).list_keys()]

    async def show_key(self, key: str) -> KeyView:
        """A key by id or name."""
        return key_view(await (await self._store()).get_key(key), time.time())

    async def revoke_key(self, key: str) -> KeyView:
        """End a key by id or name."""
        now = time.time()
        return key_view(await (await self._store()).revoke_key(key, at=now, author=self._author), now)

    async def list_aliases(self) -> Sequence[AliasView]:
        """All aliases by name."""
        return [alias_view(revision) for revision in (await (await self._store()).alias_table()).current.values()]

    async def show_alias(self, name: str) -> AliasView:
        """The current revision of an alias."""
        revision = (await (await self._store()).alias_table()).current.get(name)
        if revision is None:
            raise NotFound("no alias has that name")
        return alias_view(revision)

    async def set_alias(self, name: str, order: AliasOrder) -> AliasView:
        """Append a revision. Whether a replica serves the model is not known here."""
        store = await self._store(create=True)
        return alias_view(await assign(store, name, order, author=self._author, now=time.time()))

    async def _store(self, *, create: bool = False) -> StateStore:
        # A mistyped path must not become a new, empty store that has "no keys".
        if not create and not _path(self._url).exists():
            raise CliFault(f"There is no state at {self._url}. 'gateway serve' or 'gateway keys create' makes it.")
        self._opened = self._opened or await open_store(self._url)
        return self._opened

    async def _pepper(self, store: StateStore) -> Secret:
        folder = _path(self._url).parent
        known = given_secret(PEPPER, self._env) is not None or (folder / PEPPER).exists()
        if not known and await store.list_keys():
            raise CliFault(
                f"The keys of this store were made under a pepper that is not in {folder}: a key made now would not "
                "work. Set GATEWAY_PEPPER or GATEWAY_PEPPER_FILE as the gateway has it, or use --admin-url."
            )
        return load_secret(PEPPER, folder, self._env, SystemRandom())


def _path(url: str) -> Path:
    try:
        return sqlite_path(url)
    except ValueError as fault:
        raise CliFault(f"--state: {fault}.") from None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name for this user id, as in many containers
        return "unknown"
