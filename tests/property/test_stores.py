"""Both stores, told the same in any order, give the same answers, the same refusals and the same audit trail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.model import Limits, Target
from gateway.stores.chain import first_break
from gateway.stores.interfaces import Conflict, KeyRecord, KeySecret, NotFound, StateStore
from gateway.stores.open import open_store
from tests.redisserver import RedisServer

NAMES = st.sampled_from(["app", "batch", "id1", 'é\n"{gw}', "\0"])
IDS = st.sampled_from(["id1", "id2", "id3"])
DIGESTS = st.sampled_from([b"1", b"2", b"3", b"\xff"])
TIMES = st.floats(0, 1_000, allow_nan=False, width=64)
ENDS = st.none() | TIMES
FIGURES = st.none() | st.integers(1, 1 << 40)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)

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


ACTS = st.one_of(
    st.builds(_add, IDS, NAMES, DIGESTS, TIMES, ENDS, FIGURES, TEXTS),
    st.builds(_rotate, NAMES | IDS, DIGESTS, TIMES, ENDS, TIMES),
    st.builds(lambda name, at: lambda store: store.revoke_key(name, at=at, author="cid"), NAMES | IDS, TIMES),
    st.builds(_assign, NAMES, TEXTS, st.integers(1, 100), TIMES, TEXTS, st.none() | st.integers(0, 3)),
    st.builds(_note, TIMES, TEXTS, st.dictionaries(TEXTS, TEXTS | st.integers(-9, 9) | st.none(), max_size=3)),
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
