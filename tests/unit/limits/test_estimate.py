"""What a request is taken to use."""

from __future__ import annotations

import pytest

from gateway.limits.estimate import answer_tokens, cut_tokens, prompt_tokens


@pytest.mark.parametrize(
    ("prompt_bytes", "per_token", "choices", "max_tokens", "expected"),
    [
        (0, 4, 1, 10, 10),
        (1, 4, 1, 10, 11),
        (8, 4, 2, 10, 22),
        (9, 4, 1, None, 259),
        (10, 2.5, 3, 0, 4),
        (11, 2.5, 0, 9, 5),
    ],
)
def test_the_reserve_is_the_prompt_and_all_that_may_be_answered(prompt_bytes, per_token, choices, max_tokens, expected):
    reserved = prompt_tokens(prompt_bytes, per_token) + answer_tokens(choices, max_tokens, default=256)
    assert reserved == expected


def test_a_cut_stream_is_charged_an_event_a_token_at_least():
    # 100 events of one token of two letters each: their frames weigh 200 bytes.
    assert cut_tokens(prompt=7, events=100, answer_bytes=100 * 202, first_bytes=200) == 107


def test_merged_events_are_charged_by_their_text():
    # A slow reader: two events, of which the second holds 4,000 bytes of text.
    assert cut_tokens(prompt=7, events=2, answer_bytes=200 + 4_200, first_bytes=200) == 1_007


def test_nothing_answered_is_the_prompt():
    assert cut_tokens(prompt=7, events=0, answer_bytes=0, first_bytes=0) == 7
