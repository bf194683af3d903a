import asyncio
import itertools
import re
from random import Random

import pytest

from loadtests.fleet import load
from loadtests.fleet.load import Sample, fault, request, schedule
from loadtests.vllm.engine import held_port

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
TOKEN = b'data: {"choices":[{"delta":{"content":" word"}}]}\n\n'
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("received", "wrong"),
    [
        (HEAD + ROLE + TOKEN + DONE, ""),
        (HEAD + ROLE + TOKEN + b"e\r\n" + DONE + b"\r\n0\r\n\r\n", ""),
        (b"", "no answer"),
        (b'HTTP/1.1 503 Service Unavailable\r\n\r\n{"error":{}}', "503"),
        (HEAD + ROLE + TOKEN + b'data: {"error":{"message":"gone"}}\n\n' + DONE, "an error event"),
        (HEAD + ROLE + DONE, "no token"),
        (HEAD + ROLE + TOKEN, "does not end with"),
        (HEAD + ROLE + TOKEN + DONE + b"x" * 100, "does not end with"),
    ],
)
def test_only_a_stream_that_ended_well_is_right(received, wrong):
    found = fault(received)
    assert (wrong in found) if wrong else not found


def test_requests_are_spread_over_the_time_and_the_same_each_time():
    times = schedule(10.0, 20.0, seed=1)
    assert times == schedule(10.0, 20.0, seed=1) != schedule(10.0, 20.0, seed=2)
    assert len(times) == 200
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] < 20
    assert all(0.05 - 1e-9 <= later - earlier <= 0.15 + 1e-9 for earlier, later in itertools.pairwise(times))


def test_a_request_says_how_long_its_body_is_and_no_two_begin_alike():
    random = Random(1)
    one, other = request("m", "key", 80, random), request("m", "key", 80, random)
    head, _, body = one.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    assert length is not None
    assert int(length[1]) == len(body)
    assert b"authorization: Bearer key\r\n" in head + b"\r\n"
    assert body[:80] != other.partition(b"\r\n\r\n")[2][:80]


class Clock:
    """A clock that its own sleeping moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


def test_the_loop_is_open_an_answer_that_does_not_come_delays_nobody():
    async def main() -> list[Sample]:
        clock, gate, sent = Clock(), asyncio.Event(), []

        async def send() -> tuple[float | None, str]:
            sent.append(clock.now)
            if len(sent) == 1:
                await gate.wait()
                return None, "too late"
            if len(sent) == 3:
                gate.set()
            return 0.25, ""

        return await load.run([0.0, 1.0, 2.0], send, clock, clock.sleep)

    samples = asyncio.run(main())
    assert [sample.at for sample in samples] == [0.0, 1.0, 2.0]
    assert [sample.ttft for sample in samples] == [None, 0.25, 0.25]
    assert [sample.error for sample in samples] == ["too late", "", ""]
    assert all(sample.late >= 0 for sample in samples)


def test_streams_are_bounded_and_one_too_many_is_an_error(monkeypatch):
    monkeypatch.setattr(load, "MOST_AT_ONCE", 2)

    async def main() -> list[Sample]:
        clock, gate = Clock(), asyncio.Event()

        async def send() -> tuple[float | None, str]:
            await gate.wait()
            return 1.0, ""

        async def sleep(seconds: float) -> None:
            await clock.sleep(seconds)
            if clock.now >= 103:
                gate.set()
            for _ in range(5):  # what was let go may end
                await asyncio.sleep(0)

        return await load.run([0.0, 1.0, 1.5, 2.0, 3.0], send, clock, sleep)

    samples = asyncio.run(main())
    assert [bool(sample.error) for sample in samples] == [False, False, True, True, False]


def test_the_head_and_the_first_event_are_no_token():
    async def main() -> tuple[float | None, str]:
        times = iter([0.0, 3.0])
        token = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HEAD + ROLE)
            await writer.drain()
            token.set()
            writer.write(TOKEN + DONE)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await load.ask(port, b"GET / HTTP/1.1\r\n\r\n", lambda: next(times))

    assert asyncio.run(main()) == (3.0, "")


def test_a_refused_connection_is_an_error_of_that_request():
    async def main() -> tuple[float | None, str]:
        with held_port() as held:
            return await load.ask(held.getsockname()[1], b"x", lambda: 0.0)

    ttft, error = asyncio.run(main())
    assert ttft is None
    assert error.startswith("connection: ")
