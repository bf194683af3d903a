"""Both stores, told the same in any order, give the same answers, the same refusals and the same audit trail.

For orders about engines a plain dictionary, which knows nothing of stores, gives them too; and whatever two clients do
at once, the trail tells how it came about, one change after the other.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.model import EngineOrder, EngineOrders, Limits, Target
from gateway.stores.chain import first_break
from gateway.stores.interfaces import AuditEntry, Conflict, KeyRecord, KeySecret, NotFound, StateStore
from gateway.stores.open import open_store
from tests.redisserver import RedisServer

NAMES = st.sampled_from(["app", "batch", "id1", 'é\n"{gw}', "\0"])
IDS = st.sampled_from(["id1", "id2", "id3"])
DIGESTS = st.sampled_from([b"1", b"2", b"3", b"\xff"])
TIMES = st.floats(0, 1_000, allow_nan=False, width=64)
ENDS = st.none() | TIMES
FIGURES = st.none() | st.integers(1, 1 << 40)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
URLS = st.sampled_from(["http://a:1", "https://b.example", 'é\n"{gw}\0'])
LABELS = st.dictionaries(TEXTS, TEXTS, max_size=3)
CLIENTS = 2
STEADY = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

Act = Callable[[StateStore], Awaitable[Any]]


def _add(key_id: str, name: str, digest: bytes, at: float, ends: float | None, limit: int | None, text: str) -> Act:
    record = KeyRecord(
        key_id,
        name,
        text,
        (text,),
        ("*",),
        at,
        expires_at=ends,
        limits=Limits(limit, None, limit),
        secrets=(KeySecret(at),),
    )
    return lambda store: store.add_key(digest, record, author="ann")


def _rotate(name: str, digest: bytes, at: float, ends: float | None, until: float) -> Act:
    return lambda store: store.rotate_key(name, digest, KeySecret(at, ends, 2), overlap_until=until, author="bob")


def _assign(alias: str, model: str, weight: int, at: float, note: str, expect: int | None) -> Act:
    targets = (Target("m", weight), Target(model))
    return lambda store: store.assign_alias(alias, targets, author="ann", at=at, note=note, expect_revision=expect)


def _note(at: float, subject: str, detail: dict[str, object]) -> Act:
    return lambda store: store.note(at=at, author="ann", verb="policy.load", subject=subject, detail=detail)


class Order(NamedTuple):
    """One thing that a client does about an engine."""

    verb: str
    url: str
    labels: Mapping[str, str]
    author: str
    at: float
    note: str

    async def done(self, store: StateStore) -> Any:
        by: dict[str, Any] = {"author": self.author, "at": self.at, "note": self.note}
        if self.verb == "add":
            return await store.add_engine(self.url, labels=self.labels, **by)
        if self.verb == "remove":
            return await store.remove_engine(self.url, **by)
        if self.verb == "read":
            return await store.engine_orders()
        return await store.drain_engine(self.url, draining=self.verb == "drain", **by)


VERBS = st.sampled_from(["add", "add", "remove", "drain", "drain", "undrain"])
ORDERS = st.builds(Order, VERBS | st.just("read"), URLS, LABELS, TEXTS, TIMES, TEXTS)


class Plain:
    """The orders as a dictionary keeps them: by URL whether it is added and drained, its labels, who, when, why."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[bool, bool, Mapping[str, str], str, float, str]] = {}
        self.changes = 0

    def orders(self) -> EngineOrders:
        return EngineOrders(self.changes, {url: EngineOrder(url, *rest) for url, rest in self.held.items()})

    def done(self, act: Order) -> Any:
        """What the store should answer; a refusal as its type."""
        if act.verb == "read":
            return self.orders()
        added, draining, labels, *_ = before = self.held.get(act.url, (False, False, {}, "", 0.0, ""))
        was, by = EngineOrder(act.url, *before), (act.author, act.at, act.note)
        if act.verb == "add":
            return Conflict if added else self._change(act.url, (True, draining, act.labels, *by))
        if act.verb == "remove":
            if not added:
                return NotFound
            self._change(act.url, None)
            return was
        if draining is (act.verb == "drain"):
            return was, False
        after = (added, not draining, labels, *by)
        self._change(act.url, after if added or not draining else None)
        return EngineOrder(act.url, *after), True

    def _change(self, url: str, held: Any) -> EngineOrder | None:
        self.changes += 1
        self.held.pop(url, None)
        if held is None:
            return None
        self.held[url] = held
        return EngineOrder(url, *held)


def retold(lines: Sequence[AuditEntry]) -> tuple[EngineOrders, int]:
    """The orders as the audit trail tells them, and how many of its lines are about engines."""
    plain = Plain()
    for line in lines:
        detail = json.loads(line.detail)
        verb = line.verb.removeprefix("fleet.")
        act = Order(verb, line.subject, detail.get("labels", {}), line.author, line.at, detail["note"])
        before = plain.changes
        plain.done(act)
        assert plain.changes == before + 1, "a line that changes nothing"
    return plain.orders(), plain.changes


