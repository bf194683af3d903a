"""The engine itself, without a gateway: what the gateway is built on still holds, for the simulated and the real one.

Texts and token counts belong to a model, so a real engine is compared by structure: the same members in the same order
with values of the same types, the same headers in the same order, the same status. Errors are compared byte for byte.
(The simulated engine's own bytes are compared with all captures in its unit tests.)
"""

from __future__ import annotations

import asyncio
import json
from itertools import groupby
from pathlib import Path

import pytest

from loadtests.engine.capture import masked, read_capture
from loadtests.engine.wireclient import ask, post

CAPTURES = Path(__file__).parents[1] / "captures" / "vllm-0.32.0"
MODEL = "internal-general-v3"
ELSEWHERE = {
    "chat-stop-finish": "the captured model happened to stop there",
    "chat-tool-auto-without-flag": "captured without the flags for tools",
    "chat-tool-named": "captured without the flags for tools",
    "chat-stream-tool-named": "captured without the flags for tools",
    "err-content-type-absent": "the capture does not show the body that was sent",
    "err-content-type-text-plain": "the capture does not show the body that was sent",
    "err-prompt-too-long": "the capture shows the prompt cut short",
    "err-prompt-too-long-stream": "the capture shows the prompt cut short",
    "err-trailing-slash": "it names the port",
    "head-health": "an answer to HEAD has no body to wait for",
    "head-models": "an answer to HEAD has no body to wait for",
}
"""Captures that this suite cannot ask again, and why."""


def captured(pattern):
    """Names of the captures of one kind, sorted: of answers, of refusals."""
    names = [path.name for path in sorted(CAPTURES.glob(pattern)) if path.name.partition(".")[0] not in ELSEWHERE]
    good = [name for name in names if status_of(read_capture(CAPTURES / name).head) == b"200"]
    return good, [name for name in names if name not in good]


def status_of(head):
    return head.split(b" ", 2)[1]


WHOLE, REFUSED = captured("*.http")
STREAMS, _ = captured("*.head.txt")


def answer_of(port, request):
    return asyncio.run(ask(port, request, seconds=60))


def header_names(head):
    return [line.partition(b":")[0] for line in head.split(b"\r\n")[1:] if line]


def structure(value):
    """Members in their order and the types of values; of a list the different structures in it, in order."""
    match value:
        case dict() if value and all(type(inner) is float for inner in value.values()):
            return "logprobs by token"
        case dict():
            return {"": list(value), **{name: structure(inner) for name, inner in value.items()}}
        case list():
            return [inner for inner, _ in groupby(map(structure, value))]
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case None:
            return "null"
        case _:
            return "text"


def events_of(body):
    """The different events of a stream in the order in which they first came, each by its lines, JSON by structure.

    How often one kind comes is chance: chunks are not tokens, and choices come interleaved.
    """

    def shown(line):
        name, _, data = line.partition(": ")
        return (name, structure(json.loads(data))) if data.startswith("{") else line

    different = []
    for event in body.decode().split("\n\n"):
        lines = [shown(line) for line in event.split("\n")]
        if lines not in different:
            different.append(lines)
    return different


def contents(body):
    if body.startswith((b"data:", b"event:")):
        return events_of(body)
    return structure(json.loads(body)) if body.startswith(b"{") else body


@pytest.mark.parametrize("name", WHOLE + STREAMS)
def test_answer_has_the_captured_structure(target, name):
    capture = read_capture(CAPTURES / name)
    answer = answer_of(target.port, capture.request())
    assert status_of(answer.head) == status_of(capture.head)
    assert header_names(answer.head) == header_names(capture.head)
    assert contents(answer.body) == contents(capture.body)


@pytest.mark.parametrize("name", REFUSED)
def test_error_is_the_captured_one(target, name):
    capture = read_capture(CAPTURES / name)
    answer = answer_of(target.port, capture.request())
    assert masked(answer.head + answer.body) == masked(capture.head + capture.body)


