"""The SGLang persona's bytes against those of a real SGLang 0.5.23; ids and times are masked."""

import asyncio
import json
import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from loadtests.engine.answers import Stamp
from loadtests.engine.capture import Capture, masked, read_capture
from loadtests.engine.server import SimulatedEngine
from loadtests.engine.sglang.answers import ChatRenderer, CompletionRenderer
from loadtests.engine.sglang.plans import plan_chat, plan_completion
from loadtests.engine.spec import EngineSpec, instant_spec
from loadtests.engine.wireclient import Answer, ask, post

CAPTURES = Path(__file__).parents[3] / "captures" / "sglang-0.5.23"
CLOCK = 1796030224.0

PLAIN = """
auth-ignored cache-salt cache-salt-empty chat chat-stop-finish completions completions-token-ids detokenize
dup-key-model embeddings err-404-route err-bad-json-schema err-delete-models
err-image-to-text-model err-max-tokens-too-large err-max-tokens-zero err-messages-empty
err-method-not-allowed err-model-missing-uses-default err-not-object err-options
err-temperature-range err-trailing-slash err-unknown-field-accepted
fields-user-metadata get-kv_event_sources get-load get-ping get-ready get-v1-models
get-version invocations messages messages-count-tokens messages-too-long models-one post-ping priority-on-fcfs
reqid-body-field reqid-default rerank score
""".split()  # noqa: SIM905 - a list of fifty strings reads worse
STREAMS = """
chat-stream chat-stream-continuous-only chat-stream-maxtok1 chat-stream-usage completions-stream-nousage messages-stream
""".split()  # noqa: SIM905 - as above
MERGED = {
    "chat-stream-usage-continuous": (0, 1, 2, 3, 4, 5, 7, 8),
    "completions-stream": (0, 1, 3, 4, 5, 6),
}
"""Streams in which the captured server was behind and put two tokens into one event: where its events end."""

SCHEMA = """
err-bad-role err-empty-body err-invalid-json err-missing-messages err-wrong-type-max-tokens err-wrong-type-messages
""".split()  # noqa: SIM905 - as above


def captured_spec(**settings: object) -> EngineSpec:
    """The server that was captured."""
    facts: dict[str, object] = {
        "persona": "sglang", "model": "internal-general-v3", "max_model_len": 2048, "max_num_seqs": 4,
        "kv_blocks": 16384, "block_size": 128,
    }  # fmt: skip
    return instant_spec(**{**facts, **settings})


def answer_to(request: bytes, spec: EngineSpec | None = None) -> Answer:
    async def body() -> Answer:
        engine = SimulatedEngine(spec or captured_spec(), clock=lambda: CLOCK)
        await engine.start()
        try:
            return await ask(engine.port, request)
        finally:
            await engine.close()

    return asyncio.run(body())


def check(capture: Capture) -> None:
    answer = answer_to(capture.request())
    assert masked(answer.head + answer.body) == masked(capture.head + capture.body)


@pytest.mark.parametrize("name", PLAIN)
def test_answer_is_the_captured_one(name: str) -> None:
    check(read_capture(CAPTURES / f"{name}.http"))


@pytest.mark.parametrize("name", STREAMS)
def test_stream_is_the_captured_one(name: str) -> None:
    check(read_capture(CAPTURES / f"{name}.head.txt"))


@pytest.mark.parametrize("name", SCHEMA)
def test_schema_errors_leak_a_place_as_captured(name: str) -> None:
    """The content-length in a capture counts a path that the capture hides."""
    capture = read_capture(CAPTURES / f"{name}.http")
    answer = answer_to(capture.request())
    assert (answer.status, masked(answer.body)) == (400, masked(capture.body))
    assert b"\r\ncontent-length: %d\r\n" % len(answer.body) in answer.head


@pytest.mark.parametrize("name", MERGED)
def test_merged_stream_is_the_captured_one(name: str) -> None:
    capture = read_capture(CAPTURES / f"{name}.head.txt")
    chat = name.startswith("chat")
    body, spec = json.loads(capture.request_body), captured_spec()
    plan = (plan_chat if chat else plan_completion)(body, spec)
    renderer = (ChatRenderer if chat else CompletionRenderer)(plan, Stamp("0" * 32, 0, lambda: "0" * 16), spec)
    events = [event for start, stop in pairwise(MERGED[name]) for event in renderer.tokens(0, start, stop)]
    assert masked(b"".join(events + renderer.closing())) == masked(capture.body)


def test_stream_of_two_prompts_has_the_captured_events_with_an_id_for_each() -> None:
    capture = read_capture(CAPTURES / "completions-stream-2prompts-echo.head.txt")
    ours, theirs = answer_to(capture.request()).body, capture.body
    # The order of the choices is free.
    assert sorted(masked(ours).split(b"\n\n")) == sorted(masked(theirs).split(b"\n\n"))
    for body in (ours, theirs):
        ids = {(event["id"], choice["index"]) for event in events_of(body) for choice in event["choices"]}
        assert len(ids) == len({name for name, _ in ids}) == 2


def test_stream_of_two_choices_has_the_captured_form() -> None:
    capture = read_capture(CAPTURES / "chat-stream-n2-logprobs.head.txt")
    ours, theirs = (events_of(body) for body in (answer_to(capture.request()).body, capture.body))
    assert sorted(map(form, ours)) == sorted(map(form, theirs))
    last = [event["id"] for event in ours if event["choices"] and event["choices"][0]["delta"].get("content")][-1]
    assert [event["id"] for event in ours[-3:]] == [last] * 3


