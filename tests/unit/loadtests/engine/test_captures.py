"""The simulated engine's bytes against those of a real vLLM 0.32.0; ids, times and the fingerprint are masked."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from loadtests.engine.answers import ChatRenderer, Stamp
from loadtests.engine.capture import Capture, masked, read_capture
from loadtests.engine.plan import Choice, Plan, Prompt, ToolCall
from loadtests.engine.responses import ResponsesRenderer, plan_responses
from loadtests.engine.server import SimulatedEngine
from loadtests.engine.spec import EngineSpec, instant_spec
from loadtests.engine.wireclient import Answer, ask

CAPTURES = Path(__file__).parents[3] / "captures" / "vllm-0.32.0"
FINGERPRINT = "vllm-0.32.0-46021380"
CLOCK = 1796027849.0


def captured_spec(**settings: object) -> EngineSpec:
    """The server that was captured (with its default flags)."""
    facts: dict[str, object] = {
        "model": "internal-general-v3",
        "max_model_len": 2048,
        "max_num_seqs": 4,
        "kv_blocks": 16384,
        "block_size": 128,
        "root": "/MODEL_DIR",
        "fingerprint": FINGERPRINT,
        "tool_parser": False,
    }
    return instant_spec(**{**facts, **settings})


OPTIONS: dict[str, object] = {"tool_parser": True, "prompt_tokens_details": True, "request_id_headers": True}
"""The flags of the captures in options/."""

PLAIN = """
auth-ignored batch-chat cache-salt cache-salt-empty chat chat-n2-logprobs chat-stop-finish
chat-tool-auto-without-flag chat-tool-named completions completions-token-ids detokenize dup-key-model
embeddings err-404-route err-bad-json-schema err-bad-role err-delete-models err-empty-body
err-image-to-text-model err-invalid-json err-max-tokens-too-large err-max-tokens-zero err-messages-empty
err-method-not-allowed err-missing-messages err-model-missing-uses-default err-n-too-many err-not-object
err-options err-stream-options-without-stream err-temperature-range err-top-logprobs-too-many
err-unknown-field-accepted err-unknown-model err-unknown-model-completions err-unknown-model-stream
err-wrong-type-max-tokens err-wrong-type-messages fields-user-metadata get-health get-kv_event_sources
get-load get-ping get-version inference-generate invocations messages messages-count-tokens
messages-too-long messages-unknown-model models-one pooling post-ping priority-on-fcfs render
reqid-body-field reqid-default rerank rerank-root responses responses-get score tokenize tokenize-chat
tokenizer-info
""".split()  # noqa: SIM905 - a list of a hundred strings reads worse
STREAMS = """
chat-stream chat-stream-continuous-only chat-stream-maxtok1 chat-stream-n2-logprobs chat-stream-usage
chat-stream-usage-continuous completions-stream completions-stream-2prompts-echo completions-stream-nousage
messages-stream chat-stream-tool-named
""".split()  # noqa: SIM905 - a list of a hundred strings reads worse
WITH_OPTIONS = """
options/reqid-client options/reqid-health options/reqid-on-error options/priority
options/priority-wrong-type
""".split()  # noqa: SIM905 - a list of a hundred strings reads worse
PREFIX_CACHE = """
options/prefix-cache-1 options/prefix-cache-2 options/prefix-cache-salt-a-1 options/prefix-cache-salt-a-2
options/prefix-cache-salt-b
""".split()  # noqa: SIM905 - a list of a hundred strings reads worse
AUTH = ("limits/auth-missing", "limits/auth-wrong")


async def _answers(spec: EngineSpec, requests: list[bytes]) -> list[Answer]:
    engine = SimulatedEngine(spec, clock=lambda: CLOCK)
    await engine.start()
    try:
        return [await ask(engine.port, request) for request in requests]
    finally:
        await engine.close()


def answers(spec: EngineSpec, *requests: bytes) -> list[Answer]:
    return asyncio.run(_answers(spec, list(requests)))


def check(spec: EngineSpec, *captures: Capture) -> None:
    for capture, answer in zip(captures, answers(spec, *(capture.request() for capture in captures)), strict=True):
        assert masked(answer.head + answer.body) == masked(capture.head + capture.body)


@pytest.mark.parametrize("name", PLAIN)
def test_answer_is_the_captured_one(name: str) -> None:
    check(captured_spec(), read_capture(CAPTURES / f"{name}.http"))


@pytest.mark.parametrize("name", STREAMS)
def test_stream_is_the_captured_one(name: str) -> None:
    check(captured_spec(), read_capture(CAPTURES / f"{name}.head.txt"))


@pytest.mark.parametrize("name", WITH_OPTIONS)
def test_answer_with_flags_is_the_captured_one(name: str) -> None:
    check(captured_spec(**OPTIONS), read_capture(CAPTURES / f"{name}.http"))


def test_prefix_cache_and_salts_count_as_captured() -> None:
    captures = [read_capture(CAPTURES / f"{name}.http") for name in PREFIX_CACHE]
    stream = read_capture(CAPTURES / "options" / "prefix-cache-stream.head.txt")
    spec = captured_spec(**OPTIONS)
    for capture, answer in zip(
        [*captures, stream], answers(spec, *(each.request() for each in [*captures, stream])), strict=True
    ):
        assert masked(answer.body) == masked(capture.body)


@pytest.mark.parametrize("name", AUTH)
def test_wrong_key_is_refused_as_captured(name: str) -> None:
    check(captured_spec(api_key="test-key-1"), read_capture(CAPTURES / f"{name}.http"))


def test_right_key_and_unguarded_paths_pass() -> None:
    chat = read_capture(CAPTURES / "chat.http")
    keyed = chat.request().replace(b"host: engine", b"host: engine\r\nauthorization: Bearer test-key-1")
    matrix = (CAPTURES / "limits" / "auth-matrix.txt").read_text().splitlines()[1:]
    known = [line.split() for line in matrix if any(path in line for path in ("/health", "/ping", "/metrics", "/v1/"))]
    known = [row for row in known if row[1] != "/v1/systemone"]
    bare = [f"{method} {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode() for method, path, _ in known]
    got = answers(captured_spec(api_key="test-key-1"), keyed, *bare)
    assert got[0].status == 200
    assert [answer.status for answer in got[1:]] == [int(status) for _, _, status in known]


def test_models_list_is_the_captured_one() -> None:
    capture = read_capture(CAPTURES / "get-v1-models.http")
    (answer,) = answers(captured_spec(), capture.request())
    # The content-length in the capture counts a path that the capture hides.
    assert masked(answer.body) == masked(capture.body)
    assert b"\r\ncontent-length: %d\r\n" % len(answer.body) in answer.head


@pytest.mark.parametrize("name", ["head-health", "head-models"])
def test_head_is_refused_as_captured(name: str) -> None:
    capture = read_capture(CAPTURES / f"{name}.http")
    path = capture.path.encode()
    (answer,) = answers(captured_spec(), b"HEAD " + path + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert masked(answer.head) == masked(capture.head).replace(b"Origin\r\n", b"Origin\r\nconnection: close\r\n")
    assert answer.body == b""


@pytest.mark.parametrize("name", ["err-prompt-too-long", "err-prompt-too-long-stream"])
def test_too_long_prompt_is_refused_as_captured(name: str) -> None:
    capture = read_capture(CAPTURES / f"{name}.http")
    body: dict[str, object] = {"model": "internal-general-v3", "stream": name.endswith("stream")}
    body["messages"] = [{"role": "user", "content": "hello world " * 3000}]
    raw = json.dumps(body).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    (answer,) = answers(captured_spec(), head % len(raw) + raw)
    assert masked(answer.head + answer.body) == masked(capture.head + capture.body)


@pytest.mark.parametrize("kind", [b"", b"content-type: text/plain\r\n"])
def test_other_content_types_are_refused_as_captured(kind: bytes) -> None:
    capture = read_capture(CAPTURES / ("err-content-type-text-plain.http" if kind else "err-content-type-absent.http"))
    (answer,) = answers(
        captured_spec(), b"POST /v1/chat/completions HTTP/1.1\r\n" + kind + b"content-length: 2\r\n\r\n{}"
    )
    assert masked(answer.head + answer.body) == masked(capture.head + capture.body)


def test_trailing_slash_redirects_to_the_engine_itself() -> None:
    capture = read_capture(CAPTURES / "err-trailing-slash.http")
    (answer,) = answers(captured_spec(), b"GET /v1/models/ HTTP/1.1\r\nhost: 127.0.0.1:8101\r\n\r\n")
    assert masked(answer.head) == masked(capture.head)


def test_stream_is_framed_one_event_in_one_chunk() -> None:
    capture = (CAPTURES / "chat-stream-raw-chunked.txt").read_bytes()
    request = read_capture(CAPTURES / "chat-stream.head.txt")
    short = request.request().replace(b'"max_tokens":8', b'"max_tokens":3')
    (answer,) = answers(captured_spec(), short)
    framed = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in answer.chunks) + b"0\r\n\r\n"
    assert masked(answer.head + framed) == masked(capture)


def test_responses_stream_is_the_captured_one() -> None:
    capture = read_capture(CAPTURES / "responses-stream.head.txt")
    spec = captured_spec()
    plan = plan_responses(json.loads(capture.request_body), spec)
    ids = iter(("a875e67b2435241a",))
    renderer = ResponsesRenderer(plan, Stamp("resp_bba6161cdfc707ff", 1796027851, lambda: next(ids)), spec)
    # The captured server was behind after the first token and merged the next two into one event.
    parts = [(0, 1), (1, 3), (3, 4), (4, 5), (5, 6)]
    events = renderer.opening() + [event for start, stop in parts for event in renderer.tokens(0, start, stop)]
    assert b"".join(events + renderer.closing()) == capture.body


_NUMBERS = re.compile(rb'"(prompt_tokens|total_tokens|completion_tokens|cached_tokens|created_cache_tokens)":\d+')


@pytest.mark.parametrize("name", ["tool-named", "tool-required"])
def test_tool_call_has_the_captured_form(name: str) -> None:
    capture = read_capture(CAPTURES / "options" / f"{name}.http")
    (answer,) = answers(captured_spec(**OPTIONS), capture.request())
    assert _NUMBERS.sub(rb'"\1":0', masked(answer.body)) == _NUMBERS.sub(rb'"\1":0', masked(capture.body))


@pytest.mark.parametrize(("name", "reason"), [("tool-named-stream", "stop"), ("tool-required-stream", "tool_calls")])
def test_tool_call_stream_has_the_captured_form(name: str, reason: str) -> None:
    capture = read_capture(CAPTURES / "options" / f"{name}.head.txt")
    events = [json.loads(line[6:]) for line in capture.body.split(b"\n\n") if line.startswith(b"data: {")]
    calls = [call for event in events for choice in event["choices"] for call in choice["delta"].get("tool_calls", [])]
    pieces = tuple(call["function"]["arguments"] for call in calls if "arguments" in call["function"])
    tool = ToolCall("get_weather", pieces, "")
    tokens = len(pieces) + 2
    choice = Choice(0, Prompt("", 212, ()), ("",) * tokens, tokens, reason, tool=tool)
    plan = Plan(model="internal-general-v3", choices=(choice,), stream=True, include_usage=True)
    renderer = ChatRenderer(plan, Stamp("chatcmpl-" + "0" * 16, 0, lambda: "1" * 16), captured_spec(**OPTIONS))
    renderer.cached_tokens = 128
    made = [event for number in range(tokens) for event in renderer.tokens(0, number, number + 1)]
    ours = masked(b"".join(made + renderer.closing()))
    assert _NUMBERS.sub(rb'"\1":0', ours) == _NUMBERS.sub(rb'"\1":0', masked(capture.body))
