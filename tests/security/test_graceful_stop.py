"""Stopping: nobody new, what is in hand finishes, what outlasts the limit is told, and the process ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtests.rawclient import RawClient

STEP = 0.02
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: gw\r\n\r\n"


def chat(key: str, **members: Any) -> bytes:
    question = {"model": "sim-model", "messages": [{"role": "user", "content": "hi"}], "ignore_eos": True, **members}
    body = json.dumps(question).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer {key}\r\n"
    return (head + f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n").encode() + body


@contextlib.contextmanager
def draining(gateway: Any, wait_until: Callable[..., None]) -> Iterator[None]:
    """The gateway drains meanwhile; at the end it has drained."""
    thread = threading.Thread(target=lambda: gateway.site.run(gateway.gateway.drain()))
    thread.start()
    try:
        wait_until(lambda: httpx.get(gateway.admin_url + "/readyz").status_code == 503, "not ready")
        yield
    finally:
        thread.join(20)
    assert not thread.is_alive()


@pytest.fixture
def engine(site: Any) -> Any:
    return site.engine(step_time=STEP)


@pytest.fixture
def gateway(site: Any, engine: Any) -> Any:
    made = site.gateway([engine], probe_interval=60, timeouts_drain=60)
    made.wait_ready("sim-model")
    assert httpx.get(made.admin_url + "/readyz").status_code == 200
    return made


def test_a_stream_in_hand_finishes_and_nobody_new_comes(gateway: Any, wait_until: Callable[..., None]) -> None:
    key = gateway.key()
    before = time.monotonic()
    with RawClient(gateway.address) as streaming, RawClient(gateway.address) as idle:
        idle.send(HEALTH)
        answer = idle.answer()
        assert answer is not None
        assert not answer.closes
        streaming.send(chat(key, stream=True, max_tokens=60))
        assert streaming.head() is not None
        with draining(gateway, wait_until):
            assert idle.rest() == b"", "an idle connection is closed"
            with pytest.raises(ConnectionRefusedError):
                RawClient(gateway.address)
            rest = streaming.rest()
    assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert gateway.records.last(stream=True)["completion_tokens"] == 60
    assert time.monotonic() - before < 30.0, "the drain ends with the last answer, not with its patience"


def test_a_whole_answer_in_hand_says_close(
    site: Any, engine: Any, gateway: Any, wait_until: Callable[..., None]
) -> None:
    async def hold(on: bool) -> None:
        (engine.faults.set if on else engine.faults.clear)("paused")

    key = gateway.key()
    with RawClient(gateway.address) as client:
        site.run(hold(True))
        client.send(chat(key, max_tokens=4))
        wait_until(lambda: gateway.in_flight() == 1, "sent to the engine")
        with draining(gateway, wait_until):
            site.run(hold(False))
            answer = client.answer()
            assert client.rest() == b""
    assert answer is not None
    assert (answer.status, answer.closes) == (200, True)


def test_what_outlasts_the_patience_is_told(site: Any, wait_until: Callable[..., None]) -> None:
    gateway = site.gateway([site.engine(step_time=STEP)], probe_interval=60, timeouts_drain=0.3)
    gateway.wait_ready("sim-model")
    key = gateway.key()
    with (
        RawClient(gateway.address) as streaming,
        RawClient(gateway.address) as whole,
        RawClient(gateway.address) as half,
    ):
        streaming.send(chat(key, stream=True, max_tokens=5000))
        assert streaming.head() is not None
        whole.send(chat(key, max_tokens=5000))
        wait_until(lambda: gateway.upstream_connections() == 2, "both sent to the engine")
        half.send(b"GET /healthz HT")
        with draining(gateway, wait_until):
            events = streaming.rest()
            answer = whole.answer()
            assert whole.rest() == b""
            assert half.rest() == b""
    assert b'"code":"draining"' in events
    assert b"[DONE]" not in events
    assert events.endswith(b"\r\n0\r\n\r\n"), "the body ends properly: the event tells what happened"
    assert answer is not None
    assert (answer.status, answer.closes) == (503, True)
    assert answer.headers["retry-after"] == "5"
    assert {r["status"] for r in gateway.records.lines if r["endpoint"] == "chat"} == {200, 503}
    assert gateway.upstream_connections() == 0


def test_draining_an_unused_gateway_takes_no_time(site: Any) -> None:
    gateway = site.gateway()
    before = time.monotonic()
    site.run(gateway.gateway.drain())
    site.run(gateway.gateway.drain())
    assert time.monotonic() - before < 2.0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_served_process_ends_with_0(site: Any, tmp_path: Path, number: int) -> None:
    engine = site.engine()
    command = [sys.executable, "-m", "gateway", "serve", "--engine", engine.url]
    addresses = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--state", f"sqlite://{tmp_path / 'state.db'}"]
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    with subprocess.Popen(
        [*command, *addresses], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert any("first key" in line for line in process.stderr), "it has started"
            process.send_signal(number)
            before = time.monotonic()
            assert process.wait(timeout=30) == 0
            assert time.monotonic() - before < 15.0
        finally:
            process.kill()


def test_the_command_line_says_what_it_can_do() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "--help"], capture_output=True, text=True, timeout=30, check=True
    )
    assert "serve" in done.stdout
