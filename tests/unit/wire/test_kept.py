"""What was learned from one head serves the very same head and no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.kept import Memory

START = b"POST /v1/x HTTP/1.1\r\n"
HEADERS = ((b"host", b"gw"), (b"Content-Length", b"5"), (b"authorization", b"Bearer k"))


def opening(*headers: tuple[bytes, bytes], start: bytes = START) -> bytes:
    return start + b"".join(b"%b: %b\r\n" % header for header in headers) + b"\r\n"


def exchange(*headers: tuple[bytes, bytes]) -> Any:
    lower = [(name.lower(), value) for name, value in headers]
    return SimpleNamespace(method="POST", target=b"/v1/x", version="1.1", headers=lower, head=dict(lower), received=5)


def learned(*headers: tuple[bytes, bytes]) -> Memory:
    memory, first = Memory(1024), exchange(*headers)
    memory.note(first, opening(*headers) + b"hello")
    memory.keep(first, "value")
    return memory


def test_the_same_head_is_known_again_and_again_with_any_length():
    known = learned(*HEADERS)
    for digits, body in ((b"5", b"hello"), (b"77", b"he"), (b"0", b""), (b"123456789", b"x")):
        head = opening(HEADERS[0], (b"Content-Length", digits), HEADERS[2])
        assert known.body_at(head + body) == len(head)
        lent = SimpleNamespace()
        known.lend(lent)
        lower = [(b"host", b"gw"), (b"content-length", digits), (b"authorization", b"Bearer k")]
        assert (lent.method, lent.target, lent.version, lent.familiar) == ("POST", b"/v1/x", "1.1", "value")
        assert lent.owed == int(digits)
        assert (lent.headers, lent.head) == (lower, dict(lower))


def test_what_the_exchange_does_with_its_head_is_not_seen_in_the_kept_one():
    first = exchange(*HEADERS)
    known = Memory(1024)
    known.note(first, opening(*HEADERS) + b"hello")
    known.keep(first, None)
    assert known.body_at(opening(HEADERS[0], (b"Content-Length", b"9"), HEADERS[2]))
    known.lend(SimpleNamespace())
    assert first.head[b"content-length"] == b"5"


@pytest.mark.parametrize(
    "other",
    [
        opening(*HEADERS[:2]),
        opening(*HEADERS, (b"x-api-key", b"k")),
        opening(*HEADERS, HEADERS[0]),
        opening((b"host", b"other"), *HEADERS[1:]),
        opening(*reversed(HEADERS)),
        opening(*HEADERS, start=b"PUT /v1/x HTTP/1.1\r\n"),
        opening(*HEADERS, start=b"POST /v1/y HTTP/1.1\r\n"),
        opening(*HEADERS, start=b"POST /v1/x HTTP/1.0\r\n"),
        opening(HEADERS[0], (b"transfer-encoding", b"chunked"), HEADERS[2]),
        opening(HEADERS[0], (b"content-length", b"5"), HEADERS[2]),
        b"\r\n" + opening(*HEADERS),
        b"",
    ],
)
def test_any_difference_is_another_head(other):
    assert learned(*HEADERS).body_at(other + b"hello") == 0


@pytest.mark.parametrize("length", [b"", b"+5", b"-5", b" 5", b"5 ", b"0x5", b"5,5", b"1_0", b"\xb2", b"1234567890"])
def test_only_digits_and_not_many_are_a_length(length):
    assert learned(*HEADERS).body_at(opening(HEADERS[0], (b"Content-Length", length), HEADERS[2])) == 0


@pytest.mark.parametrize(
    "headers",
    [
        (HEADERS[0], HEADERS[2]),
        (*HEADERS, (b"content-length", b"5")),
        (HEADERS[0], (b"content-length", b"5 ")),
        (HEADERS[0], (b"content-length", b"1234567890")),
    ],
)
def test_a_head_without_one_plain_length_is_not_kept(headers):
    assert learned(*headers).body_at(opening(*headers)) == 0


@pytest.mark.parametrize(
    ("noted", "head_bytes"),
    [
        (opening(*HEADERS)[:-1], 1024),
        (opening(*HEADERS) + b"hell", 1024),
        (opening(*HEADERS) + b"hello\r\n", 1024),
        (b"\r\n\r\n" + opening(*HEADERS) + b"hello", 1024),
        (opening(*HEADERS) + b"hello", len(opening(*HEADERS)) + 8),
    ],
)
def test_nothing_is_kept_of_a_head_that_is_not_known_to_the_last_byte_or_might_become_too_long(noted, head_bytes):
    memory, first = Memory(head_bytes), exchange(*HEADERS)
    memory.note(first, noted)
    memory.keep(first, "value")
    assert memory.body_at(opening(*HEADERS)) == 0


def test_nothing_is_kept_of_a_head_that_came_in_parts():
    memory, first = Memory(1024), exchange(*HEADERS)
    memory.note(None, opening(*HEADERS)[:20])
    memory.keep(first, "value")
    assert memory.body_at(opening(*HEADERS)) == 0


def test_an_exchange_with_the_kept_head_changes_its_value_and_another_takes_its_place():
    memory, again = learned(*HEADERS), SimpleNamespace()
    memory.body_at(opening(*HEADERS))
    memory.lend(again)
    memory.keep(again, "other")
    memory.lend(again)
    assert (again.familiar, memory.body_at(opening(*HEADERS))) == ("other", len(opening(*HEADERS)))
    memory.keep(exchange(*HEADERS), "third")  # of which no byte was noted anew: that of the first is still there
    memory.note(None, b"")
    memory.keep(exchange(*HEADERS), "fourth")
    assert memory.body_at(opening(*HEADERS)) == 0


@given(st.data())
def test_a_part_of_a_head_is_no_head(data):
    whole = opening(*HEADERS)
    assert learned(*HEADERS).body_at(whole[: data.draw(st.integers(0, len(whole) - 1))]) == 0


@given(st.data())
def test_a_head_with_other_bytes_is_known_only_where_they_are_the_length(data):
    whole = opening(*HEADERS)
    at, size = data.draw(st.integers(0, len(whole))), data.draw(st.integers(0, 3))
    put = data.draw(st.binary(max_size=3) | st.sampled_from([b"1", b"22", b"\r\n", b":", b" "]))
    spoilt = whole[:at] + put + whole[at + size :]
    digits = whole.index(b"5\r\n")
    before, behind = whole[:digits], whole[digits + 1 :]
    rest = spoilt.removeprefix(before)
    length, mark, _ = rest.partition(behind)
    same = spoilt.startswith(before) and mark and length.isdigit() and len(length) <= 9
    expected = len(before + length + behind) if same else 0
    assert learned(*HEADERS).body_at(spoilt) == expected
