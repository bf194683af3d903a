"""Instances that count each other's requests: when they tell, what they believe, and what an outage does."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.fleet.balance.hints import Hints
from gateway.fleet.balance.pace import Prior
from gateway.fleet.balance.prompt import Prompt, reach
from gateway.fleet.balance.shared import EXPIRY, pack, unpack
from gateway.fleet.balance.strategies import point_of
from gateway.fleet.balance.workload import Workload
from gateway.loadshare import SHARE_INTERVAL, LoadShare, redis_load_share
from gateway.stateurl import redis_place
from gateway.stores.interfaces import StoreUnavailable
from tests.redisserver import RedisServer

PROMPT = Prompt(tuple(range(2, 14, 2)), reach(6) + 10)
LOST = StoreUnavailable("state store Redis 127.0.0.1:6379/0 cannot be reached.")


class Busy:
    """A replica that has requests of one instance."""

    def __init__(self, number: int = 1) -> None:
        self.id = f"10.0.0.{number}:8000"
        self.point = point_of(self.id)
        self.in_flight = 0
        self.work = Workload(Prior())

    def send(self, tokens: int) -> None:
        self.in_flight += 1
        self.work.began(tokens, 0.0)

    def end(self, tokens: int) -> None:
        self.in_flight -= 1
        self.work.dropped(tokens, self.work.epoch)

    @property
    def others(self) -> tuple[int, float]:
        return self.work.others_in_flight, self.work.load(self.in_flight, 1.0, 0.0).others


class Board:
    """An exchange in memory. ``turns`` are what it does next, the last one again and again."""

    def __init__(self, *turns: Any) -> None:
        self.turns = list(turns)
        self.told: list[tuple[bytes, bytes]] = []
        self.closed = 0

    async def exchange(self, report: bytes, hints: bytes) -> Any:
        self.told.append((report, hints))
        turn = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
        if isinstance(turn, Exception):
            raise turn
        return turn

    async def close(self) -> None:
        self.closed += 1


def told(*reports: bytes, hints: tuple[bytes, ...] = (), unfit: int = 0, age: float = 0.0) -> Any:
    return SimpleNamespace(reports=[(report, age) for report in reports], hints=hints, unfit=unfit)


class Site:
    """One instance with two replicas, and a clock that moves with each step."""

    def __init__(self, *turns: Any) -> None:
        self.now = 1_000.0
        self.board = Board(*(turns or (told(),)))
        self.replicas = [Busy(1), Busy(2)]
        self.hints = Hints()
        self.lines: list[str] = []
        self.share = LoadShare(self.board, lambda: self.replicas, self.hints, self.lines.append, now=lambda: self.now)

    def run(self, seconds: float = SHARE_INTERVAL) -> None:
        for _ in range(round(seconds / SHARE_INTERVAL)):
            self.now += SHARE_INTERVAL
            asyncio.run(self.share.step())


# --- what is told


def test_a_busy_instance_tells_what_it_has_in_each_step():
    site = Site()
    site.replicas[0].send(4_000)
    site.replicas[0].send(1_000)
    site.run()
    site.replicas[0].work.answered(4_000, site.replicas[0].work.epoch, 0.0)
    site.replicas[1].send(300)
    site.run()
    one, two = (replica.point for replica in site.replicas)
    assert [unpack(report) for report, _ in site.board.told] == [
        {one: (2, 5_000)},
        {one: (2, 1_000), two: (1, 300)},
    ]


def test_an_instance_that_becomes_idle_says_so_at_once_and_later_listens_seldom():
    site = Site()
    site.replicas[0].send(4_000)
    site.run()
    site.replicas[0].end(4_000)
    site.run()
    assert site.board.told[-1] == (b"", b"")
    site.run(10)
    del site.board.told[:]
    site.run(10)
    assert len(site.board.told) == 10
    site.replicas[0].send(4_000)
    site.run()
    assert unpack(site.board.told[-1][0]) == {site.replicas[0].point: (1, 4_000)}


def test_hints_go_along_once_and_only_when_there_is_somebody_to_tell():
    site = Site()
    site.hints.note(PROMPT, site.replicas[0].point, 0)
    site.replicas[0].send(10)
    site.run()
    site.hints.note(PROMPT, site.replicas[0].point, 0)
    site.run(2 * SHARE_INTERVAL)
    assert [bool(hints) for _, hints in site.board.told] == [False, True, False]


# --- what is heard


def test_estimates_count_what_all_others_have():
    site = Site()
    one, two = site.replicas
    site.board.turns = [told(pack({one.point: (2, 900)}), pack({one.point: (1, 100), two.point: (1, 7)}), age=0.05)]
    site.run()
    assert (one.others, two.others) == ((3, 1_000), (1, 7))
    assert (site.share.instances, site.share.age()) == (2, 0.0)
    site.board.turns = [told()]
    site.run(1)
    assert (one.others, two.others) == ((0, 0), (0, 0))


def test_what_is_not_believed_is_counted():
    site = Site()
    one = site.replicas[0]
    site.board.turns = [told(b"\x02new", pack({one.point: (1, 5)}), hints=(b"\x02new", b""), unfit=4)]
    site.run()
    assert (site.share.refused, one.others) == (7, (1, 5))


def test_replicas_that_only_others_have_are_passed_over():
    site = Site(told(pack({12345: (1, 5)})))
    site.run()
    assert [replica.others for replica in site.replicas] == [(0, 0), (0, 0)]


def test_what_others_sent_is_known_here():
    other = Site()
    other.run()
    other.hints.note(PROMPT, other.replicas[1].point, 0)
    site = Site(told(hints=(other.hints.take(),)))
    site.run()
    held: dict[str, int] = {}
    site.hints.extend(PROMPT, held)
    assert held == {site.replicas[1].id: reach(6)}


# --- the store is gone


def test_while_the_store_fails_the_others_fade_and_one_line_tells_of_it():
    site = Site()
    one = site.replicas[0]
    one.send(10)
    site.board.turns = [told(pack({one.point: (10, 1_000)})), LOST]
    site.run()
    known = []
    for _ in range(round(EXPIRY / SHARE_INTERVAL) + 1):
        known.append(one.others)
        site.run()
    assert known[:3] == [(10, 1_000)] * 3
    assert known == sorted(known, reverse=True)
    assert len({tokens for _, tokens in known}) > 6
    assert known[-1] == (0, 0)
    assert site.share.lost
    site.run(5)
    assert len(site.board.told) < 12
    assert site.share.age() > 5
    assert site.lines == [
        "load: state store Redis 127.0.0.1:6379/0 cannot be reached. Requests of other instances do not count meanwhile"
    ]
    site.board.turns = [told(pack({one.point: (10, 1_000)}))]
    site.run(1.2)
    assert one.others == (10, 1_000)
    assert not site.share.lost
    assert site.lines[1:] == ["load: the shared store is back; requests of other instances count again"]


def test_a_store_that_comes_and_goes_is_told_of_now_and_then():
    site = Site(*[LOST, told()] * 30)
    site.replicas[0].send(10)
    site.run(30)
    assert 4 <= len(site.lines) <= 8


def test_a_store_that_was_never_there_is_asked_seldom():
    site = Site(LOST)
    site.run(10)
    assert (len(site.board.told), len(site.lines), site.share.age()) == (10, 1, math.inf)


# --- the end


def test_to_close_takes_back_what_was_told_and_does_so_once():
    site = Site()
    site.replicas[0].send(10)
    site.run()
    for _ in range(2):
        asyncio.run(site.share.close())
    assert site.board.told[1:] == [(b"", b"")]
    assert site.board.closed == 1


@pytest.mark.parametrize("busy", [False, True])
def test_where_nothing_was_told_or_the_store_is_gone_nothing_is_taken_back(busy):
    site = Site(LOST)
    if busy:
        site.replicas[0].send(10)
    site.run()
    asyncio.run(site.share.close())
    assert (len(site.board.told), site.board.closed) == (1, 1)


# --- over a real Redis


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that stands still is no lost store here."""
    monkeypatch.setattr("gateway.stores.redis_load._TIMEOUT", 10.0)
    monkeypatch.setattr("gateway.stores.redis_load._DEADLINE", 10.0)


