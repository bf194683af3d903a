"""However a stream is cut into reads, what comes out is the same; whatever comes in, only ``StreamFault`` comes out."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.model import Dialect
from gateway.wire.sse import SseScanner, StreamFacts, StreamFault, StreamPlan

CAPTURES = Path(__file__).parents[1] / "captures"
SERVED = "internal-general-v3"
STREAMS = tuple(
    (dialect, choices, (CAPTURES / f"{name}.sse").read_bytes())
    for dialect, choices, name in (
        (Dialect.OPENAI, 1, "vllm-0.32.0/chat-stream-usage"),
        (Dialect.OPENAI, 2, "vllm-0.32.0/chat-stream-n2-logprobs"),
        (Dialect.OPENAI, 2, "vllm-0.32.0/completions-stream-2prompts-echo"),
        (Dialect.OPENAI, 1, "vllm-0.32.0/options/tool-named-stream"),
        (Dialect.OPENAI, 1, "sglang-0.5.23/chat-stream-usage-continuous"),
        (Dialect.RESPONSES, 1, "vllm-0.32.0/responses-stream"),
        (Dialect.ANTHROPIC, 1, "vllm-0.32.0/messages-stream"),
    )
)
streams = st.sampled_from(STREAMS)
cuts = st.lists(st.integers(0, 6000), max_size=40)

words = st.text(max_size=12) | st.just(SERVED) | st.just(f'"model":"{SERVED}"')
members = words | st.sampled_from(["type", "response", "message", "delta", "error"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
chunks = st.fixed_dictionaries(
    {"model": st.just(SERVED) | st.just("other")},
    optional={
        "choices": st.lists(
            st.fixed_dictionaries(
                {"index": st.integers(0, 1), "delta": st.dictionaries(words, values, max_size=3)},
                optional={"finish_reason": st.sampled_from([None, "stop"])},
            ),
            max_size=2,
        ),
        "usage": st.none()
        | st.dictionaries(st.sampled_from(["prompt_tokens", "completion_tokens"]), st.integers(0, 9)),
        "id": words,
    },
)


def pieces(data: bytes, at: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in at)})
    return [data[start:end] for start, end in pairwise(edges)]


def shown_of(plan: StreamPlan, reads: list[bytes]) -> tuple[bytes, bool, StreamFacts]:
    """What a client sees in the end, whether it is an error, and what is known."""
    scanner, shown = SseScanner(plan), b""
    try:
        for read in reads:
            shown += scanner.feed(read)
        shown += scanner.end()
    except StreamFault as fault:
        return shown + fault.passed, True, scanner.facts
    return shown, False, scanner.facts


@settings(deadline=None)
@given(streams, cuts, st.booleans(), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_cuts_change_nothing(stream, at, show_usage, ends):
    dialect, choices, data = stream
    plan = StreamPlan(dialect, "alias", show_usage, choices)
    whole = shown_of(plan, [data])
    assert shown_of(plan, pieces(data.replace(b"\n", ends), at)) == whole
    assert not whole[1]


@settings(deadline=None)
@given(streams, cuts, st.lists(st.tuples(st.integers(0, 6000), st.binary(max_size=3)), min_size=1, max_size=4))
def test_spoilt_streams_end_in_the_same_way_however_they_are_cut(stream, at, changes):
    dialect, choices, data = stream
    for place, put in changes:
        data = data[:place] + put + data[place + 1 :]
    plan = StreamPlan(dialect, "alias", choices=choices)
    shown, failed, _ = shown_of(plan, [data])
    again, failed_again, _ = shown_of(plan, pieces(data, at))
    assert failed == failed_again
    assert shown == again
    shown.decode()


@given(st.lists(chunks, min_size=1, max_size=6), cuts, st.booleans())
@settings(max_examples=200, deadline=None)
def test_every_chunk_is_the_engines_but_for_the_name(made, at, show_usage):
    data = b"".join(b"data: " + orjson.dumps(each) + b"\n\n" for each in made)
    shown, _, facts = shown_of(StreamPlan(Dialect.OPENAI, "alias", show_usage), pieces(data, at))
    wanted = [{**each, "model": "alias"} for each in made if show_usage or not only_usage(each)]
    seen = [orjson.loads(event[6:]) for event in shown.split(b"\n\n") if event.startswith(b"data: {")]
    assert seen == wanted
    assert facts.events == len(made)


def only_usage(chunk: dict[str, Any]) -> bool:
    return isinstance(chunk.get("usage"), dict) and not chunk.get("choices")


@settings(deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=8), st.sampled_from(list(Dialect)))
def test_any_bytes_end_in_a_fault_or_in_events(reads, dialect):
    shown, _, _ = shown_of(StreamPlan(dialect, "alias"), reads)
    shown.decode()


@given(st.lists(st.dictionaries(members, values), max_size=3))
@settings(max_examples=60, deadline=None)
def test_any_objects_end_in_a_fault_or_in_events(made):
    data = b"".join(b"data: " + orjson.dumps(each) + b"\n\n" for each in made)
    for dialect in Dialect:
        shown_of(StreamPlan(dialect, "alias"), [data])
