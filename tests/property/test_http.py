"""Random damage to a sound request: it is answered or closed in time, never with a 500, never served unanswered."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadtests.rawclient import RawAnswer, RawClient, cut

BODY = json.dumps(
    {"model": "sim-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "stream": False}
).encode()
PROBES = {"/health", "/v1/models", "/version", "/metrics"}
PATIENCE = 10.0  # the gateway's own limits are far below; more than this is a connection that hangs
# Pieces that parsers are known to disagree about, to be put anywhere.
SPICE = [
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b",", b";", b"0", b"0\r\n\r\n", b"\r\n\r\n", b"5\r\n", b"\xff",
    b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Host: b\r\n", b"Expect: 100-continue\r\n",
    b"Connection: close\r\n", b"Upgrade: h2c\r\n", b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", b"HTTP/1.0", b"%00",
    b"//", b"POST ", b"HEAD /healthz HTTP/1.1\r\nHost: a\r\n\r\n", b"ffffffffffffffff\r\n", b'"', b"{", b"}", b"[" * 50,
]  # fmt: skip


def sound(key: str, *, chunked: bool) -> bytes:
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(BODY)}"
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer {key}\r\n"
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY) if chunked else BODY
    return (head + f"Content-Type: application/json\r\n{framing}\r\n\r\n").encode() + body


Edit = tuple[str, float, bytes]
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "overwrite", "delete", "repeat", "truncate"]),
        st.floats(0, 1, exclude_max=True),
        st.one_of(st.sampled_from(SPICE), st.binary(min_size=1, max_size=4)),
    ),
    min_size=1,
    max_size=4,
)


def damaged(data: bytes, edits: list[Edit]) -> bytes:
    for kind, place, piece in edits:
        at = int(place * len(data))
        after = at + len(piece)
        data = {
            "insert": data[:at] + piece + data[at:],
            "overwrite": data[:at] + piece + data[after:],
            "delete": data[:at] + data[after:],
            "repeat": data[:after] + data[at:],
            "truncate": data[: max(at, 1)],
        }[kind]
    return data


class Bench:
    def __init__(self, site: Any) -> None:
        self.engine = site.engine(step_time=0.0, prefill_tokens_per_second=0.0)
        limits = {"request_head_timeout": 0.2, "body_timeout": 0.2, "min_body_rate": 1_000_000}
        self.gateway = site.gateway([self.engine], probe_interval=60, **limits)
        self.gateway.wait_ready("sim-model")
        self.key = self.gateway.key()

    def put(self, data: bytes, places: list[float]) -> tuple[list[RawAnswer], int]:
        """All answers until the connection ends, and how many requests reached the engine meanwhile."""
        self.engine.requests.clear()
        answers = []
        with RawClient(self.gateway.address, PATIENCE) as client:
            client.send(*cut(data, [int(place * len(data)) for place in places]))
            while (answer := self._next(client)) is not None:
                answers.append(answer)
                if not answer.closes and not client.readable(0.02):
                    break  # it waits for another request
        return answers, len([r for r in list(self.engine.requests) if r.path not in PROBES])

    def _next(self, client: RawClient) -> RawAnswer | None:
        try:
            return client.answer()
        except ConnectionError:
            return None  # an answer to HEAD has no body


@pytest.fixture(scope="module")
def bench(shared_site: Any) -> Bench:
    return Bench(shared_site)


@settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(chunked=st.booleans(), edits=EDITS, places=st.lists(st.floats(0, 1, exclude_max=True), max_size=6))
def test_damage_is_answered_and_harmless(bench: Bench, chunked: bool, edits: list[Edit], places: list[float]) -> None:
    answers, reached = bench.put(damaged(sound(bench.key, chunked=chunked), edits), places)
    assert all(answer.status not in (500, 502, 503) for answer in answers)
    served = [answer for answer in answers if answer.status == 200 and b'"choices"' in answer.body]
    assert reached <= len(served)


def test_the_undamaged_request_is_served(bench: Bench) -> None:
    for chunked in (False, True):
        answers, reached = bench.put(sound(bench.key, chunked=chunked), [])
        assert [answer.status for answer in answers] == [200]
        assert reached == 1
