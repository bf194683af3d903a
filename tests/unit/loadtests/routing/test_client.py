import asyncio
import heapq
from collections.abc import Callable

import orjson
import pytest

from loadtests.routing.client import Answered, play, request
from loadtests.routing.place import Endpoint
from loadtests.routing.traffic import Message, Turn

ENDPOINT = Endpoint(8080, "sk-x")


def turn(at: float, name: str = "a") -> Turn:
    return Turn(at, f"session-{name}", (Message("system", "be"), Message("user", name)), 7)


class Time:
    """A clock that moves to the next sleeper's end, once nobody has anything left to do."""

    def __init__(self) -> None:
        self.now = 100.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self.now + seconds, self._count, future))
        await future

    async def drive(self, task: "asyncio.Task[list[Answered]]") -> list[Answered]:
        while True:
            for _ in range(20):
                await asyncio.sleep(0)
            if task.done():
                return task.result()
            self.now, _, future = heapq.heappop(self._sleepers)
            future.set_result(None)


def test_a_request_is_whole_and_carries_its_session_and_its_length_of_answer() -> None:
    head, _, body = request(turn(0.0), ENDPOINT).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert f"content-length: {len(body)}".encode() in head
    assert b"authorization: Bearer sk-x" in head
    assert b"x-session-id: session-a" in head
    assert b"connection: close" in head
    told = orjson.loads(body)
    assert told["messages"] == [{"role": "system", "content": "be"}, {"role": "user", "content": "a"}]
    assert (told["max_tokens"], told["stream"], told["ignore_eos"]) == (7, True, True)


def test_a_target_without_keys_gets_none() -> None:
    assert b"authorization" not in request(turn(0.0), Endpoint(1, ""))


async def _play(turns: list[Turn], seconds: float) -> tuple[list[Answered], list[float]]:
    time = Time()
    sent: list[float] = []

    async def ask(port: int, data: bytes, clock: Callable[[], float]) -> tuple[float | None, str]:
        sent.append(clock() - 100.0)
        await time.sleep(seconds)
        return (None, "refused") if b"session-bad" in data else (seconds / 2, "")

    playing = asyncio.ensure_future(play(turns, ENDPOINT, time.clock, ask=ask, sleep=time.sleep))
    return await time.drive(playing), sent


def test_requests_go_out_at_their_times_however_long_answers_take() -> None:
    turns = [turn(1.0), turn(2.0), turn(2.5)]
    answered, sent = asyncio.run(_play(turns, 60.0))
    assert sent == pytest.approx([1.0, 2.0, 2.5])
    assert [each.at for each in answered] == [1.0, 2.0, 2.5]
    assert [each.ttft for each in answered] == [30.0] * 3
    assert [each.total for each in answered] == pytest.approx([60.0] * 3)
    assert [each.late for each in answered] == pytest.approx([0.0] * 3)


def test_an_error_stays_with_its_request() -> None:
    answered, _ = asyncio.run(_play([turn(1.0), turn(1.5, "bad"), turn(2.0)], 1.0))
    assert [each.error for each in answered] == ["", "refused", ""]
    assert answered[1].ttft is None
