import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from loadtests.bench.procs import StartFailed
from loadtests.routing.waiting import fetched, until
from loadtests.vllm.engine import held_port


class _Process:
    name = "a router"

    def last_words(self) -> str:
        return "its last words"


class _Time:
    def __init__(self) -> None:
        self.now = 5.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_it_returns_as_soon_as_it_is_true() -> None:
    time = _Time()
    until(lambda: time.now >= 6.0, _Process(), 10.0, time.clock, time.sleep)  # type: ignore[arg-type]
    assert time.now == pytest.approx(6.0, abs=0.1)


def test_what_does_not_come_true_is_a_failure_with_its_reason() -> None:
    time = _Time()
    with pytest.raises(StartFailed, match="a router was not ready after 10 s: its last words"):
        until(lambda: False, _Process(), 10.0, time.clock, time.sleep)  # type: ignore[arg-type]
    assert time.now == pytest.approx(15.0, abs=0.2)


@contextmanager
def _serving(body: bytes) -> Iterator[tuple[int, list[str | None]]]:
    heard: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers.get("authorization"))
            self.send_response(200 if self.path == "/there" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1], heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_object_is_fetched_with_the_key() -> None:
    with _serving(b'{"data": [1]}') as (port, heard):
        assert fetched(port, "/there", "sk-x") == {"data": [1]}
        assert fetched(port, "/there") == {"data": [1]}
        assert fetched(port, "/elsewhere") == {}
    assert heard == ["Bearer sk-x", None, None]


@pytest.mark.parametrize("body", [b"", b"[1]", b"not json", b"\xff"])
def test_what_is_no_object_is_an_empty_one(body: bytes) -> None:
    with _serving(body) as (port, _):
        assert fetched(port, "/there") == {}


def test_nobody_there_is_an_empty_one() -> None:
    with held_port() as held:
        assert fetched(held.getsockname()[1], "/there") == {}
