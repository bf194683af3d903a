"""Nothing that a client or an engine says reaches any sink: a canary in every place, then every sink is searched.

Sinks: request records, reports and stderr, metrics, error answers and the headers of all answers, the bytes of the
state files. What an engine says in a successful answer goes to the caller, and nowhere else.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtests.engine.acts import Event, Reply
from loadtests.rawclient import RawAnswer, RawClient

CANARY = "c4n4ry-7f3a91"
MARK = CANARY.encode()
Clean = Callable[..., None]
CHAT = "/v1/chat/completions"


class Guarded:
    """A gateway, its engine, and all the places where it could have written something."""

    def __init__(self, site: Any) -> None:
        self.engine = site.engine(step_time=0.0, prefill_tokens_per_second=0.0)
        self.gateway = site.gateway([self.engine], probe_interval=60)
        self.gateway.wait_ready("sim-model")
        self.key = self.gateway.key()

    def ask(self, data: bytes) -> RawAnswer:
        with RawClient(self.gateway.address) as client:
            client.send(data)
            answer = client.answer()
        assert answer is not None
        return answer

    def post(self, body: bytes | dict[str, Any], *headers: str, path: str = CHAT, key: str | None = None) -> RawAnswer:
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: gw", f"Authorization: Bearer {key or self.key}", *headers]
        if not any(line.startswith("Content-Type") for line in headers):
            lines.append("Content-Type: application/json")
        return self.ask("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body)

    def sinks(self) -> dict[str, bytes]:
        folder: Path = self.gateway.gateway.settings.state_folder
        files = {f"file {path.name}": path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return {
            "records": json.dumps(self.gateway.records.lines).encode(),
            "reports": "\n".join(self.gateway.reports).encode(),
            "metrics": self.gateway.metrics().encode(),
            **files,
        }


@pytest.fixture(scope="module")
def guarded(shared_site: Any) -> Guarded:
    return Guarded(shared_site)


@pytest.fixture
def clean(guarded: Guarded, capfd: pytest.CaptureFixture[str]) -> Clean:
    """Checks an answer's head, an error's body, and every sink."""

    def check(answer: RawAnswer, *, quoted: bool = False) -> None:
        guarded.gateway.site.run(asyncio.sleep(0))  # the record is written behind the answer, in the same step
        assert CANARY not in json.dumps(dict(answer.headers))
        if answer.status != 200:
            assert (MARK in answer.body) is quoted
        for name, content in guarded.sinks().items():
            assert MARK not in content, name
        said = capfd.readouterr()
        assert CANARY not in said.out + said.err

    return check


def chat(**members: Any) -> dict[str, Any]:
    question = {"model": "sim-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    return {**question, **members}


TOOL = {"type": "function", "function": {"name": CANARY, "parameters": {"type": "object", "properties": {CANARY: {}}}}}
PICTURE = {"type": "image_url", "image_url": {"url": CANARY}}
# The name of a member that is not allowed is the one thing that an error says of a request, and only to its sender,
# if it is a plain name.
NAMED = {"unknown-field"}
BODIES: dict[str, tuple[dict[str, Any], int]] = {
    "prompt": (chat(messages=[{"role": "user", "content": CANARY}]), 200),
    "system": (chat(messages=[{"role": "system", "content": CANARY}, {"role": "user", "content": "hi"}]), 200),
    "user-name": (chat(messages=[{"role": "user", "name": CANARY, "content": "hi"}]), 200),
    "tools": (chat(tools=[TOOL]), 200),
    "user": (chat(user=CANARY), 200),
    "metadata": (chat(metadata={CANARY: CANARY}), 200),
    "stop": (chat(stop=[CANARY]), 200),
    "prompt-cache-key": (chat(prompt_cache_key=CANARY), 200),
    "model": (chat(model=CANARY), 404),
    "model-revision": (chat(model=f"sim-model@{CANARY}"), 404),
    "unknown-field": (chat(**{CANARY: 1}), 400),
    "odd-field": (chat(**{f"an odd {CANARY}": 1}), 400),
    "unknown-field-value": (chat(unknown=CANARY), 400),
    "wrong-type": (chat(max_tokens=CANARY), 400),
    "wrong-role": (chat(messages=[{"role": CANARY, "content": "hi"}]), 400),
    "wrong-part": (chat(messages=[{"role": "user", "content": [{"type": CANARY}]}]), 400),
    "media-url": (chat(messages=[{"role": "user", "content": [PICTURE]}]), 400),
    "tool-choice": (chat(tool_choice=CANARY), 400),
    "cache-salt": (chat(cache_salt=CANARY), 400),
}  # fmt: skip


@pytest.mark.parametrize("place", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_in_the_body(place: str, stream: bool, guarded: Guarded, clean: Clean) -> None:
    body, status = BODIES[place]
    answer = guarded.post({**body, "stream": stream})
    assert answer.status == status
    clean(answer, quoted=place in NAMED)


NOT_JSON = [CANARY.encode(), b'{"model":"' + MARK, b'{"a":1,"' + MARK + b'":1,"' + MARK + b'":2}', b"\xff" + MARK, b""]


@pytest.mark.parametrize("body", NOT_JSON)
def test_in_what_is_no_json(body: bytes, guarded: Guarded, clean: Clean) -> None:
    answer = guarded.post(body, f"X-Canary: {CANARY}")
    assert answer.status == 400
    clean(answer)


HEADS: dict[str, tuple[str, int]] = {
    "path": (f"GET /{CANARY} HTTP/1.1\r\nHost: gw\r\n\r\n", 404),
    "alias-in-path": (f"GET /v1/models/{CANARY} HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer @KEY@\r\n\r\n", 404),
    "query": (f"GET /v1/models?{CANARY} HTTP/1.1\r\nHost: gw\r\n\r\n", 404),
    "host": (f"GET /healthz HTTP/1.1\r\nHost: {CANARY}\r\n\r\n", 200),
    "bad-host": (f"GET /healthz HTTP/1.1\r\nHost: {CANARY}/\r\n\r\n", 400),
    "header-value": (f"GET /healthz HTTP/1.1\r\nHost: gw\r\nUser-Agent: {CANARY}\r\n\r\n", 200),
    "header-name": (f"GET /healthz HTTP/1.1\r\nHost: gw\r\n{CANARY}: 1\r\n\r\n", 200),
    "bad-header-name": (f"GET /healthz HTTP/1.1\r\nHost: gw\r\n{CANARY}_: 1\r\n\r\n", 400),
    "request-id": (f"GET /v1/models HTTP/1.1\r\nHost: gw\r\nX-Request-Id: {CANARY}\r\nX-Api-Key: @KEY@\r\n\r\n", 200),
    "origin": (f"GET /healthz HTTP/1.1\r\nHost: gw\r\nOrigin: http://{CANARY}\r\n\r\n", 200),
    "key": (f"GET /v1/models HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer gw_{CANARY}\r\n\r\n", 401),
    "other-scheme": (f"GET /v1/models HTTP/1.1\r\nHost: gw\r\nAuthorization: Basic {CANARY}\r\n\r\n", 401),
    "method": (f"{CANARY} / HTTP/1.1\r\nHost: gw\r\n\r\n", 400),
    "not-http": (f"{CANARY}\r\n\r\n", 400),
}


@pytest.mark.parametrize("place", HEADS)
def test_in_the_head(place: str, guarded: Guarded, clean: Clean) -> None:
    head, status = HEADS[place]
    guarded.post(chat())
    answer = guarded.ask(head.replace("@KEY@", guarded.key).encode())
    assert answer.status == status
    clean(answer)


def test_in_a_form(guarded: Guarded, clean: Clean) -> None:
    form = f'--b\r\nContent-Disposition: form-data; name="{CANARY}"; filename="{CANARY}"\r\n\r\n{CANARY}\r\n--b--\r\n'
    answer = guarded.post(
        form.encode(), f"Content-Type: multipart/form-data; boundary=b; {CANARY}=1", path="/v1/audio/transcriptions"
    )
    assert answer.status == 400
    clean(answer)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 429, 500, 503])
def test_in_an_engines_error(status: int, stream: bool, guarded: Guarded, clean: Clean) -> None:
    message = f"1 validation error: input: {CANARY}"
    guarded.engine.faults.set("status_burst", status=status, message=message, type=CANARY, headers={"x-e": CANARY})
    try:
        answer = guarded.post(chat(stream=stream))
    finally:
        guarded.engine.faults.clear()
    assert 400 <= answer.status < 600
    clean(answer)


BROKEN: dict[str, dict[str, Any]] = {
    "malformed_sse": {"text": f"data: {CANARY}", "after_events": 0},
    "wrong_content_type": {"content_type": CANARY},
    "bad_status_line": {"line": f"HTTP/1.1 abc {CANARY}"},
    "bytes_after_end": {"text": CANARY},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", BROKEN)
def test_in_an_engines_broken_answer(fault: str, stream: bool, guarded: Guarded, clean: Clean) -> None:
    guarded.engine.faults.set(fault, **BROKEN[fault])
    try:
        answer = guarded.post(chat(stream=stream))
    finally:
        guarded.engine.faults.clear()
    clean(answer)


@pytest.mark.parametrize("stream", [False, True])
def test_in_an_engines_good_answer(stream: bool, guarded: Guarded, clean: Clean, monkeypatch: Any) -> None:
    """Text, an odd finish reason, another model's name: the caller sees the text; no sink sees any of it."""

    def say(machines: list[Any], act: Any) -> list[Any]:
        if isinstance(act, Event) and b'"delta":{' in act.data:
            return [Event(act.data.replace(b'"content":"', b'"content":"' + MARK))]
        if isinstance(act, Reply):
            answer = json.loads(act.body)
            answer["choices"][0]["message"]["content"] = CANARY
            answer["choices"][0]["finish_reason"] = CANARY
            return [Reply(act.status, json.dumps(answer).encode(), b"application/json")]
        return [act]

    guarded.engine.faults.set("split_events", sizes=(100_000,), pause=0.0)
    monkeypatch.setattr("loadtests.engine.exchange.run_machines", say)
    try:
        answer = guarded.post(chat(stream=stream, ignore_eos=True))
    finally:
        guarded.engine.faults.clear()
    assert answer.status == 200
    assert MARK in answer.body
    clean(answer)


def test_the_sinks_are_the_places_where_things_are_written(guarded: Guarded) -> None:
    """A search that finds nothing must have looked: what is known to be in each sink is found there."""
    guarded.post(chat())
    sinks = guarded.sinks()
    assert b'"endpoint": "chat"' in sinks["records"]
    assert b"gen_ai_server_request_duration_seconds" in sinks["metrics"]
    assert any(b"sim-model" in content for name, content in sinks.items() if name.startswith("file state.db"))