def test_whole_answer_with_logprobs_has_the_captured_form() -> None:
    capture = read_capture(CAPTURES / "chat-n2-logprobs.http")
    assert form(json.loads(answer_to(capture.request()).body)) == form(json.loads(capture.body))


def events_of(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in body.split(b"\n\n") if line.startswith(b"data: {")]


def form(value: object) -> str:
    """Members in their order, without texts and numbers; of a list one entry."""
    match value:
        case dict():
            return "{" + ",".join(f"{name}:{form(inner)}" for name, inner in value.items()) + "}"
        case list():
            return "[" + ",".join(sorted({form(inner) if isinstance(inner, dict) else "" for inner in value})) + "]"
        case _:
            return "" if value is None else type(value).__name__


@pytest.mark.parametrize("name", ["get-health", "get-health_generate"])
def test_health_is_the_captured_one_and_takes_a_second(name: str) -> None:
    began = time.monotonic()
    check(read_capture(CAPTURES / f"{name}.http"))
    assert time.monotonic() - began >= 1.0


@pytest.mark.parametrize("name", ["head-health", "head-models"])
def test_head_is_refused_as_captured(name: str) -> None:
    capture = read_capture(CAPTURES / f"{name}.http")
    answer = answer_to(b"HEAD " + capture.path.encode() + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert masked(answer.head) == masked(capture.head).replace(b"Origin\r\n", b"Origin\r\nConnection: close\r\n")


@pytest.mark.parametrize("stream", [False, True])
def test_too_long_prompt_is_refused_as_captured(stream: bool) -> None:
    capture = read_capture(CAPTURES / ("err-prompt-too-long-stream.http" if stream else "err-prompt-too-long.http"))
    body = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": "hello world " * 3000}]}
    answer = answer_to(post("/v1/chat/completions", json.dumps(body).encode()))
    assert masked(answer.head) == masked(capture.head)
    # The captured tokeniser makes 6019 tokens of it.
    assert re.sub(rb"\d+ tokens", b"N tokens", answer.body) == re.sub(rb"\d+ tokens", b"N tokens", capture.body)


@pytest.mark.parametrize("kind", [b"", b"content-type: text/plain\r\n"])
def test_other_content_types_are_refused_as_captured(kind: bytes) -> None:
    capture = read_capture(CAPTURES / ("err-content-type-text-plain.http" if kind else "err-content-type-absent.http"))
    answer = answer_to(b"POST /v1/chat/completions HTTP/1.1\r\n" + kind + b"content-length: 2\r\n\r\n{}")
    assert masked(answer.head + answer.body) == masked(capture.head + capture.body)


def test_stream_is_framed_one_event_in_one_chunk() -> None:
    capture = (CAPTURES / "chat-stream-raw-chunked.txt").read_bytes()
    request = read_capture(CAPTURES / "chat-stream.head.txt").request().replace(b'"max_tokens":8', b'"max_tokens":3')
    answer = answer_to(request)
    framed = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in answer.chunks) + b"0\r\n\r\n"
    assert masked(answer.head + framed) == masked(capture)


@pytest.mark.parametrize("stream", [True, False])
def test_full_queue_is_told_as_captured(stream: bool) -> None:
    text = (CAPTURES / "queue-limit.txt").read_bytes()
    capture = text[text.index(b"HTTP/1.1 200" if stream else b"HTTP/1.1 503") :]
    capture = capture[: capture.index(b"\n## ") if stream else capture.index(b"\nsglang:")].rstrip()
    body = {"messages": [{"role": "user", "content": "x"}], "stream": stream}
    answer = answer_to(
        post("/v1/chat/completions", json.dumps(body).encode(), "connection: close"),
        captured_spec(max_num_queued_requests=0),
    )
    framed = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in answer.chunks) + b"0\r\n\r\n"
    ours = masked(answer.head) + (framed if stream else answer.body)
    # The capture was written down with line ends doubled where the framing has one.
    assert ours.split() == masked(capture).split()


def test_metric_lines_are_among_the_captured_ones_in_their_order() -> None:
    """Of the captured server's families those that a router may read; here after a stream and a whole answer."""
    captured = [_series(line) for line in (CAPTURES / "metrics-idle.txt").read_text().splitlines()]
    ours = [_series(line) for line in _metrics_after_use().splitlines()]
    ours = [line for line in ours if "http_re" not in line or line.startswith("#")]
    assert set(ours) <= set(captured)
    assert len(ours) == len(set(ours)) > 100
    heads = [line for line in captured if line.startswith("# TYPE")]
    assert [line for line in ours if line.startswith("# TYPE")] == [line for line in heads if line in ours]


def _series(line: str) -> str:
    return line if line.startswith("#") else line.rsplit(" ", 1)[0]


def _metrics_after_use() -> str:
    async def body() -> str:
        engine = SimulatedEngine(captured_spec())
        await engine.start()
        try:
            for name in ("chat.http", "chat-stream.head.txt"):
                await ask(engine.port, read_capture(CAPTURES / name).request())
            return engine.metrics_text().decode()
        finally:
            await engine.close()

    return asyncio.run(body())
