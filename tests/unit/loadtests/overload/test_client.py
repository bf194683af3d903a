import asyncio
import heapq
import itertools
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from loadtests.engine.server import SimulatedEngine
from loadtests.engine.spec import instant_spec
from loadtests.overload import client
from loadtests.overload.answers import SERVED, Heard
from loadtests.overload.arrivals import Request
from loadtests.overload.client import RETRIES, Attempt, Client, Stand
from loadtests.overload.scenarios import MODEL

STAND = Stand(8080, {"a": "sk-a", "b": "sk-b"})


def request(at: float, caller: str = "a") -> Request:
    return Request(at, caller, "both", 5, 3, 1)


class Time:
    """A clock that moves to the next sleeper's end, once nobody has anything left to do."""

    def __init__(self) -> None:
        self.now = 100.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = itertools.count()

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._count), future))
        await future

    async def drive(self, playing: Coroutine[Any, Any, list[Attempt]]) -> list[Attempt]:
        task = asyncio.ensure_future(playing)
        while True:
            for _ in range(20):
                await asyncio.sleep(0)
            if task.done():
                return task.result()
            self.now, _, future = heapq.heappop(self._sleepers)
            future.set_result(None)


class Target:
    """Answers each attempt after ``seconds``, the first ones as ``heard`` says."""

    def __init__(self, time: Time, seconds: float, heard: list[Heard] | None = None) -> None:
        self._time, self._seconds, self._heard = time, seconds, heard or []
        self.asked: list[tuple[float, bytes]] = []
        self.open = self.most = 0

    async def ask(self, port: int, sent: bytes, clock: object, patience: float) -> Heard:
        self.asked.append((self._time.now - 100.0, sent))
        self.open += 1
        self.most = max(self.most, self.open)
        await self._time.sleep(self._seconds)
        self.open -= 1
        return self._heard.pop(0) if self._heard else Heard(SERVED, self._seconds / 2, 3)


def _played(requests: list[Request], target: Target, time: Time, *, obey: bool = False) -> list[Attempt]:
    async def played() -> list[Attempt]:
        mine = Client(STAND, time.clock, obey=obey, ask=target.ask, sleep=time.sleep)
        return await time.drive(mine.play(requests, 30.0))

    return asyncio.run(played())


def test_requests_go_out_at_their_times_with_their_callers_keys() -> None:
    time = Time()
    target = Target(time, 60.0)
    attempts = _played([request(1.0), request(2.0, "b")], target, time)
    assert [at for at, _ in target.asked] == pytest.approx([1.0, 2.0])
    assert [b"Bearer sk-a" in sent for _, sent in target.asked] == [True, False]
    assert [each.total for each in attempts] == pytest.approx([60.0, 60.0])
    assert [each.late for each in attempts] == pytest.approx([0.0, 0.0])


def test_a_refused_request_is_not_sent_again_unless_clients_obey() -> None:
    time = Time()
    target = Target(time, 0.5, [Heard("queue_full", retry_after=2.0)])
    assert len(_played([request(1.0)], target, time)) == 1


def test_who_obeys_comes_again_when_it_was_told_and_not_for_ever() -> None:
    time = Time()
    target = Target(time, 0.5, [Heard("queue_full", retry_after=2.0)] * 9)
    attempts = _played([request(1.0)], target, time, obey=True)
    assert [each.at for each in attempts] == pytest.approx([1.0, 3.5, 6.0])
    assert [each.number for each in attempts] == list(range(RETRIES + 1))


def test_nobody_comes_again_who_was_not_told_when_or_after_the_end() -> None:
    for heard in (Heard("queue_full"), Heard("queue_full", retry_after=60.0)):
        time = Time()
        assert len(_played([request(1.0)], Target(time, 0.5, [heard]), time, obey=True)) == 1


def test_too_many_at_once_are_wrong_and_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_AT_ONCE", 1)
    time = Time()
    target = Target(time, 60.0)
    attempts = _played([request(1.0), request(2.0)], target, time)
    assert [each.heard.outcome for each in attempts] == ["", "wrong"]
    assert len(target.asked) == 1


def test_a_closed_loop_keeps_so_many_open_until_its_end() -> None:
    time = Time()
    target = Target(time, 1.0, [Heard("queue_full")])

    async def saturated() -> list[Attempt]:
        mine = Client(STAND, time.clock, ask=target.ask, sleep=time.sleep)
        return await time.drive(mine.saturate(itertools.repeat(request(0.0)), 3, 4.5))

    attempts = asyncio.run(saturated())
    assert target.most == 3
    assert len(attempts) == 3 * 5
    assert max(each.at for each in attempts) < 4.5
    assert sorted(each.at for each in attempts)[3] == pytest.approx(1.0)
    assert 1.1 in [pytest.approx(each.at) for each in attempts], "who is refused waits a moment"


def test_a_simulated_engine_is_understood() -> None:
    async def played() -> list[Attempt]:
        engine = SimulatedEngine(instant_spec(model=MODEL))
        await engine.start()
        try:
            return await Client(Stand(engine.port, {}), time.monotonic).play([request(0.0), request(0.0)], 1.0)
        finally:
            await engine.close()

    attempts = asyncio.run(played())
    assert [(each.heard.outcome, each.heard.error) for each in attempts] == [(SERVED, "")] * 2
    assert [each.heard.tokens for each in attempts] == [3, 3], "as many as were asked for"
    assert all(each.heard.ttft is not None and each.heard.ttft <= each.total for each in attempts)
