"""Two instances on one Redis while their alias is moved again and again under load: nothing is lost, nothing strays."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.conftest import RunningGateway, Site, wait_until
from tests.redisserver import RedisServer

ALIAS = "internal-general"
MODELS = ("first-model", "second-model")
CHAT = {"model": ALIAS, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
STALENESS = 2.0


class Moved(NamedTuple):
    """One write: the revision that it made, when it was asked for and when it was answered (Unix seconds)."""

    revision: int
    asked: float
    answered: float


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "redis"
    folder.mkdir()
    with RedisServer(folder, "--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@pytest.fixture
def pair(site: Site, server: RedisServer, tmp_path: Path) -> tuple[RunningGateway, RunningGateway]:
    engines = [site.engine(model=model, step_time=0.001) for model in MODELS]
    gateways = [site.gateway(engines, state=server.url(), state_folder=tmp_path / "state") for _ in range(2)]
    for gateway in gateways:
        for model in MODELS:
            gateway.wait_ready(model)
    gateways[0].alias(ALIAS, MODELS[0])
    wait_until(lambda: ALIAS in gateways[1].gateway.core.aliases.table.current, "the alias at the second instance")
    return gateways[0], gateways[1]


class Load:
    """Workers that call both instances in turn, streamed and not, until told to stop."""

    def __init__(self, pair: tuple[RunningGateway, RunningGateway], key: str, workers: int = 4) -> None:
        self.statuses: list[int] = []
        self.broken = 0
        self._pair = pair
        self._headers = {"authorization": f"Bearer {key}"}
        self._workers = workers
        self._over = asyncio.Event()

    async def __aenter__(self) -> Load:
        self._http = httpx.AsyncClient(trust_env=False, timeout=30, headers=self._headers)
        self._tasks = [asyncio.create_task(self._work(number)) for number in range(self._workers)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        await asyncio.gather(*self._tasks)
        await self._http.aclose()

    async def _work(self, number: int) -> None:
        while not self._over.is_set():
            number += 1
            stream = number % 3 == 0
            url = f"{self._pair[number % 2].base_url}/chat/completions"
            answer = await self._http.post(url, json={**CHAT, "stream": stream})
            self.statuses.append(answer.status_code)
            whole = answer.text.endswith("data: [DONE]\n\n") if stream else answer.json()["model"] == ALIAS
            self.broken += not whole


async def _move(http: httpx.AsyncClient, gateway: RunningGateway, model: str) -> Moved | int:
    """Assign the alias by the admin API; the status when it was refused."""
    asked = time.time()
    answer = await http.put(f"{gateway.admin_url}/admin/aliases/{ALIAS}", json={"model": model})
    return Moved(answer.json()["revision"], asked, time.time()) if answer.status_code == 200 else answer.status_code


@contextlib.asynccontextmanager
async def _operators(gateway: RunningGateway, count: int) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Clients of so many operators: an author may write only so often in a minute."""
    keys = [await asyncio.to_thread(gateway.key, f"ops-{number}", roles=("operator",)) for number in range(count)]
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            httpx.AsyncClient(trust_env=False, timeout=30, headers={"authorization": f"Bearer {key}"}) for key in keys
        ]
        yield [await stack.enter_async_context(client) for client in clients]


def _strays(gateway: RunningGateway, moves: list[Moved], models: dict[int, str]) -> list[dict]:
    """Records of requests that reached a model that was not that of a revision current at their start, or not so long
    ago that the instance need not have known."""
    ends = {earlier.revision: later.answered for earlier, later in itertools.pairwise(moves)}
    begins = {move.revision: move.asked for move in moves}
    strays = []
    for record in gateway.records.lines:
        revision = record["revision"]
        if revision is None:
            continue
        late = record["time"] > ends.get(revision, record["time"]) + STALENESS
        early = record["time"] < begins[revision] - STALENESS
        if late or early or record["model"] != models[revision]:
            strays.append(record)
    return strays


def test_two_hundred_moves_under_load_lose_nothing_and_reach_everybody(pair):
    key = pair[0].key("app")
    took: list[float] = []

    async def use() -> tuple[list[Moved], Load]:
        moves = [Moved(1, 0.0, 0.0)]
        async with _operators(pair[0], 5) as operators, Load(pair, key) as load:
            while load.statuses.count(200) < 20:
                await asyncio.sleep(0.005)
            for number in range(200):
                writer, other = (pair, pair[::-1])[number % 2]
                move = await _move(operators[number % 5], writer, MODELS[(number + 1) % 2])
                assert isinstance(move, Moved)
                # The instance that wrote serves by it as soon as it has said so.
                assert writer.gateway.core.aliases.table.current[ALIAS].number == move.revision
                while other.gateway.core.aliases.table.current[ALIAS].number < move.revision:
                    assert time.time() < move.answered + STALENESS
                    await asyncio.sleep(0.001)
                took.append(time.time() - move.answered)
                moves.append(move)
        return moves, load

    moves, load = asyncio.run(use())
    assert [move.revision for move in moves] == list(range(1, 202))
    assert set(load.statuses) == {200}
    assert load.broken == 0
    models = {move.revision: MODELS[(move.revision + 1) % 2] for move in moves}
    assert [record for gateway in pair for record in _strays(gateway, moves, models)] == []
    assert len({record["revision"] for gateway in pair for record in gateway.records.lines} - {None}) > 20
    assert statistics.median(took) <= 0.05


def test_with_redis_killed_in_the_middle_writes_are_refused_nothing_strays_and_all_converge(pair, server):
    key = pair[0].key("app")
    # Each has heard of the key's making, after which it forgets what it read of the key before.
    for gateway in pair:
        gateway.site.run(gateway.gateway.core.keys.refresh())

    async def use() -> tuple[list[Moved], Load, list[int]]:
        moves, refused = [Moved(1, 0.0, 0.0)], []
        async with _operators(pair[0], 1) as (http,), Load(pair, key) as load:
            while load.statuses.count(200) < 20:
                await asyncio.sleep(0.005)
            for number in range(20):
                move = await _move(http, pair[number % 2], MODELS[(number + 1) % 2])
                assert isinstance(move, Moved)
                moves.append(move)
            server.kill()
            for number in range(4):
                refused.append(await _move(http, pair[number % 2], MODELS[1]))
            during = len(load.statuses)
            while len(load.statuses) < during + 20:
                await asyncio.sleep(0.005)
            server.start()
            deadline = time.time() + 20
            while not isinstance(move := await _move(http, pair[1], MODELS[1]), Moved):
                assert time.time() < deadline
                await asyncio.sleep(0.05)
            moves.append(move)
            while pair[0].gateway.core.aliases.table.current[ALIAS].number < move.revision:
                assert time.time() < deadline
                await asyncio.sleep(0.005)
        return moves, load, refused

    moves, load, refused = asyncio.run(use())
    assert refused == [503] * 4
    assert [move.revision for move in moves] == list(range(1, 23))
    assert set(load.statuses) == {200}
    assert load.broken == 0
    models = {number: MODELS[(number + 1) % 2] for number in range(1, 22)} | {22: MODELS[1]}
    # While the store was gone the last known table stood, however long.
    kept = [Moved(m.revision, m.asked, m.answered + (1e9 if m.revision == 22 else 0.0)) for m in moves]
    assert [record for gateway in pair for record in _strays(gateway, kept, models)] == []
