"""Streams of real engines, and streams that no engine should send, through the scanner."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.model import Dialect, Usage
from gateway.wire.sse import MAX_EVENT_BYTES, SseScanner, StreamFault, StreamPlan, read_usage

CAPTURES = Path(__file__).parents[2] / "captures"
SERVED = "internal-general-v3"
CHAT = StreamPlan(Dialect.OPENAI, "alias")

_CHAT = ("chat-stream", "chat-stream-usage", "chat-stream-usage-continuous", "chat-stream-maxtok1")
# file: how it was asked for, and what its end says
STREAMS: dict[str, StreamPlan] = {
    **{f"vllm-0.32.0/{name}": CHAT for name in _CHAT},
    "vllm-0.32.0/chat-stream-continuous-only": CHAT,
    "vllm-0.32.0/chat-stream-n2-logprobs": replace(CHAT, choices=2),
    "vllm-0.32.0/completions-stream": CHAT,
    "vllm-0.32.0/completions-stream-nousage": CHAT,
    "vllm-0.32.0/completions-stream-2prompts-echo": replace(CHAT, choices=2),
    "vllm-0.32.0/options/tool-named-stream": CHAT,
    "vllm-0.32.0/options/tool-required-stream": CHAT,
    "vllm-0.32.0/limits/auth-right-per-request-metrics-stream": CHAT,
    "vllm-0.32.0/responses-stream": StreamPlan(Dialect.RESPONSES, "alias"),
    "vllm-0.32.0/messages-stream": StreamPlan(Dialect.ANTHROPIC, "alias"),
    "vllm-0.11.0/chat-stream-usage": CHAT,
    "vllm-0.11.0/chat-stream-usage-continuous": CHAT,
    "vllm-0.11.0/chat-stream-n2-logprobs": replace(CHAT, choices=2),
    "vllm-0.11.0/completions-stream": CHAT,
    "vllm-0.11.0/completions-stream-2prompts-echo": replace(CHAT, choices=2),
    "sglang-0.5.23/chat-stream-usage": CHAT,
    "sglang-0.5.23/chat-stream-usage-continuous": CHAT,
    "sglang-0.5.23/chat-stream-n2-logprobs": replace(CHAT, choices=2),
    "sglang-0.5.23/chat-stream-tool-named": CHAT,
    "sglang-0.5.23/completions-stream": CHAT,
    "sglang-0.5.23/completions-stream-2prompts-echo": replace(CHAT, choices=2),
    "sglang-0.5.23/responses-stream": StreamPlan(Dialect.RESPONSES, "alias"),
    "sglang-0.5.23/messages-stream": StreamPlan(Dialect.ANTHROPIC, "alias"),
}


def capture(name: str) -> bytes:
    return (CAPTURES / f"{name}.sse").read_bytes()


def run(plan: StreamPlan, *reads: bytes, end: bool = True) -> tuple[bytes, SseScanner]:
    scanner = SseScanner(plan)
    shown = b"".join(scanner.feed(read) for read in reads)
    return shown + (scanner.end() if end else b""), scanner


def events(shown: bytes) -> list[Any]:
    """The data of each event, parsed; ``[DONE]`` as it is."""
    found = []
    for event in shown.split(b"\n\n"):
        data = [line[6:] for line in event.split(b"\n") if line.startswith(b"data: ")]
        found += [orjson.loads(each) if each != b"[DONE]" else each for each in data]
    return found


def chunk(text: Any = "x", *, finish: Any = None, model: Any = SERVED, index: Any = 0, **more: Any) -> bytes:
    choice = {"index": index, "delta": {"content": text}, "finish_reason": finish}
    return b"data: " + orjson.dumps({"id": "c", "model": model, "choices": [choice], **more}) + b"\n\n"


USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
USAGE_ONLY = b"data: " + orjson.dumps({"id": "c", "model": SERVED, "choices": [], "usage": USAGE}) + b"\n\n"
STOP = chunk(None, finish="stop")
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error": {"message": "the prompt was: secret", "type": "X", "param": null, "code": 500}}\n\n'


def faulty(plan: StreamPlan, *reads: bytes) -> tuple[StreamFault, bytes]:
    """The fault that the last of the reads, or the end, raises, and what had passed by then."""
    scanner, shown = SseScanner(plan), b""
    try:
        for read in reads:
            shown += scanner.feed(read)
        scanner.end()
    except StreamFault as fault:
        return fault, shown + fault.passed
    pytest.fail("no fault")


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("show_usage", [False, True])
def test_a_captured_stream_is_the_same_however_it_is_cut(name, show_usage):
    data, plan = capture(name), replace(STREAMS[name], show_usage=show_usage)
    whole, scanner = run(plan, data)
    by_byte, slow = run(plan, *(data[i : i + 1] for i in range(len(data))))
    by_event, fast = run(plan, *(event + b"\n\n" for event in data.split(b"\n\n")[:-1]))
    assert whole == by_byte == by_event
    assert scanner.facts == slow.facts == fast.facts
    assert scanner.facts.ended
    assert scanner.whole


@pytest.mark.parametrize("name", STREAMS)
def test_a_captured_stream_changes_in_nothing_but_the_name(name):
    data, plan = capture(name), replace(STREAMS[name], show_usage=True)
    shown, scanner = run(plan, data)
    assert SERVED.encode() not in shown
    assert events(shown) == events(data.replace(SERVED.encode(), b"alias"))
    assert scanner.facts.events == sum(event != b"[DONE]" for event in events(data))


@pytest.mark.parametrize("name", STREAMS)
def test_what_a_captured_stream_says_is_read(name):
    _, scanner = run(STREAMS[name], capture(name))
    assert scanner.facts.finish in {"length", "stop", "tool_calls", "max_tokens", "incomplete", "completed"}
    asked = b'"usage":{' in capture(name)
    assert (scanner.facts.usage is not None) == asked
    if asked:
        assert scanner.facts.usage.prompt > 0
        assert scanner.facts.usage.completion > 0


@pytest.mark.parametrize("ends", [b"\r\n", b"\r"])
@pytest.mark.parametrize("name", ["vllm-0.32.0/chat-stream-usage", "vllm-0.32.0/messages-stream"])
def test_other_line_ends_make_no_difference(name, ends):
    data, plan = capture(name), STREAMS[name]
    wanted, _ = run(plan, data)
    other = data.replace(b"\n", ends)
    assert run(plan, other)[0] == wanted
    assert run(plan, *(other[i : i + 1] for i in range(len(other))))[0] == wanted


def test_a_missing_space_and_data_on_several_lines_are_the_same_event():
    wanted, _ = run(CHAT, STOP)
    assert run(CHAT, STOP.replace(b"data: ", b"data:"))[0] == wanted
    spread, _ = run(CHAT, STOP.replace(b',"choices"', b'\ndata: ,"choices"'))
    joined = spread.replace(b"\ndata: ,", b",")
    assert joined == wanted
    assert SERVED.encode() not in spread


def test_a_byte_order_mark_at_the_beginning_is_skipped():
    wanted, _ = run(CHAT, STOP)
    assert run(CHAT, b"\xef\xbb\xbf" + STOP)[0] == wanted
    assert run(CHAT, b"\xef", b"\xbb", b"\xbf", STOP)[0] == wanted
    assert faulty(CHAT, chunk(), b"\xef\xbb\xbf" + STOP)[0].status is None


def test_comments_say_nothing_of_the_engines():
    shown, scanner = run(CHAT, b": served by internal-general-v3\n\n", b":\n\n", chunk(), STOP)
    assert shown.startswith(b": keep-alive\n\n: keep-alive\n\ndata: ")
    assert scanner.facts.events == 2
    assert SERVED.encode() not in shown
    inside, _ = run(CHAT, b": internal-general-v3\nid: internal-general-v3\nretry: 1\n" + STOP)
    assert inside == run(CHAT, STOP)[0]


def test_an_event_with_fields_but_no_data_is_dropped():
    assert run(CHAT, b"event: ping\n\n" + STOP)[0] == run(CHAT, STOP)[0]
    assert run(CHAT, b"retry: 5\n\n" + STOP)[0] == run(CHAT, STOP)[0]


def test_the_name_of_an_event_passes_only_as_a_plain_word():
    plan = StreamPlan(Dialect.ANTHROPIC, "alias")
    named = b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
    assert run(plan, named, end=False)[0] == named
    odd = named.replace(b"content_block_stop\n", b"\xff\xfe <b>\n")
    assert run(plan, odd, end=False)[0] == b'data: {"type":"content_block_stop","index":0}\n\n'


@pytest.mark.parametrize(
    "bad",
    [
        b"data: {\n\n",
        b"data: \n\n",
        b"data: 7\n\n",
        b"data: []\n\n",
        b'data: "[DONE]"\n\n',
        b"data: null\n\n",
        b"Traceback (most recent call last)\n\n",
        b'{"error":"x"}\n\n',
        b'data: {"model":"internal-general-v3","choices":[{"delta":{"content":"\xff\xfe"}}]}\n\n',
        b'data: {"model":"internal-general-v3","choices":[{"delta":{"content":"\xe2\x82"}}]}\n\n',
        b'data: {"a":{"model":1},"model":2,"x":' + b"[" * 300 + b"]" * 300 + b"}\n\n",
        b"data: " + b"[" * 100_000 + b"\n\n",
    ],
)
@pytest.mark.parametrize("before", [(), (chunk(),)])
def test_what_is_no_event_ends_the_stream_as_malformed(bad, before):
    fault, shown = faulty(CHAT, *before, bad)
    assert fault.status is None
    assert events(shown) == events(run(CHAT, *before, end=False)[0])


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("member", [b'"type":[]', b'"type":{}', b'"response":7,"message":7,"delta":7', b'"choices":7'])
def test_members_of_odd_types_pass_without_an_error_of_our_own(dialect, member):
    event = b"data: {" + member + b"}\n\n"
    assert run(StreamPlan(dialect, "alias"), event, end=False)[0] == event


def test_characters_cut_in_two_reads_are_whole_again():
    data = chunk("wörld €😀") + chunk("ü", finish="stop")
    wanted = run(CHAT, data)[0]
    for cut in range(1, len(data)):
        assert run(CHAT, data[:cut], data[cut:])[0] == wanted
    assert "wörld €😀".encode() in wanted


def test_usage_that_was_not_asked_for_is_hidden_and_known():
    hidden, scanner = run(CHAT, chunk(), STOP, USAGE_ONLY, DONE)
    assert scanner.facts.usage == Usage(prompt=3, completion=2)
    assert [event for event in events(hidden) if event != b"[DONE]" and not event["choices"]] == []
    shown, _ = run(replace(CHAT, show_usage=True), chunk(), STOP, USAGE_ONLY, DONE)
    assert events(shown)[-2]["usage"] == USAGE
    assert len(events(shown)) == len(events(hidden)) + 1


def test_usage_beside_choices_is_never_hidden():
    shown, scanner = run(CHAT, chunk(usage=USAGE), chunk(usage=USAGE), STOP, DONE)
    assert len(events(shown)) == 4
    assert scanner.facts.usage == Usage(3, 2)


@pytest.mark.parametrize(
    ("usage", "wanted"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 4}}, Usage(5, 6, 4)),
        ({"input_tokens": 5, "output_tokens": 6, "input_tokens_details": {"cached_tokens": 4}}, Usage(5, 6, 4)),
        ({"prompt_tokens": "5", "completion_tokens": -6, "prompt_tokens_details": [4]}, Usage()),
        ({"prompt_tokens": True, "completion_tokens": 1.5, "prompt_tokens_details": {"cached_tokens": None}}, Usage()),
        ({}, Usage()),
    ],
)
def test_usage_is_read_in_every_form_and_odd_counts_are_none(usage, wanted):
    assert read_usage(usage) == wanted


def test_a_message_whose_input_is_told_at_the_start_keeps_it():
    _, scanner = run(StreamPlan(Dialect.ANTHROPIC, "alias"), capture("sglang-0.5.23/messages-stream"))
    assert scanner.facts.usage == Usage(prompt=20, completion=6)


TRICKY = f'{{"model":"{SERVED}","a":["model":"{SERVED}"]}}'


@pytest.mark.parametrize("warm", [(), (chunk(),)], ids=["first", "later"])
def test_the_name_inside_text_and_arguments_is_left_alone(warm):
    call = {"index": 0, "function": {"name": "f", "arguments": TRICKY}}
    choice = {"index": 0, "delta": {"content": TRICKY, "tool_calls": [call]}, "finish_reason": None}
    event = b"data: " + orjson.dumps({"id": "c", "model": SERVED, "choices": [choice]}) + b"\n\n"
    shown, _ = run(CHAT, *warm, event, end=False)
    last = events(shown)[-1]
    assert last["model"] == "alias"
    assert last["choices"] == [choice]


def test_a_nested_member_of_that_name_does_not_stand_for_the_one_at_the_top():
    event = b'data: {"x":{"model":"internal-general-v3"},"model" : "internal-general-v3","choices":[]}\n\n'
    shown, _ = run(CHAT, event, end=False)
    assert events(shown)[0]["model"] == "alias"
    twice = b'data: {"model":"first","model":"internal-general-v3","choices":[]}\n\n'
    assert run(CHAT, twice, end=False)[0] == b'data: {"model":"alias","choices":[]}\n\n'


@pytest.mark.parametrize(
    "name", ["other", 'with "quotes" \\ and ünicode', "", "a" * 5000, None, 7, ["x"], {"model": "y"}]
)
def test_whatever_the_engine_calls_its_model_the_alias_is_shown(name):
    shown, _ = run(CHAT, chunk(), chunk(model=name), chunk(), chunk(model=name), STOP, DONE)
    assert {event["model"] for event in events(shown) if event != b"[DONE]"} == {"alias"}


def test_an_alias_that_needs_escapes_is_shown_escaped():
    plan = StreamPlan(Dialect.OPENAI, 'a"b\\c\né')
    shown, _ = run(plan, chunk(), chunk(), STOP)
    assert {event["model"] for event in events(shown) if event != b"[DONE]"} == {'a"b\\c\né'}


def test_chunks_without_a_model_pass():
    event = b'data: {"id":"c","choices":[]}\n\n'
    assert run(CHAT, chunk(), event, end=False)[0].endswith(event)


@pytest.mark.parametrize(
    ("dialect", "event", "status"),
    [
        (Dialect.OPENAI, ERROR, 500),
        (Dialect.OPENAI, ERROR.replace(b"500", b"503"), 503),
        (Dialect.OPENAI, ERROR.replace(b"500", b'"rate_limited"'), 500),
        (Dialect.OPENAI, ERROR.replace(b"500", b"true"), 500),
        (Dialect.OPENAI, ERROR.replace(b"500", b"200"), 500),
        (Dialect.OPENAI, b'data: {"error":"text"}\n\n', 500),
        (Dialect.OPENAI, b'data: {"object":"error","message":"secret","type":"503","code":503}\n\n', 503),
        (Dialect.RESPONSES, ERROR, 500),
        (Dialect.RESPONSES, b'event: error\ndata: {"type":"error","code":"x","message":"secret"}\n\n', 500),
        (Dialect.RESPONSES, b'data: {"type":"response.failed","response":{"error":{"code":"x"}}}\n\n', 500),
        (Dialect.ANTHROPIC, ERROR, 500),
        (Dialect.ANTHROPIC, b'event: error\ndata: {"type":"error","error":{"type":"api_error"}}\n\n', 500),
    ],
)
def test_an_error_event_is_the_engines_word_and_is_not_passed_on(dialect, event, status):
    fault, shown = faulty(StreamPlan(dialect, "alias"), event + DONE)
    assert fault.status == status
    assert shown == b""


def test_good_events_before_an_error_in_the_same_read_are_kept_apart():
    fault, shown = faulty(CHAT, chunk("a"), chunk("b") + chunk("c") + ERROR + DONE)
    assert fault.status == 500
    assert [event["choices"][0]["delta"]["content"] for event in events(shown)] == ["a", "b", "c"]
    assert [event["choices"][0]["delta"]["content"] for event in events(fault.passed)] == ["b", "c"]
    assert b"secret" not in shown


def test_a_null_error_is_none():
    assert len(events(run(CHAT, chunk(error=None), end=False)[0])) == 1


def test_a_missing_end_marker_is_put_in_after_a_whole_answer():
    assert run(CHAT, chunk(), STOP)[0].endswith(DONE)


def test_one_end_marker_is_shown_and_nothing_behind_it():
    wanted = run(CHAT, chunk(), STOP, DONE)[0]
    assert run(CHAT, chunk(), STOP, DONE, DONE, chunk(), ERROR, b"garbage\n\n")[0] == wanted
    assert run(CHAT, chunk(), STOP + DONE + DONE + chunk())[0] == wanted
    assert run(CHAT, chunk(), STOP, DONE.replace(b"]", b"] "))[0] == wanted


def test_an_end_marker_alone_proves_nothing():
    fault, shown = faulty(CHAT, chunk(), DONE)
    assert fault.status is None
    assert DONE not in shown
    assert faulty(CHAT, chunk())[0].status is None
    assert faulty(CHAT)[0].status is None


def test_a_response_that_never_says_it_is_complete_is_not():
    plan = StreamPlan(Dialect.RESPONSES, "alias")  # vLLM 0.11.0 stopped so (captured)
    fault, shown = faulty(plan, capture("vllm-0.11.0/responses-stream"))
    assert fault.status is None
    assert events(shown)[-1]["type"] == "response.output_item.done"


def test_every_choice_has_to_finish():
    two = replace(CHAT, choices=2)
    ends = chunk(None, finish="stop"), chunk(None, finish="length", index=1)
    assert run(two, chunk(), *ends, DONE)[0].endswith(DONE)
    assert DONE not in faulty(two, chunk(), ends[0], chunk(index=1), DONE)[1]
    assert DONE not in faulty(two, ends[0], ends[0], DONE)[1]
    assert DONE not in faulty(two, ends[0], chunk(None, finish="stop", index=7), DONE)[1]


def test_what_is_kept_of_choices_is_bounded():
    scanner = SseScanner(replace(CHAT, choices=2))
    for index in range(-5, 500):
        scanner.feed(chunk(finish="stop", index=index))
    assert scanner.facts.finished == {0, 1}


@pytest.mark.parametrize("dialect", [Dialect.RESPONSES, Dialect.ANTHROPIC])
def test_the_other_dialects_have_to_finish_too(dialect):
    name = "responses" if dialect is Dialect.RESPONSES else "messages"
    parts = capture(f"vllm-0.32.0/{name}-stream").split(b"\n\n")
    cut = [part + b"\n\n" for part in parts[:3]]
    assert faulty(StreamPlan(dialect, "alias"), *cut)[0].status is None
    stop = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    if dialect is Dialect.ANTHROPIC:
        assert stop not in faulty(StreamPlan(dialect, "alias"), *cut, stop)[1]


def test_an_event_cut_by_the_end_is_a_fault():
    assert faulty(CHAT, chunk(), STOP, b'data: {"id"')[0].status is None
    assert run(CHAT, chunk(), STOP, b"\n\n\n")[0].endswith(DONE)


def test_a_line_without_an_end_is_bounded():
    scanner, piece = SseScanner(CHAT), b"x" * 65536
    for _ in range(MAX_EVENT_BYTES // len(piece)):
        assert scanner.feed(piece) == b""
    with pytest.raises(StreamFault):
        scanner.feed(piece)


def test_a_huge_event_in_tiny_reads_costs_linear_time():
    def seconds(size: int) -> float:
        data = chunk("x" * size)
        scanner = SseScanner(CHAT)
        begin = time.process_time()
        for at in range(0, len(data), 64):
            scanner.feed(data[at : at + 64])
        return time.process_time() - begin

    small, large = min(seconds(100_000) for _ in range(3)), min(seconds(1_600_000) for _ in range(2))
    assert large < 16 * 6 * small  # 256 times if quadratic


def test_an_end_inside_a_chunk_of_the_usual_mould_is_seen() -> None:
    """Between the usual beginning and end may stand another choice, which says that it has ended."""
    usual = b'data: {"model":"served","choices":[{"index":0,"delta":{},"finish_reason":null}]}\n\n'
    ended = usual.replace(b'[{"index":0', b'[{"index":0,"delta":{},"finish_reason":"stop"},{"index":1')
    scanner = SseScanner(StreamPlan(Dialect.OPENAI, "shown"))
    for _ in range(3):
        scanner.feed(usual)
    scanner.feed(ended)
    assert scanner.facts.finish == "stop"
    assert scanner.end() == b"data: [DONE]\n\n"
