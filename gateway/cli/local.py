"""The commands' backend on a store of this host, with or without a gateway running on it."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import SystemRandom
from types import TracebackType
from typing import Self

from gateway.admin.aliasing import Actor, change, pair, show
from gateway.admin.aliasorders import AliasOrder, ChangeOrder
from gateway.admin.aliasviews import (
    AliasList,
    AliasView,
    DiffView,
    HistoryPage,
    HistoryPaging,
    InstanceList,
    WrittenView,
    alias_list,
    alias_view,
    diff_view,
    written_view,
)
from gateway.admin.comparison import ComparisonView
from gateway.admin.explainviews import DecisionView
from gateway.admin.fleetorders import Author, Listed, Outcome, add, give, orders_generation, permitted
from gateway.admin.fleetviews import (
    AddOrder,
    EngineChange,
    FleetList,
    FleetOrder,
    ReplicaView,
    WarmOrder,
    id_of,
    order_view,
)
from gateway.admin.operations import Mint, issue_key, rotate_key
from gateway.admin.reads import generation_now, read_history, read_instances
from gateway.admin.rules import ExplanationView, explanation, unknown_roles
from gateway.admin.schemas import (
    KeyOrder,
    KeyView,
    NewKeyView,
    RotateOrder,
    key_view,
    new_key_view,
)
from gateway.admin.trail import AuditPage, Point, audit_view
from gateway.cli.backend import Backend, CliFault
from gateway.cli.output import note, plain
from gateway.fleet.discover.sources import Origin
from gateway.identity.peppers import check_peppers
from gateway.identity.secrets import find_peppers, load_peppers
from gateway.policy.access import load_access
from gateway.settings import is_redis, load_settings, sqlite_path, state_folder_of, state_password
from gateway.stores.interfaces import StateStore
from gateway.stores.open import open_store


class LocalBackend(Backend):
    """Opens the store at ``url``, which is well formed, for the time of one command.

    A running gateway sees a write within its poll.
    """

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
        self._check_roles(order)
        store = await self._store(create=True)
        mint = await self._mint(store)
        now = time.time()
        record, text = await issue_key(store, mint, order, author=self._author, now=now)
        return new_key_view(record, now, text.reveal())

    async def rotate_key(self, key: str, order: RotateOrder) -> NewKeyView:
        """Give a key, by id or name, another text."""
        store = await self._store()
        found = await store.get_key(key)
        mint = await self._mint(store)
        now = time.time()
        record, text = await rotate_key(store, mint, found.id, order, author=self._author, now=now)
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

    async def list_aliases(self) -> AliasList:
        """All aliases by name."""
        return alias_list(await (await self._store()).alias_table())

    async def show_alias(self, name: str, number: int | None) -> AliasView:
        """A revision of an alias; ``None``: the current one."""
        return alias_view(await show(await self._store(), name, number))

    async def change_alias(self, name: str, order: ChangeOrder) -> WrittenView:
        """Do what the order says. Whether a replica serves a model is not known here, so ``force`` always tells."""
        store = await self._store(create=isinstance(order, AliasOrder))
        made = await change(store, name, order, Actor(self._author, time.time()))
        return written_view(made, await generation_now(store))

    async def alias_history(self, name: str, before: int | None) -> HistoryPage:
        """Revisions of an alias with a number below ``before``, newest first."""
        return await read_history(await self._store(), name, HistoryPaging(before=before))

    async def alias_diff(self, name: str, old: int | None, new: int | None) -> DiffView:
        """What differs between two revisions of an alias."""
        return diff_view(*await pair(await self._store(), name, old, new))

    async def compare_alias(self, name: str) -> ComparisonView:
        """Only a gateway counts. Raises ``CliFault``."""
        raise CliFault("What a trial does is counted by a running gateway: --admin-url names one ('gateway status').")

    async def list_fleet(self) -> FleetList:
        """The orders about engines: nobody here looks at any."""
        orders = await (await self._store()).engine_orders()
        shown = [order_view(order) for order in orders.engines.values()]
        return FleetList(watched=False, generation=orders.generation, replicas=[], next=None, sources=[], orders=shown)

    async def show_replica(self, reference: str) -> ReplicaView:
        """Only a gateway looks at engines. Raises ``CliFault``."""
        raise CliFault(
            "How an engine does is known to a running gateway alone: --admin-url names one ('gateway status'). "
            "'gateway fleet list' shows what is ordered."
        )

    async def explain_choice(self, request_id: str | None, alias: str | None) -> DecisionView:
        """Only a gateway places requests. Raises ``CliFault``."""
        raise CliFault(
            "How requests are placed is known to a running gateway alone: --admin-url names one ('gateway status')."
        )

    async def add_engine(self, order: AddOrder) -> EngineChange:
        """Make an engine part of the fleet, by the ``remote_engines`` of this environment's configuration."""
        listed = self._listed()
        permitted(order, listed)  # what is refused makes no store
        store = await self._store(create=True)
        made = await add(store, order, listed, Author(self._author, time.time()))
        return await self._ordered(store, made)

    async def change_engine(self, reference: str, order: FleetOrder) -> EngineChange:
        """Do what the order says, if it is one that stands in the store."""
        if isinstance(order, WarmOrder):
            raise CliFault("Only a running gateway warms an engine up: --admin-url names one ('gateway status').")
        store = await self._store()
        made = await give(store, reference, order, self._listed(), Author(self._author, time.time()))
        return await self._ordered(store, made)

    async def _ordered(self, store: StateStore, made: Outcome) -> EngineChange:
        return EngineChange(
            id=id_of(made.url),
            url=made.url,
            changed=made.changed,
            watched=False,
            generation=await orders_generation(store),
            order=None if made.order is None else order_view(made.order),
            replica=None,
        )

    def _listed(self) -> Listed:
        """The engines of this environment's configuration: which others a gateway finds is not known here."""
        settings = load_settings({}, self._env)
        origins = {spec.url: str(Origin.CONFIGURATION) for spec in settings.engines}
        return Listed(origins, remote=settings.remote_engines)

    async def instances(self) -> InstanceList:
        """The gateways of the last hour."""
        return await read_instances(await self._store(), time.time())

    async def audit_page(self, after: int, limit: int) -> AuditPage:
        """Lines of the audit trail with a number above ``after``, and the newest line of all."""
        store = await self._store()
        number, seal = await store.audit_head()
        lines = await store.audit(after=after, limit=limit)
        return AuditPage(lines=[audit_view(line) for line in lines], head=Point(number=number, hash=seal.hex()))

    async def explain(self, key: str, alias: str) -> ExplanationView:
        """What the access policy makes of a key, by id or name, and an alias."""
        store = await self._store()
        found = await store.get_key(key)
        exists = alias in (await store.alias_table()).current
        return explanation(load_access(self._policy()), found, alias, exists=exists, now=time.time())

    async def _store(self, *, create: bool = False) -> StateStore:
        # A mistyped path must not become a new, empty store that has "no keys".
        if not create and not is_redis(self._url) and not sqlite_path(self._url).exists():
            raise CliFault(
                f"There is no state at {self._url}: no gateway has run on it. 'gateway serve' or 'gateway keys create' "
                "makes it; if yours is elsewhere, name it by --admin-url, --state or GATEWAY_STATE."
            )
        if create and not is_redis(self._url) and not sqlite_path(self._url).exists():
            note(f"Made a new state at {plain(self._url)}: no gateway has run on it yet.")
        self._opened = self._opened or await open_store(self._url, password=state_password(self._env))
        return self._opened

    async def _mint(self, store: StateStore) -> Mint:
        """What keys are made with: the pepper that the store's keys were made under, or the first of a new store."""
        folder = state_folder_of(self._url, self._env)
        if not find_peppers(folder, self._env) and await store.list_keys():
            raise CliFault(
                f"The keys of this store were made under a pepper that is not in {folder}: a key made now would not "
                "work. Set GATEWAY_PEPPER or GATEWAY_PEPPER_FILE as the gateway has it, or use --admin-url."
            )
        peppers = load_peppers(folder, self._env, SystemRandom())
        await check_peppers(store, peppers)
        return Mint(peppers[max(peppers)], max(peppers), SystemRandom())

    def _policy(self) -> Path:
        return load_settings({}, self._env).policies / "access.yaml"

    def _check_roles(self, order: KeyOrder) -> None:
        """Refuse roles that the policy does not know: they would grant nothing, and nobody would be told."""
        if not order.roles:
            return
        path = self._policy()
        fault = unknown_roles(load_access(path), order.roles)
        if fault is not None:
            raise CliFault(f"--role: {fault}. They are in {path}; GATEWAY_POLICIES names another folder.")


def _user() -> str:
    """Whose process this is; the environment could say anything."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # no name for this user id, as in many containers
        return f"uid-{os.getuid()}"
