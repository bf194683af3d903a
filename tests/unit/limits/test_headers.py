"""Response header lines."""

from __future__ import annotations

import openai
import pytest

from gateway.limits.headers import duration, rate_lines
from gateway.limits.interfaces import Standing


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (-3, "0s"),
        (0.0001, "1ms"),
        (0.012, "12ms"),
        (0.999, "999ms"),
        (0.9995, "1s"),
        (1, "1s"),
        (59.2, "1m0s"),
        (59, "59s"),
        (360, "6m0s"),
        (86_400, "24h0m0s"),
        (3_725, "1h2m5s"),
    ],
)
def test_durations_are_written_as_openai_does(seconds, text):
    assert duration(seconds).decode() == text


def test_both_limits():
    lines = rate_lines(Standing(60, 59, 1.0, 150_000, 149_984, 0.006))
    assert lines.decode().split("\r\n") == [
        "x-ratelimit-limit-requests: 60",
        "x-ratelimit-remaining-requests: 59",
        "x-ratelimit-reset-requests: 1s",
        "x-ratelimit-limit-tokens: 150000",
        "x-ratelimit-remaining-tokens: 149984",
        "x-ratelimit-reset-tokens: 6ms",
        "",
    ]


def test_a_limit_that_is_not_there_is_not_spoken_of():
    assert rate_lines(Standing()) == b""
    assert b"tokens" not in rate_lines(Standing(limit_requests=1, remaining_requests=0))
    assert b"requests" not in rate_lines(Standing(limit_tokens=1, remaining_tokens=0))


@pytest.mark.parametrize("name", ["retry-after", "retry-after-ms"])
def test_the_openai_client_waits_by_what_errors_carry_not_by_these_lines(name):
    client = openai.OpenAI(api_key="none", base_url="http://127.0.0.1:9/v1")
    seconds = {"retry-after": "7", "retry-after-ms": "7000"}[name]
    assert client._parse_retry_after_header({name: seconds}) == 7.0
    spoken = rate_lines(Standing(1, 0, 60.0, 1, 0, 60.0)).decode().split("\r\n")[:-1]
    assert client._parse_retry_after_header(dict(line.split(": ") for line in spoken)) is None
