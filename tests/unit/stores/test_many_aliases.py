"""Ten thousand aliases: a write stays short, and reading them all never holds up the event loop."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator

import orjson
import pytest
import redis

from gateway.model import AliasTable, Revision, Target
from gateway.stores.interfaces import StateStore
from gateway.stores.redis_records import revision_text
from gateway.stores.redis_scripts import ALIASES, history_of
from tests.unit.stores.test_store import run

MANY = 10_000
LIMIT = 0.02


def revision(number: int) -> Revision:
    targets = (Target("meta-llama/Llama-3.3-70B-Instruct", 90), Target(f"Qwen/Qwen3-{number % 50}B", 10))
    return Revision(f"team-{number:05d}-general", 1, targets, "ann", float(number), "note " * 8, "cli")


def row(one: Revision) -> tuple[object, ...]:
    targets = orjson.dumps([[target.model, target.weight] for target in one.targets]).decode()
    return one.alias, one.number, targets, one.author, one.created_at, one.note, one.source


def fill_file(url: str, revisions: list[Revision]) -> None:
    db = sqlite3.connect(url.removeprefix("sqlite://"))
    with db:
        db.executemany(
            "INSERT INTO revisions (alias, number, targets, author, created_at, note, source) VALUES (?,?,?,?,?,?,?)",
            map(row, revisions),
        )
        db.executemany("INSERT INTO aliases (name, revision) VALUES (?, 1)", ((one.alias,) for one in revisions))
    db.close()


def fill_redis(url: str, revisions: list[Revision]) -> None:
    with redis.Redis.from_url(url) as client, client.pipeline() as pipeline:
        pipeline.hset(ALIASES, mapping={one.alias: revision_text(one) for one in revisions})
        for one in revisions:
            pipeline.hset(history_of(one.alias), "1", revision_text(one))
        pipeline.execute()


@pytest.fixture
def frozen() -> Iterator[None]:
    """What was made before is not looked at by the garbage collection, as in a gateway that has started."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


async def longest_stall(work: Callable[[], Awaitable[AliasTable]]) -> tuple[float, float, AliasTable]:
    """How long the work took, and how long at most the event loop did nothing else."""
    stalls, doing = [0.0], True

    async def tick() -> None:
        last = time.perf_counter()
        while doing:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            stalls.append(now - last)
            last = now

    ticking = asyncio.ensure_future(tick())
    started = time.perf_counter()
    table = await work()
    took, doing = time.perf_counter() - started, False
    await ticking
    return took, max(stalls), table


@pytest.mark.usefixtures("frozen")
def test_ten_thousand_aliases_are_written_and_read_in_time(url: str) -> None:
    revisions = [revision(number) for number in range(MANY)]
    fill = fill_file if url.startswith("sqlite") else fill_redis

    async def body(store: StateStore) -> None:
        await asyncio.to_thread(fill, url, revisions)
        reads = [await longest_stall(store.alias_table) for _ in range(5)]
        assert list(reads[0][2].current.values()) == revisions
        # The quickest tells of the code, the others of what else the host does.
        assert min(took for took, _, _ in reads) < 1.0
        assert min(stall for _, stall, _ in reads) < LIMIT
        took = []
        for one in revisions[:20]:
            started = time.perf_counter()
            made = await store.assign_alias(one.alias, [Target("n")], author="bob", at=1.0, expect_revision=1)
            took.append(time.perf_counter() - started)
            assert made.number == 2
        assert statistics.median(took) < LIMIT

    run(url, body)