ACTS = st.one_of(
    st.builds(_add, IDS, NAMES, DIGESTS, TIMES, ENDS, FIGURES, TEXTS),
    st.builds(_rotate, NAMES | IDS, DIGESTS, TIMES, ENDS, TIMES),
    st.builds(lambda name, at: lambda store: store.revoke_key(name, at=at, author="cid"), NAMES | IDS, TIMES),
    st.builds(_assign, NAMES, TEXTS, st.integers(1, 100), TIMES, TEXTS, st.none() | st.integers(0, 3)),
    st.builds(_note, TIMES, TEXTS, st.dictionaries(TEXTS, TEXTS | st.integers(-9, 9) | st.none(), max_size=3)),
    st.builds(lambda act: act.done, ORDERS),
    st.builds(lambda digest: lambda store: store.find_key(digest), DIGESTS),
    st.builds(lambda name: lambda store: store.get_key(name), NAMES | IDS),
    st.builds(lambda name: lambda store: store.alias_history(name), NAMES),
    st.builds(lambda version, mark: lambda store: store.pepper_mark(version, mark), st.integers(1, 3), DIGESTS),
    st.builds(
        lambda after, limit: lambda store: store.audit(after=after, limit=limit), st.integers(0, 9), st.integers(1, 9)
    ),
)


async def outcome(store: StateStore, act: Act) -> Any:
    try:
        return await act(store)
    except (Conflict, NotFound) as refusal:
        return type(refusal), str(refusal)


async def all_of(store: StateStore) -> tuple[Any, ...]:
    lines = await store.audit()
    assert first_break(lines) is None
    table = await store.alias_table()
    return (
        await store.versions(),
        list(await store.list_keys()),
        (table.generation, list(table.current.items())),
        list((await store.engine_orders()).engines.items()),
        list(lines),
        await store.audit_head(),
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=st.lists(ACTS, max_size=25))
def test_both_stores_do_the_same(server: RedisServer, acts: list[Act]) -> None:
    server.command("FLUSHALL")

    async def body(folder: Path) -> None:
        stores = [await open_store(f"sqlite://{folder / 'state.db'}"), await open_store(server.url())]
        try:
            for act in acts:
                ours, theirs = [await outcome(store, act) for store in stores]
                assert ours == theirs
            first, second = [await all_of(store) for store in stores]
            assert first == second
        finally:
            for store in stores:
                await store.close()

    with TemporaryDirectory() as folder:
        asyncio.run(body(Path(folder)))


@asynccontextmanager
async def clients_of(url: str) -> AsyncIterator[list[StateStore]]:
    async with AsyncExitStack() as stack:
        clients = []
        for _ in range(CLIENTS):
            store = await open_store(url)
            stack.push_async_callback(store.close)
            clients.append(store)
        yield clients


@STEADY
@given(turns=st.lists(st.tuples(st.integers(0, CLIENTS - 1), ORDERS), max_size=25))
def test_in_any_order_both_stores_and_a_dictionary_hold_the_same_orders(
    server: RedisServer, turns: list[tuple[int, Order]]
) -> None:
    server.command("FLUSHALL")

    async def body(folder: str) -> None:
        plain = Plain()
        file = f"sqlite://{Path(folder) / 'state.db'}"
        async with clients_of(file) as ours, clients_of(server.url()) as theirs:
            for who, act in turns:
                answer = await outcome(ours[who], act.done)
                assert await outcome(theirs[who], act.done) == answer
                refused = isinstance(answer, tuple) and isinstance(answer[0], type)
                assert (answer[0] if refused else answer) == plain.done(act)
                # Whoever was not the one to write sees it too, and the generation has moved by one or not at all.
                for other in (ours[1 - who], theirs[1 - who]):
                    assert await other.engine_orders() == plain.orders()
            assert await all_of(ours[0]) == await all_of(theirs[0])
            assert (await ours[0].versions()).fleet == len(await ours[0].audit()) == plain.changes

    with TemporaryDirectory() as folder:
        asyncio.run(body(folder))


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
@STEADY
@given(programs=st.tuples(*[st.lists(ORDERS, min_size=1, max_size=10)] * CLIENTS))
def test_at_once_the_orders_are_as_the_trail_tells(
    server: RedisServer, kind: str, programs: tuple[list[Order], ...]
) -> None:
    server.command("FLUSHALL")

    async def follow(store: StateStore, program: list[Order]) -> int:
        made, generation = 0, 0
        for act in program:
            answer = await outcome(store, act.done)
            if isinstance(answer, EngineOrders):
                assert answer.generation >= generation
                generation = answer.generation
            else:
                made += answer[1] is True if isinstance(answer, tuple) else 1
        return made

    async def body(folder: str) -> None:
        url = server.url() if kind == "redis" else f"sqlite://{Path(folder) / 'state.db'}"
        async with clients_of(url) as clients:
            made = await asyncio.gather(*map(follow, clients, programs))
            lines = await clients[0].audit()
            assert first_break(lines) is None
            orders, told = retold(lines)
            assert sum(made) == told == orders.generation
            for client in clients:
                assert await client.engine_orders() == orders

    with TemporaryDirectory() as folder:
        asyncio.run(body(folder))
