"""Whatever several clients do to aliases, in any order or at once: one history, gapless, as the trail tells it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.model import Revision, Target
from gateway.stores.chain import first_break
from gateway.stores.interfaces import AuditEntry, Conflict, NotFound, StateStore
from gateway.stores.open import open_store
from tests.redisserver import RedisServer

ALIASES = ("chat", 'co:de "\n')
CLIENTS = 3
SEEN, ANY = "seen", None
STEADY = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Act(NamedTuple):
    """One thing that a client does to an alias. ``expect``: a number, what the client has ``SEEN`` last, or ``ANY``."""

    verb: str
    alias: str
    expect: int | str | None
    pick: int


ACTS = st.builds(
    Act,
    st.sampled_from(["set", "set", "canary", "rollback", "delete", "read"]),
    st.sampled_from(ALIASES),
    st.sampled_from([SEEN, SEEN, ANY]) | st.integers(0, 4),
    st.integers(1, 5),
)


class Client:
    """One store object, and what its user has seen through it and won with it."""

    def __init__(self, store: StateStore, name: str) -> None:
        self.store = store
        self.name = name
        self.generation = 0
        self.seen = dict.fromkeys(ALIASES, 0)
        self.longest = dict.fromkeys(ALIASES, 0)
        self.won: list[tuple[str, int, int | None, bool]] = []

    async def do(self, act: Act) -> Any:
        """The outcome of an act, as a value that can be compared."""
        try:
            if act.verb == "read":
                return await self._read()
            expect = self.seen[act.alias] if act.expect == SEEN else act.expect
            made = await self._write(act, expect)
            self.won.append((act.alias, made.number, expect, act.verb == "delete"))
            self.seen[act.alias] = 0 if act.verb == "delete" else made.number
            self.longest[act.alias] = max(self.longest[act.alias], made.number)
            return made
        except (Conflict, NotFound) as refusal:
            return type(refusal), str(refusal)

    async def _write(self, act: Act, expect: Any) -> Revision:
        by: dict[str, Any] = {"author": self.name, "at": float(act.pick), "expect_revision": expect}
        if act.verb == "delete":
            return await self.store.delete_alias(act.alias, note="over", **by)
        if act.verb == "rollback":
            older = await self.store.alias_revision(act.alias, act.pick)
            return await self.store.assign_alias(act.alias, older.targets, source="rollback", **by)
        if act.verb == "canary":
            targets = (Target("m", 100 - act.pick), Target("new", act.pick))
            return await self.store.assign_alias(
                act.alias, targets, source="canary", canary_of=self.seen[act.alias] or None, **by
            )
        return await self.store.assign_alias(act.alias, [Target(f"m{act.pick}")], note="set", **by)

    async def _read(self) -> Any:
        table = await self.store.alias_table()
        assert table.generation >= self.generation
        self.generation = table.generation
        for alias in ALIASES:
            now = table.current.get(alias)
            self.seen[alias] = 0 if now is None else now.number
            history = await history_of(self.store, alias)
            assert len(history) >= max(self.longest[alias], self.seen[alias])
            self.longest[alias] = len(history)
        return table.generation, dict(table.current)


async def history_of(store: StateStore, alias: str) -> Sequence[Revision]:
    try:
        return await store.alias_history(alias)
    except NotFound:
        return ()


def replayed(lines: Sequence[AuditEntry]) -> tuple[dict[str, list[Any]], dict[str, int]]:
    """Histories and current numbers as the trail tells them; each line must follow from those before."""
    histories: dict[str, list[Any]] = {alias: [] for alias in ALIASES}
    current = dict.fromkeys(ALIASES, 0)
    for line in lines:
        detail = json.loads(line.detail)
        number, history = detail["revision"], histories[line.subject]
        if line.verb == "alias.delete":
            assert number == current[line.subject] > 0
            current[line.subject] = 0
            continue
        assert (number, detail["from"]) == (len(history) + 1, current[line.subject])
        targets = tuple(Target(*pair) for pair in detail["targets"])
        more = (detail["note"], detail["source"], detail.get("canary_of"))
        history.append(Revision(line.subject, number, targets, line.author, line.at, *more))
        current[line.subject] = number
    return histories, current


async def judged(clients: Sequence[Client]) -> list[Any]:
    """Hold all that the clients see and have won against the trail; what is kept in the end."""
    store = clients[0].store
    lines = await store.audit()
    assert first_break(lines) is None
    assert await store.audit_head() == (len(lines), lines[-1].hash if lines else bytes(32))
    histories, current = replayed(lines)
    for client in clients:
        table = await client.store.alias_table()
        assert table.generation == len(lines)
        assert {alias: one.number for alias, one in table.current.items()} == {a: n for a, n in current.items() if n}
        for alias in ALIASES:
            assert list(await history_of(client.store, alias)) == histories[alias]
            assert current[alias] == 0 or table.current[alias] == histories[alias][-1]
    before = {
        (line.subject, detail["revision"], line.verb == "alias.delete"): detail.get("from", detail["revision"])
        for line, detail in ((line, json.loads(line.detail)) for line in lines)
    }
    won = [one for client in clients for one in client.won]
    assert len(won) == len(lines) == len(before)
    assert all(expect in (None, before[alias, number, ended]) for alias, number, expect, ended in won)
    return [histories, current, list(lines)]


@asynccontextmanager
async def clients_of(url: str) -> AsyncIterator[list[Client]]:
    async with AsyncExitStack() as stack:
        clients = []
        for number in range(CLIENTS):
            store = await open_store(url)
            stack.push_async_callback(store.close)
            clients.append(Client(store, f"client {number}"))
        yield clients


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


@STEADY
@given(turns=st.lists(st.tuples(st.integers(0, CLIENTS - 1), ACTS), max_size=30))
def test_in_any_order_both_stores_tell_the_same_history(server: RedisServer, turns: list[tuple[int, Act]]) -> None:
    server.command("FLUSHALL")

    async def body(folder: str) -> None:
        file = f"sqlite://{Path(folder) / 'state.db'}"
        async with clients_of(file) as ours, clients_of(server.url()) as theirs:
            for who, act in turns:
                assert await ours[who].do(act) == await theirs[who].do(act)
            assert await judged(ours) == await judged(theirs)

    with TemporaryDirectory() as folder:
        asyncio.run(body(folder))


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
@STEADY
@given(programs=st.tuples(*[st.lists(ACTS, min_size=1, max_size=10)] * CLIENTS))
def test_at_once_the_history_is_linear(server: RedisServer, kind: str, programs: tuple[list[Act], ...]) -> None:
    server.command("FLUSHALL")

    async def follow(client: Client, program: list[Act]) -> None:
        for act in program:
            await client.do(act)

    async def body(folder: str) -> None:
        url = server.url() if kind == "redis" else f"sqlite://{Path(folder) / 'state.db'}"
        async with clients_of(url) as clients:
            await asyncio.gather(*map(follow, clients, programs))
            await judged(clients)

    with TemporaryDirectory() as folder:
        asyncio.run(body(folder))
