"""Audio transcription and translation: a form in, a text out that names the bytes received.

The text holds the SHA-256 and the length of the file, so that a test can prove that they arrived unchanged.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from loadtests.engine import validate
from loadtests.engine.answers import DONE, Json, Stamp, sse
from loadtests.engine.plan import Choice, Plan, Prompt
from loadtests.engine.refusal import Refusal, bad_parameter, error_body, error_event
from loadtests.engine.spec import EngineSpec

_NAME = re.compile(rb';\s*name="([^"]*)"')
_FILENAME = re.compile(rb';\s*filename="([^"]*)"')
_BYTES_PER_SECOND = 32_000
"""16 kHz, 16 bit, one channel."""


@dataclass(frozen=True, slots=True)
class Form:
    """A decoded multipart/form-data body."""

    fields: Mapping[str, str]
    file: bytes
    filename: str


def parse_form(content_type: bytes, raw: bytes) -> Form:
    """Decode; raises Refusal when there is no form or no file in it."""
    boundary = re.search(rb'boundary="?([^";]+)"?', content_type)
    if not content_type.lower().startswith(b"multipart/form-data") or boundary is None:
        raise _missing_file()
    fields: dict[str, str] = {}
    file: tuple[bytes, str] | None = None
    for part in (b"\r\n" + raw).split(b"\r\n--" + boundary.group(1))[1:]:
        head, found, data = part.partition(b"\r\n\r\n")
        name = _NAME.search(head)
        if not found or name is None:
            continue
        filename = _FILENAME.search(head)
        if filename is not None:
            file = (data, filename.group(1).decode("utf-8", "replace"))
        else:
            fields[name.group(1).decode()] = data.decode("utf-8", "replace")
    if file is None:
        raise _missing_file()
    return Form(fields, *file)


def _missing_file() -> Refusal:
    fault: dict[str, object] = {"type": "missing", "loc": "body.file", "msg": "Field required", "input": None}
    return validate.schema_refusal([fault])


class SpeechRenderer:
    """A stream has `transcription.chunk` events (vLLM's published schema); a whole answer `{"text", "usage"}`."""

    def __init__(self, form: Form, kind: str, stamp: Stamp, spec: EngineSpec) -> None:
        model = validate.check_model(dict(form.fields), spec)
        digest = hashlib.sha256(form.file).hexdigest()
        words = (f"{kind} of", f" {len(form.file)} bytes", f" sha256 {digest}")
        seconds = max(1, len(form.file) // _BYTES_PER_SECOND)
        prompt = Prompt("", min(seconds * 50, spec.max_model_len - len(words) - 1), ())
        choice = Choice(0, prompt, words, len(words), "stop")
        wants_stream = form.fields.get("stream", "").lower() in ("true", "1")
        self.plan = Plan(model=model, choices=(choice,), stream=wants_stream)
        self.cached_tokens = 0
        self.created_cache_tokens = 0
        self._kind = kind
        self._stamp = stamp
        self._seconds = seconds
        self._format = form.fields.get("response_format", "json")
        if self._format not in ("json", "text", "verbose_json"):
            raise bad_parameter(
                "Currently only support response_format: `text`, `json` or `verbose_json`", "response_format"
            )

    @property
    def content_type(self) -> bytes:
        return b"text/plain; charset=utf-8" if self._format == "text" else b"application/json"

    def opening(self) -> list[bytes]:
        return []

    def tokens(self, choice: int, start: int, stop: int) -> list[bytes]:
        chosen = self.plan.choices[choice]
        last = stop == chosen.tokens
        payload: Json = {"delta": {"content": "".join(chosen.shown[start:stop])}}
        if last:
            payload |= {"finish_reason": "stop", "stop_reason": None}
        head: Json = {"id": self._stamp.id, "object": f"{self._kind}.chunk", "created": self._stamp.created}
        return [sse({**head, "model": self.plan.model, "choices": [payload]})]

    def closing(self) -> list[bytes]:
        return [DONE]

    def body(self) -> bytes:
        text = self.plan.choices[0].text
        if self._format == "text":
            return text.encode()
        if self._format == "verbose_json":
            return orjson.dumps({"duration": float(self._seconds), "language": "en", "text": text})
        return orjson.dumps({"text": text, "usage": {"type": "duration", "seconds": self._seconds}})

    def failure(self, refusal: Refusal) -> list[bytes]:
        return [error_event(refusal), DONE]

    def refusal_body(self, refusal: Refusal) -> bytes:
        return error_body(refusal)
