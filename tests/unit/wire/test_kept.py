"""What was learned from one head serves the very same head and no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.kept import Kept

HEADERS = ((b"host", b"gw"), (b"authorization", b"Bearer k"), (b"content-length", b"5"))


def exchange(*headers: tuple[bytes, bytes], method="POST", target=b"/v1/x", version="1.1") -> Any:
    return SimpleNamespace(method=method, target=target, version=version, headers=list(headers), head=dict(headers))


def matches(kept: Kept, other: Any) -> bool:
    return kept.matches(other, dict(other.headers))


def test_the_same_head_matches_again_and_again_with_any_length():
    kept = Kept(exchange(*HEADERS), "value")
    for length in (b"5", b"77", b"0"):
        assert matches(kept, exchange(*HEADERS[:2], (b"content-length", length)))
    assert kept.value == "value"


def test_the_order_of_different_headers_means_nothing():
    assert matches(Kept(exchange(*HEADERS), None), exchange(*reversed(HEADERS)))


@pytest.mark.parametrize(
    "other",
    [
        exchange(*HEADERS[:2]),
        exchange(*HEADERS, (b"x-api-key", b"k")),
        exchange(*HEADERS, HEADERS[0]),
        exchange((b"host", b"other"), *HEADERS[1:]),
        exchange(*HEADERS, method="PUT"),
        exchange(*HEADERS, target=b"/v1/y"),
        exchange(*HEADERS, version="1.0"),
        exchange(*HEADERS[:2], (b"transfer-encoding", b"chunked")),
    ],
)
def test_any_difference_is_another_head(other):
    assert not matches(Kept(exchange(*HEADERS), None), other)


def test_a_head_without_a_length_does_not_match_one_with():
    assert not matches(Kept(exchange(*HEADERS[:2]), None), exchange(*HEADERS))


def test_a_head_with_a_repeated_header_never_matches():
    twice = exchange(HEADERS[0], HEADERS[0])
    assert not matches(Kept(twice, None), twice)


NAMES = st.sampled_from([b"host", b"authorization", b"content-length", b"x-a", b"x-b"])
HEADS = st.lists(st.tuples(NAMES, st.sampled_from([b"1", b"2"])), max_size=5)


@given(HEADS, HEADS)
def test_it_matches_exactly_when_no_header_is_repeated_and_all_but_the_length_are_equal(one, other):
    def told(headers):
        return sorted((name, b"" if name == b"content-length" else value) for name, value in headers)

    single = len(dict(other)) == len(other)
    assert matches(Kept(exchange(*one), None), exchange(*other)) is (single and told(one) == told(other))
