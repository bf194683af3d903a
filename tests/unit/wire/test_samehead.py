"""A head is known again by its bytes, whoever sent it."""

from __future__ import annotations

import pytest

from gateway.wire.samehead import SameHead, around_length, opening, opening_of

HEAD = b"HTTP/1.1 200 OK\r\ndate: now\r\ncontent-length: 5\r\ncontent-type: a/b\r\n\r\n"
HEADERS = [(b"date", b"now"), (b"content-length", b"5"), (b"content-type", b"a/b")]


def test_a_head_is_cut_around_the_digits_of_its_length():
    around = around_length(HEAD)
    assert around is not None
    assert b"5".join(around) == HEAD
    assert (around[0][-16:], around[1][:2]) == (b"content-length: ", b"\r\n")


@pytest.mark.parametrize(
    "head",
    [
        b"",
        HEAD.replace(b"content-length", b"x-length"),
        HEAD.replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n"),
        HEAD.replace(b": 5", b": five"),
        HEAD.replace(b": 5", b": 5 5"),
        HEAD.replace(b"content-length", b" content-length"),
    ],
)
def test_a_head_without_exactly_one_plain_length_is_not_cut(head):
    assert around_length(head) is None


def test_the_newest_length_is_known():
    known = SameHead(*around_length(HEAD))
    other = HEAD.replace(b": 5", b": 1234")
    assert known.body_at(other + b"body") == len(other)
    assert (known.length, known.digits) == (1234, b"1234")
    assert known.body_at(HEAD.replace(b"now", b"later")) == 0
    assert known.length == 1234


def test_a_head_ends_where_the_parser_says():
    assert opening_of(HEAD + b"hello", 5) == HEAD
    assert opening_of(HEAD, 0) == HEAD
    for data, size in ((HEAD + b"hello", 4), (HEAD + b"hello", 6), (HEAD[:-1], 0), (b"\r\n\r\n" + HEAD, 0)):
        assert opening_of(data, size) == b""


def test_the_opening_of_an_answer_has_its_status_and_headers_the_type_first():
    found = opening(HEAD + b"hello", 5, 200, HEADERS)
    assert found.status == 200
    assert found.headers == [HEADERS[2], *HEADERS[:2]]


@pytest.mark.parametrize(
    ("data", "size", "status", "headers"),
    [
        (HEAD + b"hello", 4, 200, HEADERS),
        (HEAD + b"hello", 5, 500, HEADERS),
        (HEAD.replace(b"1.1", b"1.0") + b"hello", 5, 200, HEADERS),
        (HEAD + b"hello", 5, 200, [*HEADERS, (b"connection", b"close")]),
    ],
)
def test_an_answer_that_is_not_like_others_has_no_opening(data, size, status, headers):
    assert opening(data, size, status, headers) is None