def share_on(server: RedisServer, replicas: list[Busy], hints: Hints, lines: list[str]) -> LoadShare:
    loop = asyncio.get_running_loop()
    return redis_load_share(redis_place(server.url()), lambda: replicas, hints, lines.append, now=loop.time)


@pytest.mark.usefixtures("patient")
def test_one_step_of_each_is_all_that_two_instances_need_to_see_each_other(tmp_path: Path):
    async def play(server: RedisServer) -> None:
        ours, theirs = [Busy(1), Busy(2)], [Busy(1), Busy(2)]
        one, two = share_on(server, ours, Hints(), []), share_on(server, theirs, Hints(), [])
        theirs[1].send(9)
        await two.step()
        for count in range(1, 4):
            ours[0].send(100)
            await one.step()
            await two.step()
            assert theirs[0].others == (count, 100 * count)
        assert ours[1].others == (1, 9)
        await one.close()
        await two.step()
        assert theirs[0].others == (0, 0)
        await two.close()
        assert server.command("EXISTS", "{gw}:load") == 0

    with RedisServer(tmp_path) as server:
        asyncio.run(play(server))


@pytest.mark.usefixtures("patient")
def test_an_instance_that_says_nothing_any_more_fades_and_a_store_that_comes_back_is_used_again(tmp_path: Path):
    async def play(server: RedisServer) -> None:
        lines = list[str]()
        ours, theirs = Busy(), Busy()
        one, two = share_on(server, [ours], Hints(), []), share_on(server, [theirs], Hints(), lines)
        ours.send(5_000)
        theirs.send(10)

        async def until(others: tuple[int, int], *shares: LoadShare) -> None:
            async with asyncio.timeout(20):
                while theirs.others != others:
                    for share in shares:
                        await share.step()
                    await asyncio.sleep(0.01)

        await until((1, 5_000), one, two)
        await until((0, 0), two)
        await until((1, 5_000), one, two)
        server.kill()
        await until((0, 0), one, two)
        server.start()
        await until((1, 5_000), one, two)
        assert len(lines) == 2
        await one.close()
        await two.close()

    with RedisServer(tmp_path) as server:
        asyncio.run(play(server))
