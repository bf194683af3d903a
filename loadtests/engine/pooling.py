"""Embeddings, rerank, score, classify and pooling, in the shapes of vLLM's published interface; repeatable numbers."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from loadtests.engine import validate
from loadtests.engine.answers import Json, Stamp
from loadtests.engine.plan import Choice, Plan, Prompt, make_prompt, text_of_content
from loadtests.engine.refusal import Refusal, error_body
from loadtests.engine.spec import EngineSpec
from loadtests.engine.text import piece_of
from loadtests.engine.validate import Body

MakeStamp = Callable[[str], Stamp]
_CLASSES = ("LABEL_0", "LABEL_1")


@dataclass(slots=True)
class FixedAnswer:
    """A renderer whose whole body is known beforehand; there is no stream."""

    plan: Plan
    payload: Json
    cached_tokens: int = 0
    created_cache_tokens: int = 0

    def opening(self) -> list[bytes]:
        return []

    def tokens(self, choice: int, start: int, stop: int) -> list[bytes]:
        return []

    def closing(self) -> list[bytes]:
        return []

    def body(self) -> bytes:
        return orjson.dumps(self.payload)

    def failure(self, refusal: Refusal) -> list[bytes]:
        return [error_body(refusal)]

    def refusal_body(self, refusal: Refusal) -> bytes:
        return error_body(refusal)


Answer = Callable[[Body, EngineSpec, MakeStamp], FixedAnswer]


def _numbers(text: str, count: int) -> list[float]:
    """`count` numbers in -1..1 that depend on the text alone, exact in 32 bits."""
    state = zlib.crc32(text.encode("utf-8", "replace"))
    numbers = []
    for _ in range(count):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        numbers.append(((state >> 8) - (1 << 23)) / (1 << 23))
    return numbers


def vector_of(text: str, size: int) -> list[float]:
    """A made-up embedding of about unit length."""
    numbers = _numbers(text, size)
    length = sum(number * number for number in numbers) ** 0.5 or 1.0
    return [round(number / length, 6) for number in numbers]


def relevance(query: str, document: str) -> float:
    """A made-up score in 0..1."""
    return round((_numbers(f"{query}\x00{document}", 1)[0] + 1) / 2, 6)


def _texts(given: object, spec: EngineSpec) -> list[str]:
    """The inputs of a request: a text, texts, token ids, or lists of token ids."""
    if not isinstance(given, list):
        return [text_of_content(given, spec)]
    if given and isinstance(given[0], int):
        return ["".join(piece_of(int(number)) for number in given)]
    return [text for entry in given for text in _texts(entry, spec)]


def _plan(body: Body, texts: list[str], spec: EngineSpec) -> Plan:
    model = validate.check_model(body, spec)
    prompts = [make_prompt(text, body, spec) for text in texts]
    return Plan(model=model, choices=tuple(_step(index, prompt) for index, prompt in enumerate(prompts)))


def _step(index: int, prompt: Prompt) -> Choice:
    """One pass over a prompt: to the scheduler that is a sequence of one token."""
    return Choice(index, prompt, ("",), 1, "stop")


def _usage(plan: Plan) -> Json:
    count = plan.prompt_tokens
    usage: Json = {"prompt_tokens": count, "total_tokens": count, "completion_tokens": 0}
    return {**usage, "prompt_tokens_details": None, "completion_tokens_details": None}


def _listing(plan: Plan, stamp: Stamp, data: list[Json]) -> FixedAnswer:
    head: Json = {"id": stamp.id, "object": "list", "created": stamp.created, "model": plan.model}
    return FixedAnswer(plan, {**head, "data": data, "usage": _usage(plan)})


def embed(body: Body, spec: EngineSpec, stamp: MakeStamp) -> FixedAnswer:
    """/v1/embeddings, with `encoding_format` float or base64 and `dimensions`; raises Refusal."""
    validate.check_fields(body, ("input",))
    texts = _texts(body["input"], spec)
    plan = _plan(body, texts, spec)
    size = int(body.get("dimensions") or spec.embedding_size)
    coded = body.get("encoding_format") == "base64"
    data: list[Json] = []
    for index, text in enumerate(texts):
        vector = vector_of(text, size)
        shown = base64.b64encode(struct.pack(f"<{size}f", *vector)).decode() if coded else vector
        data.append({"index": index, "object": "embedding", "embedding": shown})
    return _listing(plan, stamp("embd-"), data)


def pool(body: Body, spec: EngineSpec, stamp: MakeStamp) -> FixedAnswer:
    """/pooling: raw vectors; raises Refusal."""
    validate.check_fields(body, ("input",))
    texts = _texts(body["input"], spec)
    plan = _plan(body, texts, spec)
    vectors = [vector_of(text, spec.embedding_size) for text in texts]
    data: list[Json] = [{"index": i, "object": "pooling", "data": vector} for i, vector in enumerate(vectors)]
    return _listing(plan, stamp("pool-"), data)


def classify(body: Body, spec: EngineSpec, stamp: MakeStamp) -> FixedAnswer:
    """/classify, with two made-up classes; raises Refusal."""
    validate.check_fields(body, ("input",))
    texts = _texts(body["input"], spec)
    plan = _plan(body, texts, spec)
    data: list[Json] = []
    for index, text in enumerate(texts):
        first = relevance("classify", text)
        probs = [first, round(1 - first, 6)]
        label = _CLASSES[probs.index(max(probs))]
        data.append({"index": index, "label": label, "probs": probs, "num_classes": len(probs)})
    return _listing(plan, stamp("classify-"), data)


def score(body: Body, spec: EngineSpec, stamp: MakeStamp) -> FixedAnswer:
    """/v1/score: one text or as many as the others, against others; raises Refusal."""
    first = _texts(_either(body, "text_1", "data_1", "queries"), spec)
    second = _texts(_either(body, "text_2", "data_2", "documents"), spec)
    if len(first) not in (1, len(second)):
        raise Refusal(400, "Input lengths must be either 1:1, 1:N or N:N")
    pairs = list(zip(first * len(second) if len(first) == 1 else first, second, strict=True))
    plan = _plan(body, [f"{left} {right}" for left, right in pairs], spec)
    data: list[Json] = [
        {"index": index, "object": "score", "score": relevance(left, right)}
        for index, (left, right) in enumerate(pairs)
    ]
    return _listing(plan, stamp("score-"), data)


def _either(body: Body, *names: str) -> object:
    for name in names:
        if name in body:
            return body[name]
    validate.check_fields(body, names[:1])
    return None


def rerank(body: Body, spec: EngineSpec, stamp: MakeStamp) -> FixedAnswer:
    """/rerank, /v1/rerank, /v2/rerank (Jina's and Cohere's form), best first; raises Refusal."""
    validate.check_fields(body, ("query", "documents"))
    query = text_of_content(body["query"], spec)
    documents = _texts(body["documents"], spec)
    plan = _plan(body, [f"{query} {document}" for document in documents], spec)
    results: list[Json] = [
        {"index": i, "document": {"text": text, "multi_modal": None}, "relevance_score": relevance(query, text)}
        for i, text in enumerate(documents)
    ]
    results.sort(key=lambda result: -float(result["relevance_score"]))
    top = int(body.get("top_n") or 0) or len(results)
    usage = {"prompt_tokens": plan.prompt_tokens, "total_tokens": plan.prompt_tokens}
    made = stamp("rerank-")
    return FixedAnswer(plan, {"id": made.id, "model": plan.model, "usage": usage, "results": results[:top]})
