"""The arithmetic on the points in time that a request passes, and on what an engine said of tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model import Usage
from gateway.telemetry.trace import FINISH_REASONS, Trace, conclude, overhead


def _trace(**facts) -> Trace:
    trace = Trace("req_1", 5.0, 100.0)
    for name, value in {"ended": 110.0, **facts}.items():
        assert hasattr(trace, name)
        setattr(trace, name, value)
    conclude(trace)
    return trace


def test_the_reasons_for_an_end_are_closed():
    assert sorted(FINISH_REASONS) == sorted(
        [
            "stop",
            "length",
            "tool_calls",
            "content_filter",
            "function_call",
            "abort",
            "error",
            "repetition",
            "end_turn",
            "max_tokens",
            "stop_sequence",
            "tool_use",
            "completed",
            "incomplete",
            "failed",
        ]
    )


@pytest.mark.parametrize("said", [*sorted(FINISH_REASONS), None])
def test_a_known_reason_stands(said):
    assert _trace(finish=said).finish == said


@pytest.mark.parametrize("said", ["", "STOP", "other", "the prompt was hunter2", "stop "])
def test_any_other_reason_is_other(said):
    assert _trace(finish=said).finish == "other"


def test_the_duration_is_from_arrival_to_the_end():
    assert _trace(ended=100.25).duration_ms == pytest.approx(250.0)


def test_a_stream_has_a_first_token_and_a_pace():
    trace = _trace(events=9, answered=101.5, last_event=103.5, usage=Usage(7, 5, 1))
    assert trace.ttft_ms == pytest.approx(1_500.0)
    assert trace.tpot_ms == pytest.approx(500.0), "four tokens after the first in two seconds, whatever the events"
    assert (trace.prompt_tokens, trace.completion_tokens, trace.cached_tokens) == (7, 5, 1)


@pytest.mark.parametrize("events", [None, 0])
def test_what_was_not_streamed_has_neither(events):
    trace = _trace(events=events, answered=101.5, last_event=103.5, usage=Usage(7, 5))
    assert (trace.ttft_ms, trace.tpot_ms) == (None, None)
    assert trace.completion_tokens == 5


@pytest.mark.parametrize("usage", [None, Usage(7, 0), Usage(7, 1)])
def test_a_pace_needs_a_second_token(usage):
    trace = _trace(events=2, answered=101.5, last_event=103.5, usage=usage)
    assert trace.ttft_ms is not None
    assert trace.tpot_ms is None


def test_a_stream_that_never_showed_anything_has_no_first_token():
    assert _trace(events=1, answered=0.0).ttft_ms is None


def test_what_the_engine_did_not_count_stays_unknown():
    trace = _trace()
    assert (trace.prompt_tokens, trace.completion_tokens, trace.cached_tokens, trace.events) == (None,) * 4


SPANS = st.floats(0, 1_000)


@given(SPANS, SPANS, SPANS, SPANS)
def test_overhead_is_what_is_left_of_all_waiting(before, body, engine, after):
    trace = Trace("req_1", 5.0, 100.0)
    trace.waited = body + engine
    assert overhead(trace, 100.0 + before + body + engine + after) == pytest.approx(before + after, abs=1e-6)


def test_before_anything_was_sent_all_but_the_body_is_overhead():
    trace = Trace("req_1", 5.0, 100.0)
    trace.waited = 0.5
    assert overhead(trace, 101.0) == pytest.approx(0.5)


def test_one_request_leaves_no_trace_in_the_next():
    first = _trace(events=2, usage=Usage(7, 5), finish="stop")
    second = Trace("req_2", 5.0, 100.0)
    assert first.completion_tokens == 5
    assert (second.usage, second.completion_tokens, second.events, second.finish) == (None, None, None, None)
