"""Chunks that pass by the parser are shown as those that do not, however they are cut or spoilt."""

from __future__ import annotations

import asyncio
from itertools import accumulate, pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import EngineFailure
from gateway.model import Dialect
from gateway.steps.forward import StreamRelay
from gateway.wire.deadline import Sweeper
from gateway.wire.engineconnection import EngineConnection
from gateway.wire.sse import SseScanner, StreamPlan
from gateway.wire.upstream import UpstreamLimits

CAPTURES = Path(__file__).parents[1] / "captures"
SPOILERS = (b"\r\n", b"\n\n", b'"', b'"finish_reason"', b"\xff")
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def framed(name: str) -> list[bytes]:
    """A captured stream as a server sends it: a chunk for each event, then the end of the body."""
    events = (CAPTURES / f"{name}.sse").read_bytes().split(b"\n\n")
    return [b"%x\r\n%b\n\n\r\n" % (len(event) + 2, event) for event in events if event] + [b"0\r\n\r\n"]


STREAMS = tuple(
    (choices, framed(name))
    for choices, name in (
        (1, "vllm-0.32.0/chat-stream-usage"),
        (2, "vllm-0.32.0/chat-stream-n2-logprobs"),
        (1, "sglang-0.5.23/chat-stream-usage-continuous"),
    )
)


class Home:
    limits = UpstreamLimits()
    opening, learned_at = None, 0.0

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.sweeper = Sweeper(self.loop)

    def watch(self, connection) -> None: ...
    def give_back(self, connection) -> None: ...
    def dropped(self, connection) -> None: ...
    def forget(self, connection) -> None: ...


class Wire(asyncio.Transport):
    def write(self, data) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0


class Client:
    def __init__(self) -> None:
        self.sent = b""

    def write(self, data: bytes) -> None:
        self.sent += data

    def pass_on(self, chunks: bytes) -> None:
        while chunks:
            size, _, rest = chunks.partition(b"\r\n")
            data, end = rest[: int(size, 16)], rest[int(size, 16) :]
            assert size == b"%x" % len(data)
            assert end.startswith(b"\r\n")
            self.sent, chunks = self.sent + data, end[2:]

    def finish(self) -> None:
        self.sent += b"<end>"


async def played(choices: int, reads: list[bytes], *, shortcut: bool):
    """What the client has got, how the stream ended, what is known of it, and how many reads passed by the parser."""
    connection, client, passed = EngineConnection(Home()), Client(), 0
    connection.connection_made(Wire())
    asked = asyncio.ensure_future(connection.send(b"", b"", float("inf")))
    await asyncio.sleep(0)
    connection.data_received(HEAD)
    answer = await asked
    plan = StreamPlan(Dialect.OPENAI, "alias", show_usage=True, choices=choices)
    relay = StreamRelay(client, SseScanner(plan), lambda: None)

    def offered():
        take = relay.shortcut()

        def counted(data: bytes) -> bool:
            nonlocal passed
            taken = take(data)
            passed += taken
            return taken

        return counted if take is not None and shortcut else None

    answer.pipe(relay, offered)
    for read in reads:
        connection.data_received(read)
    connection.connection_lost(None)
    await asyncio.sleep(0)
    ended: object = "open"
    if relay.done.done():
        error = relay.done.exception()
        assert error is None or isinstance(error, EngineFailure)
        ended = None if error is None else (type(error), error.code if hasattr(error, "code") else None)
    return (client.sent, ended, relay.facts(), relay.sent_bytes), passed


def same(choices: int, reads: list[bytes]) -> int:
    async def both() -> int:
        straight, passed = await played(choices, reads, shortcut=True)
        parsed, none = await played(choices, reads, shortcut=False)
        assert straight == parsed
        assert none == 0
        return passed

    return asyncio.run(both())


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in at)})
    return [data[start:end] for start, end in pairwise(edges)]


def test_ordinary_chunks_do_pass_by_the_parser():
    choices, chunks = STREAMS[0]
    assert same(choices, chunks) >= len(chunks) // 2
    pairs = [b"".join(chunks[at : at + 2]) for at in range(0, len(chunks), 2)]
    assert same(choices, pairs) >= len(pairs) // 2


@settings(deadline=None)
@given(st.sampled_from(STREAMS), st.data())
def test_cuts_change_nothing(stream, draw):
    """Cuts at the ends of chunks, where the shortcut is open, and some anywhere."""
    choices, chunks = stream
    ends = [0, *accumulate(map(len, chunks))]
    at = draw.draw(st.lists(st.sampled_from(ends), max_size=60))
    near = draw.draw(st.lists(st.tuples(st.sampled_from(ends), st.integers(-6, 6)), max_size=4))
    same(choices, cut(b"".join(chunks), [*at, *(end + step for end, step in near)]))


@settings(deadline=None)
@given(st.sampled_from(STREAMS), st.data())
def test_spoilt_bytes_are_judged_alike(stream, draw):
    choices, chunks = stream
    reads = list(chunks)
    for _ in range(draw.draw(st.integers(1, 3))):
        number = draw.draw(st.integers(0, len(reads) - 1))
        place = draw.draw(st.integers(0, len(reads[number])))
        put = draw.draw(st.binary(max_size=3) | st.sampled_from(SPOILERS))
        dropped = draw.draw(st.integers(0, 3))
        reads[number] = reads[number][:place] + put + reads[number][place + dropped :]
    same(choices, [read for read in reads if read])
