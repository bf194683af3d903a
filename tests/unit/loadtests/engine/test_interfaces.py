"""Embeddings, rerank, score, classify, pooling and audio: shapes, and bytes that arrive unchanged."""

import base64
import hashlib
import json
import struct

import pytest

from loadtests.engine.harness import with_engine
from loadtests.engine.server import SimulatedEngine
from loadtests.engine.spec import TASKS, EngineSpec, instant_spec
from loadtests.engine.wireclient import Answer, ask, post


def answer_to(request: bytes, spec: EngineSpec | None = None) -> Answer:
    got: list[Answer] = []

    async def check(engine: SimulatedEngine) -> None:
        got.append(await ask(engine.port, request))

    with_engine(check, spec)
    return got[0]


def result(path: str, body: dict[str, object], **settings: object) -> dict[str, object]:
    answer = answer_to(post(path, json.dumps(body).encode()), instant_spec(tasks=TASKS, **settings))
    assert answer.status == 200, answer.body
    return json.loads(answer.body)  # type: ignore[no-any-return]


def test_embeddings_as_floats_and_base64() -> None:
    body: dict[str, object] = {"input": ["one", "two"], "dimensions": 8}
    floats = result("/v1/embeddings", body)
    coded = result("/v1/embeddings", {**body, "encoding_format": "base64"})
    vectors = [entry["embedding"] for entry in floats["data"]]  # type: ignore[attr-defined]
    assert [len(vector) for vector in vectors] == [8, 8]
    assert vectors[0] != vectors[1]
    decoded = struct.unpack("<8f", base64.b64decode(coded["data"][0]["embedding"]))  # type: ignore[index]
    assert decoded == pytest.approx(vectors[0])
    assert list(floats) == ["id", "object", "created", "model", "data", "usage"]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_rerank_is_sorted_and_cut(path: str) -> None:
    documents = ["a", "b", "c", "d"]
    answer = result(path, {"query": "q", "documents": documents, "top_n": 3})
    scores = [entry["relevance_score"] for entry in answer["results"]]  # type: ignore[attr-defined]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 3
    assert all(
        entry["document"]["text"] == documents[entry["index"]]
        for entry in answer["results"]  # type: ignore[attr-defined]
    )


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_score_of_one_against_many(path: str) -> None:
    answer = result(path, {"text_1": "a", "text_2": ["b", "c"]})
    assert [entry["index"] for entry in answer["data"]] == [0, 1]  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["/classify", "/v1/classify"])
def test_classify(path: str) -> None:
    answer = result(path, {"input": ["a"]})
    (entry,) = answer["data"]  # type: ignore[misc]
    assert sum(entry["probs"]) == pytest.approx(1)
    assert entry["num_classes"] == 2


def test_pooling() -> None:
    answer = result("/pooling", {"input": "a"}, embedding_size=5)
    assert len(answer["data"][0]["data"]) == 5  # type: ignore[index]


def form(file: bytes, **fields: str) -> bytes:
    boundary = "----edge"
    parts = [
        f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    disposition = 'content-disposition: form-data; name="file"; filename="a.wav"\r\ncontent-type: audio/wav'
    body = "".join(parts).encode() + f"--{boundary}\r\n{disposition}\r\n\r\n".encode() + file
    return body + f"\r\n--{boundary}--\r\n".encode()


def upload(path: str, body: bytes) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "content-type: multipart/form-data; boundary=----edge")
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


@pytest.mark.parametrize("kind", ["transcription", "translation"])
@pytest.mark.parametrize("stream", ["false", "true"])
def test_speech_proves_which_bytes_came(kind: str, stream: str) -> None:
    file = bytes(range(256)) * 300 + b"\r\n--\r\n"
    spec = instant_spec(tasks=TASKS)
    answer = answer_to(upload(f"/v1/audio/{kind}s", form(file, model="sim-model", stream=stream)), spec)
    assert answer.status == 200
    assert hashlib.sha256(file).hexdigest().encode() in answer.body
    assert f"{len(file)} bytes".encode() in answer.body
    assert answer.body.endswith(b"data: [DONE]\n\n") == (stream == "true")


def test_speech_without_a_file_is_refused() -> None:
    answer = answer_to(upload("/v1/audio/transcriptions", b"------edge--\r\n"), instant_spec(tasks=TASKS))
    assert answer.status == 400
    assert b"body.file" in answer.body
