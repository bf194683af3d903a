"""Clients that are slow, silent, greedy or gone: each is ended by a limit, and none makes the gateway grow."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gateway.wire.inbound import InboundLimits
from loadtests.rawclient import RawClient

LIMIT = 0.4  # seconds, every limit of these tests
LATE = 5.0  # how much later than its limit a slow machine may notice
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: gw\r\n\r\n"
MIB = 1 << 20


def chat(key: str, **members: Any) -> tuple[bytes, bytes]:
    question = {"model": "sim-model", "messages": [{"role": "user", "content": "hi"}], **members}
    body = json.dumps(question).encode()
    return post(key, len(body)), body


def post(key: str, size: int) -> bytes:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer {key}\r\n"
    return (head + f"Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n").encode()


def resident() -> int:
    """Bytes of memory that this process holds; the gateway under test lives in it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.fixture(scope="module")
def limits() -> Iterator[None]:
    """Limits that no setting names, made short."""
    with pytest.MonkeyPatch.context() as patch:
        short = functools.partial(InboundLimits, idle_timeout=LIMIT, write_timeout=LIMIT)
        patch.setattr("gateway.planes.InboundLimits", short)
        yield


@pytest.fixture(scope="module")
def engine(shared_site: Any) -> Any:
    return shared_site.engine(max_model_len=200_000, kv_blocks=20_000, step_time=0.0, prefill_tokens_per_second=0.0)


@pytest.fixture(scope="module")
def gateway(shared_site: Any, limits: None, engine: Any) -> Any:
    made = shared_site.gateway(
        [engine], probe_interval=60, request_head_timeout=LIMIT, body_timeout=LIMIT, min_body_rate=200
    )
    made.wait_ready("sim-model")
    return made


@pytest.fixture(scope="module")
def key(gateway: Any) -> str:
    return str(gateway.key())


@pytest.fixture
def client(gateway: Any) -> Iterator[RawClient]:
    with RawClient(gateway.address) as client:
        yield client


def drip(client: RawClient, data: bytes, step: int = 1) -> float:
    """Send ``step`` bytes every 20 ms until something comes back; the seconds that it took."""
    before = time.monotonic()
    for place in range(0, len(data), step):
        if client.readable(0.02) or not client.send(data[place : place + step]):
            break
    return time.monotonic() - before


def ended_in_time(client: RawClient, status: int | None) -> None:
    """The connection ends at its limit, with this answer."""
    before = time.monotonic()
    answer = client.answer()
    assert (answer.status if answer else None) == status
    assert answer is None or answer.closes
    assert client.rest() == b""
    assert time.monotonic() - before < LIMIT + LATE


def test_silence(client: RawClient) -> None:
    ended_in_time(client, None)


def test_half_a_request_line(client: RawClient) -> None:
    client.send(b"GET /hea")
    ended_in_time(client, 408)


def test_empty_lines_are_no_head(client: RawClient) -> None:
    client.send(b"\r\n\r\n")
    ended_in_time(client, 408)


def test_a_head_that_drips_gains_no_time(client: RawClient) -> None:
    assert LIMIT / 2 < drip(client, b"GET /healthz HTTP/1.1\r\nHost: gw\r\nX-A: " + b"a" * 1000) < LIMIT + LATE
    ended_in_time(client, 408)


def test_no_body(client: RawClient, key: str) -> None:
    client.send(post(key, 100))
    ended_in_time(client, 408)


def test_a_body_that_drips_below_the_rate(client: RawClient, key: str) -> None:
    client.send(post(key, 5000))
    assert drip(client, b" " * 5000) < LIMIT + LATE
    ended_in_time(client, 408)


def test_a_slow_body_above_the_rate_is_served(client: RawClient, key: str) -> None:
    _, body = chat(key, max_tokens=1)
    padding = b" " * 1200
    client.send(post(key, len(padding) + len(body)))
    took = drip(client, padding + body, step=40)
    answer = client.answer()
    assert answer is not None
    assert (answer.status, took > LIMIT) == (200, True)


def test_an_idle_connection(client: RawClient) -> None:
    client.send(HEALTH)
    answer = client.answer()
    assert answer is not None
    assert (answer.status, answer.closes) == (200, False)
    ended_in_time(client, None)


