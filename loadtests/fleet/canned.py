"""What a played engine says, precomputed but for the counters that move. The forms are those of vLLM 0.32.0. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import orjson

from loadtests.bench.answers import STREAM_HEAD, framed, response
from loadtests.engine.counting import Gauges
from loadtests.engine.metrics import CONTENT_TYPE, Metrics
from loadtests.engine.scheduler import Totals
from loadtests.engine.spec import EngineSpec

MODEL = "fleet-model"
CREATED = 1_796_027_850
LONGEST = 32_768
"""Tokens of context that the played model takes."""

_HANDLERS = (
    *(("GET", path) for path in ("/health", "/v1/models", "/version", "/load", "/ping", "/docs", "/openapi.json")),
    *(("POST", f"/v1/{name}") for name in ("chat/completions", "completions", "responses", "messages", "embeddings")),
    *(("POST", path) for path in ("/tokenize", "/detokenize", "/rerank", "/score", "/classify", "/pooling")),
)
"""Routes that somebody has asked before: a page grows by each. With them it is as long as one captured under load."""

_MOVING = re.compile(
    rb"(?m)^(vllm:(?:prompt_tokens_total|generation_tokens_total|request_success_total|iteration_tokens_total_(?:bucket"
    rb"|count|sum)|time_to_first_token_seconds_count|inter_token_latency_seconds_count)(?:\{[^}\n]*\})? )[0-9.e+]+$"
)
_RUNNING = re.compile(rb"(?m)^(vllm:num_requests_running\{[^}\n]*\} )[0-9.]+$")


def exposition(*, running: int) -> bytes:
    """A page of the size that a vLLM's has after some traffic, 60 to 85 kB."""
    spec = EngineSpec(model=MODEL, max_model_len=LONGEST)
    metrics = Metrics(spec, float(CREATED))
    for method, handler in _HANDLERS:
        for status in (200, 404, 500):
            metrics.http(handler, method, status, sizes=(900, 2400), seconds=0.03)
    page = metrics.render(Gauges(running, 0, 0.25 if running else 0.0, Totals()))
    return _RUNNING.sub(rb"\g<1>%d.0" % running, page)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of metrics as pieces between which the moving counters are written. All of them have one value."""

    pieces: tuple[bytes, ...]

    @classmethod
    def of(cls, text: bytes) -> Page:
        pieces: list[bytes] = []
        at = 0
        for match in _MOVING.finditer(text):
            pieces.append(text[at : match.end(1)])
            at = match.end()
        return cls((*pieces, text[at:]))

    def at(self, count: int) -> bytes:
        """The page with its counters at ``count``."""
        return (b"%d.0" % count).join(self.pieces)


def _completion(text: str, finish: str | None) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    fields = {"id": "cmpl-930348d2e85fafb7", "object": "text_completion", "created": CREATED, "model": MODEL}
    return framed(b"data: " + orjson.dumps({**fields, "choices": [choice], "usage": None}) + b"\n\n")


def completion() -> bytes:
    """A whole streamed completion of two tokens."""
    events = _completion(" word", None) + _completion(" end", "length")
    return STREAM_HEAD + events + framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def models() -> bytes:
    card = {"id": MODEL, "object": "model", "created": CREATED, "owned_by": "vllm", "root": MODEL, "parent": None}
    return orjson.dumps({"object": "list", "data": [{**card, "max_model_len": LONGEST, "permission": []}]})


@dataclass(frozen=True, slots=True)
class Canned:
    """Every answer of the played engines: ``busy`` is the page of one that has work, ``idle`` of one that has none."""

    get: Mapping[bytes, bytes]
    not_found: bytes
    completion: bytes
    busy: Page
    idle: Page


def canned() -> Canned:
    """All answers, built once."""
    return Canned(
        get=MappingProxyType(
            {
                b"/health": response("200 OK", b""),
                b"/v1/models": response("200 OK", models()),
                b"/version": response("200 OK", b'{"version":"0.32.0"}'),
            }
        ),
        not_found=response("404 Not Found", b'{"detail":"Not Found"}'),
        completion=completion(),
        busy=Page.of(exposition(running=3)),
        idle=Page.of(exposition(running=0)),
    )


def metrics_response(page: bytes) -> bytes:
    return response("200 OK", page, CONTENT_TYPE.decode())
