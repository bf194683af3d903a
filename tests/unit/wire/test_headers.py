"""The rules for header blocks and targets, each by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.headers import MAX_HEADERS, SINGLE, has_body, judge_head, plain_target, without_port

Fields = list[tuple[bytes, bytes]]
HOST = (b"host", b"gw:8080")


def judge(*fields: tuple[bytes, bytes], version: str = "1.1", host: bool = True) -> str | None:
    headers: Fields = [HOST, *fields] if host else list(fields)
    return judge_head(version, headers, dict(headers))


SOUND: list[Fields] = [
    [],
    [(b"content-length", b"0")],
    [(b"content-length", b"000000000000015")],
    [(b"transfer-encoding", b"chunked")],
    [(b"expect", b"100-Continue")],
    [(b"connection", b"close")],
    [(b"connection", b"Keep-Alive, TE")],
    [(b"accept", b"a"), (b"accept", b"b")],
    [(b"x-a", b"tab\tand ~visible~")],
    [(b"x-a", b"")],
]
REFUSED: list[Fields] = [
    [(b"content-length", b"5"), (b"transfer-encoding", b"chunked")],
    [(b"transfer-encoding", b"gzip, chunked")],
    [(b"transfer-encoding", b"Chunked")],
    [(b"content-length", b"+5")],
    [(b"content-length", b"5, 5")],
    [(b"content-length", b"")],
    [(b"content-length", b"1" * 16)],
    [(b"content-length", "٣".encode())],
    [(b"content-encoding", b"gzip")],
    [(b"upgrade", b"h2c")],
    [(b"expect", b"200-ok")],
    [(b"connection", b"x-forwarded-for")],
    [(b"connection", b"close,")],
    [(b"x_a", b"1")],
    [(b"x a", b"1")],
    [(b"X-A", b"1")],
    [(b"", b"1")],
    [(b"x-a\n", b"1")],
    [(b"x-a", b"a\r\nb: c")],
    [(b"x-a", b"a\n")],
    [(b"x-a", b"\x00")],
    [(b"x-a", b"\x7f")],
    [(b"x-a", b"\xe9")],
]


@pytest.mark.parametrize("fields", SOUND, ids=repr)
def test_sound(fields: Fields) -> None:
    assert judge(*fields) is None


@pytest.mark.parametrize("fields", REFUSED, ids=repr)
def test_refused(fields: Fields) -> None:
    assert judge(*fields) is not None


@pytest.mark.parametrize("name", SINGLE)
def test_what_has_one_reading_stands_once(name: bytes) -> None:
    values = {b"host": b"gw", b"connection": b"close", b"expect": b"100-continue", b"transfer-encoding": b"chunked"}
    once = (name, values.get(name, b"5"))
    fields = [] if name == b"host" else [once]
    assert judge(*fields, once) == "A header that may stand once is repeated."


@pytest.mark.parametrize("version", ["0.9", "1.0", "1.2", "2.0", ""])
def test_only_one_version_is_spoken(version: str) -> None:
    assert judge(version=version) is not None


def test_the_number_of_headers_is_bounded() -> None:
    fields = [(b"x-%d" % n, b"1") for n in range(MAX_HEADERS)]
    assert judge(*fields[1:]) is None
    assert judge(*fields) == "Too many headers."


@pytest.mark.parametrize(
    "host", [b"gw", b"gw.example.com.", b"10.0.0.1:80", b"[::1]:8080", b"llm_gateway:8080", b"a" * 253]
)
def test_sound_hosts(host: bytes) -> None:
    assert judge((b"host", host), host=False) is None


@pytest.mark.parametrize(
    "host",
    [b"", b"gw/health?", b"gw#", b"gw?", b"a@b", b"a b", b"a,b", b"gw:", b"gw:x", b"gw:123456", b"[gw]", b".gw", b"-"],
)
def test_refused_hosts(host: bytes) -> None:
    assert judge((b"host", host), host=False) == "The Host header is missing or malformed."


def test_a_host_is_demanded() -> None:
    assert judge(host=False) is not None


@given(st.binary(min_size=1, max_size=40))
def test_no_reason_quotes_a_value(value: bytes) -> None:
    reason = judge((b"x-a", b"canary" + value), (b"connection", b"canary" + value))
    assert reason is not None
    assert "canary" not in reason


@pytest.mark.parametrize("target", [b"/", b"/v1/models", b"/v1/models/org/name-1.5:8b@2", b"/v1/chat/completions/"])
def test_plain_targets(target: bytes) -> None:
    assert plain_target(target) == target.decode()


@pytest.mark.parametrize(
    "target",
    [
        b"", b"*", b"v1", b"http://gw/v1", b"//gw", b"/v1//x", b"/../x", b"/v1/./x", b"/v1/.env", b"/%2e", b"/a?b",
        b"/a#b", b"/a;b", b"/a\\b", b"/a\n", b"/a b", b"/\xe9", b"/a\0", b"gw:443",
    ],
)  # fmt: skip
def test_targets_that_a_decoder_would_change(target: bytes) -> None:
    assert plain_target(target) is None


def test_bodies_announced() -> None:
    assert not has_body({})
    assert not has_body({b"content-length": b"00"})
    assert has_body({b"content-length": b"010"})
    assert has_body({b"transfer-encoding": b"chunked"})


@pytest.mark.parametrize(
    ("host", "name"), [(b"gw", b"gw"), (b"gw:80", b"gw"), (b"[::1]", b"[::1]"), (b"[::1]:80", b"[::1]")]
)
def test_the_port_of_a_host(host: bytes, name: bytes) -> None:
    assert without_port(host) == name