HELLO = [{"role": "user", "content": "hello world"}]
UNIT = {
    "type": "object",
    "properties": {"unit": {"type": "string", "enum": ["celsius"]}},
    "required": ["unit"],
    "additionalProperties": False,
}
CHAT_TOOL = {"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": UNIT}}
TOOL = {"name": "get_weather", "strict": True, "input_schema": UNIT}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
LATER = {
    "chat with a named tool": ("/v1/chat/completions", {"tools": [CHAT_TOOL], "tool_choice": NAMED}),
    "chat with a required tool": ("/v1/chat/completions", {"tools": [CHAT_TOOL], "tool_choice": "required"}),
    "messages with a tool": ("/v1/messages", {"tools": [TOOL], "tool_choice": {"type": "any"}}),
    "messages with a named tool": (
        "/v1/messages",
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": TOOL["name"]}},
    ),
    "json schema": (
        "/v1/chat/completions",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": UNIT}}},
    ),
    "stop": ("/v1/chat/completions", {"stop": ["o"]}),
    "messages with stop": ("/v1/messages", {"stop_sequences": ["o"]}),
    "logprobs of a completion": ("/v1/completions", {"prompt": "hello", "logprobs": 2}),
}


@pytest.fixture
def same_size(shared_site):
    """A simulated engine with the real one's context."""
    return shared_site.engine(model=MODEL, max_model_len=2048, step_time=0.001)


@pytest.fixture
def requests_of():
    """The requests of one row of LATER, whole and streamed."""

    def make(row):
        path, body = LATER[row]
        text = {} if path == "/v1/completions" else {"messages": HELLO}
        asked = {"model": MODEL, "max_tokens": 200, "temperature": 0, **text, **body}
        return [post(path, json.dumps({**asked, "stream": stream}).encode()) for stream in (False, True)]

    return make


@pytest.mark.vllm
@pytest.mark.parametrize("row", LATER)
def test_simulated_and_real_answer_alike(garage, spare, requests_of, row):
    """What the captures do not hold, asked of both at once."""
    for request in requests_of(row):
        simulated, real = answer_of(spare.port, request), answer_of(garage.shared().port, request)
        assert (simulated.status, real.status) == (200, 200)
        assert header_names(simulated.head) == header_names(real.head)
        assert contents(simulated.body) == contents(real.body)


IDS = {
    "one prompt": [300] * 200,
    "as long as can be": [300] * 2047,
    "several prompts": [[300, 301], [302], [5]],
}
NO_IDS = {
    "too long": [300] * 2050,
    "no room for an answer": [300] * 2048,
    "not in the vocabulary": [10**6],
    "nothing": [],
    "an empty prompt": [[]],
    "a text among them": [1, "a"],
    "a negative one": [[1], [-1]],
    "a fraction": [1, 2.5],
}


def of_ids(prompt):
    asked = {"model": MODEL, "prompt": prompt, "max_tokens": 1, "ignore_eos": True, "cache_salt": "tenant"}
    return post("/v1/completions", json.dumps(asked).encode())


@pytest.mark.parametrize("row", IDS)
def test_token_ids_are_counted_exactly(target, row):
    prompts = IDS[row] if isinstance(IDS[row][0], list) else [IDS[row]]
    answer = json.loads(answer_of(target.port, of_ids(IDS[row])).body)
    assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts))
    assert len(answer["choices"]) == answer["usage"]["completion_tokens"] == len(prompts)


@pytest.mark.parametrize("row", NO_IDS)
def test_what_is_no_prompt_of_token_ids_is_refused(target, row):
    assert answer_of(target.port, of_ids(NO_IDS[row])).status == 400


@pytest.mark.vllm
@pytest.mark.parametrize("row", NO_IDS)
def test_simulated_and_real_refuse_token_ids_in_the_same_words(garage, same_size, row):
    simulated, real = (answer_of(port, of_ids(NO_IDS[row])) for port in (same_size.port, garage.shared().port))
    assert masked(simulated.head + simulated.body) == masked(real.head + real.body)
