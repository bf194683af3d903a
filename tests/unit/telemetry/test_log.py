"""Lines from a thread of their own: a reader that is stuck or gone never holds up who writes."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import threading
import time

import orjson
import pytest

from gateway.telemetry.log import LineWriter


def _numbers(data: bytes) -> list[int]:
    lines = data.split(b"\n")
    assert lines.pop() == b"", "every line is ended"
    return [orjson.loads(line)["n"] for line in lines]


@contextlib.contextmanager
def _pipe():
    """A pipe of the smallest size; both ends are closed at last."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    stream = os.fdopen(writing, "wb")
    reader = os.fdopen(reading, "rb", buffering=0)
    try:
        yield reader, stream
    finally:
        reader.close()
        with contextlib.suppress(BrokenPipeError):
            stream.close()


def _bounded(work, seconds: float = 5.0) -> None:
    """Run ``work`` in a thread that must be done in time."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it waited"


def test_lines_are_json_in_order_and_close_writes_all():
    stream = io.BytesIO()
    writer = LineWriter(stream)
    for n in range(5_000):
        writer.write({"n": n})
    writer.close()
    assert _numbers(stream.getvalue()) == list(range(5_000))
    assert writer.dropped == 0


def test_a_line_is_written_soon_without_a_close(wait_until):
    stream = io.BytesIO()
    writer = LineWriter(stream)
    try:
        for n in range(3):
            writer.write({"n": n})
            wait_until(lambda n=n: stream.getvalue().count(b"\n") == n + 1, "the line")
    finally:
        writer.close()


def test_close_may_come_twice_and_ends_the_thread():
    before = threading.active_count()
    writer = LineWriter(io.BytesIO())
    writer.write({"n": 0})
    writer.close()
    writer.close()
    assert threading.active_count() == before


def test_a_reader_that_is_stuck_holds_nobody_up_and_what_is_lost_is_counted():
    with _pipe() as (reader, stream):
        writer = LineWriter(stream, capacity=200)
        record = {"pad": "x" * 200}
        total = 20_000
        _bounded(lambda: [writer.write({**record, "n": n}) for n in range(total)])
        assert writer.dropped > total // 2
        assert writer.dropped < total

        seen = bytearray()

        def read_all():
            while data := reader.read(65_536):
                seen.extend(data)

        thread = threading.Thread(target=read_all, daemon=True)
        thread.start()
        writer.close(10.0)
        stream.close()
        thread.join(10.0)
        numbers = _numbers(bytes(seen))
        assert numbers == sorted(numbers)
        assert len(numbers) + writer.dropped == total


def test_what_is_held_is_bounded():
    with _pipe() as (reader, stream):
        writer = LineWriter(stream, capacity=50)
        for n in range(50_000):
            writer.write({"n": n, "pad": "x" * 100})
        lost = writer.dropped
        for n in range(1_000):
            writer.write({"n": n, "pad": "x" * 100})
        assert writer.dropped == lost + 1_000
        reader.close()
        writer.close()


def test_close_does_not_wait_for_a_stuck_reader_without_end():
    with _pipe() as (reader, stream):
        writer = LineWriter(stream)
        for n in range(2_000):
            writer.write({"n": n, "pad": "x" * 100})
        began = time.monotonic()
        _bounded(lambda: writer.close(0.1))
        assert time.monotonic() - began < 3.0
        reader.close()


def test_a_reader_that_is_gone_is_counted_and_the_writer_lives_on(wait_until):
    with _pipe() as (reader, stream):
        reader.close()
        writer = LineWriter(stream)
        for n in range(3):
            writer.write({"n": n})
            wait_until(lambda n=n: writer.dropped == n + 1, "the loss to be counted")
        writer.close()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("closed")])
def test_a_stream_that_fails_for_a_while_is_written_again_afterwards(error, wait_until):
    class Flaky(io.BytesIO):
        failing = True

        def write(self, data):
            if self.failing:
                raise error
            return super().write(data)

    stream = Flaky()
    writer = LineWriter(stream)
    writer.write({"n": 1})
    wait_until(lambda: writer.dropped == 1, "the loss to be counted")
    stream.failing = False
    writer.write({"n": 2})
    writer.close()
    assert _numbers(stream.getvalue()) == [2]