def test_a_client_that_does_not_read_its_stream(
    gateway: Any, engine: Any, key: str, wait_until: Callable[..., None]
) -> None:
    head, body = chat(key, max_tokens=100_000, stream=True, ignore_eos=True)
    before = resident()
    with RawClient(gateway.address, receive_buffer=4096) as client:
        client.send(head, body)
        record = gateway.records.last(stream=True, status=499)
        grown = resident() - before
    wait_until(lambda: engine.requests[-1].state == "aborted", "the engine's connection closed")
    assert record["error"] == "client_gone"
    assert record["response_bytes"] < 8 * MIB, "the engine was not paused"
    assert grown < 48 * MIB
    wait_until(lambda: gateway.upstream_connections() == 0, "the engine's connection let go")


def test_a_client_that_reads_slowly_but_reads_is_served(gateway: Any, key: str) -> None:
    head, body = chat(key, max_tokens=30_000, stream=True, ignore_eos=True)
    received = 0
    before = time.monotonic()
    with RawClient(gateway.address, receive_buffer=65_536) as client:
        client.send(head, body)
        while data := client.some():
            received += len(data)
            if data.endswith(b"0\r\n\r\n"):
                break
            if time.monotonic() - before < 3 * LIMIT:
                time.sleep(0.01)
    assert received > 5 * MIB
    assert gateway.records.last(stream=True, status=200)["completion_tokens"] == 30_000


def test_unfinished_heads_of_20_megabytes(gateway: Any, wait_until: Callable[..., None]) -> None:
    before = resident()
    piece = b"a" * 65_536
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(gateway.address)) for _ in range(20)]
        for client in clients:
            client.send(b"GET /healthz HTTP/1.1\r\nHost: gw\r\nX-A: ")
            sent = client.send_until_answered(piece for _ in range(320))
            assert sent < 20 * MIB
        assert resident() - before < 32 * MIB
        for client in clients:
            answer = client.answer()
            assert answer is not None
            assert answer.status == 431


@pytest.mark.parametrize(("credential", "size", "status"), [("wrong", 8 * MIB, 401), (None, 20 * MIB, 413)])
def test_an_answer_before_the_end_of_the_body_can_be_read(
    client: RawClient, key: str, credential: str | None, size: int, status: int
) -> None:
    client.send(post(credential or key, size))
    assert client.send(*[b" " * 65_536 for _ in range(size // 65_536)]), "reset while sending"
    answer = client.answer()
    assert answer is not None
    assert (answer.status, answer.closes) == (status, True)
    assert client.rest() == b""


def test_half_closing_counts_as_leaving(
    gateway: Any, engine: Any, key: str, client: RawClient, wait_until: Callable[..., None]
) -> None:
    engine.faults.set("stall_mid_stream", after_events=1)
    try:
        client.send(*chat(key, stream=True))
        assert client.head() is not None
        client.half_close()
        wait_until(lambda: engine.requests[-1].state == "aborted", "the engine's connection closed", patience=LATE)
        client.rest()
        assert gateway.records.last(stream=True, status=499)["error"] == "client_gone"
    finally:
        engine.faults.clear()


def test_a_flood_behind_a_request_counts_as_leaving(
    gateway: Any, engine: Any, key: str, client: RawClient, wait_until: Callable[..., None]
) -> None:
    engine.faults.set("stall_mid_stream", after_events=1)
    try:
        client.send(*chat(key, stream=True))
        assert client.head() is not None
        client.send(*[b"a" * 65_536] * 4)
        wait_until(lambda: engine.requests[-1].state == "aborted", "the engine's connection closed", patience=LATE)
    finally:
        engine.faults.clear()


def test_more_connections_than_allowed(shared_site: Any, limits: None, wait_until: Callable[..., None]) -> None:
    gateway = shared_site.gateway(max_connections=3, request_head_timeout=30)
    with ExitStack() as stack:
        held = [stack.enter_context(RawClient(gateway.address)) for _ in range(3)]
        wait_until(lambda: "gateway_client_connections 3.0" in gateway.metrics(), "three connections")
        with RawClient(gateway.address) as refused:
            refused.send(HEALTH)
            assert refused.answer() is None
        held[0].close()
        wait_until(lambda: "gateway_client_connections 2.0" in gateway.metrics(), "two connections")
        with RawClient(gateway.address) as client:
            client.send(HEALTH)
            answer = client.answer()
            assert answer is not None
            assert answer.status == 200
