"""multipart/form-data (RFC 7578, RFC 2046 section 5.1.1), strict and bounded, for the audio routes.

The engine never sees the client's form: it is taken apart here and written anew. Header lines of a part are the two
that browsers and HTTP clients send, in a narrow grammar; whatever else two parsers could read differently (other
headers, transfer encodings, nested forms, odd names, repeated fields, a preamble or an epilogue) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum

from gateway.model import FormPart

MAX_PART_HEADER_BYTES = 1024
# Extensions that the engine's audio loaders know; the name itself is ours, because servers log and open names.
SAFE_EXTENSIONS = frozenset({".wav", ".mp3", ".flac", ".ogg", ".m4a", ".webm", ".mp4", ".mpeg", ".mpga"})
_SAFE_STEM = "audio"

_CONTENT_TYPE = re.compile(
    rb"multipart/form-data[ \t]*;[ \t]*boundary="
    rb"""(?:"([^"\\\x00-\x1f\x7f-\xff]{1,70})"|([0-9A-Za-z'()+_,./:=?-]{1,70}))[ \t]*""",
    re.IGNORECASE,
)
_BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
_FIELD_NAME = rb"[A-Za-z_][A-Za-z0-9_.-]{0,63}(?:\[\])?"
_FILENAME = rb'"([^"\x00-\x1f\x7f]{0,255})"'
_DISPOSITION = re.compile(
    rb'form-data[ \t]*;[ \t]*name="(' + _FIELD_NAME + rb')"(?:[ \t]*;[ \t]*filename=' + _FILENAME + rb")?[ \t]*"
)
_MEDIA_TYPE = re.compile(rb"[a-z0-9][a-z0-9!#$&^_.+-]{0,63}/[a-z0-9][a-z0-9!#$&^_.+-]{0,63}", re.IGNORECASE)
_HEADER = re.compile(rb"([A-Za-z-]{1,32}):[ \t]*([^\r\n]*)")


class FormReason(StrEnum):
    """Why a form was refused; a closed set, so that it may be logged."""

    CONTENT_TYPE = "content_type"
    NOT_A_FORM = "not_a_form"
    NOT_CLOSED = "not_closed"
    TOO_MANY_PARTS = "too_many_parts"
    PART_HEADER = "part_header"
    FIELD_TOO_LARGE = "field_too_large"
    FIELD_NOT_TEXT = "field_not_text"
    DUPLICATE_FIELD = "duplicate_field"


class FormFault(ValueError):
    """The body is not one form that every parser reads alike. Carries a reason, never the input."""

    def __init__(self, reason: FormReason) -> None:
        self.reason = reason
        super().__init__(reason.value)


def parse_form(body: bytes, content_type: bytes | str, *, max_parts: int, max_field_bytes: int) -> tuple[FormPart, ...]:
    """The parts of a form. A file's bytes are copied once; a field is at most ``max_field_bytes`` of UTF-8.

    Only a field whose name ends in ``[]`` may come twice. Raises ``FormFault``. The name of a file that is returned is
    ``audio`` with the client's extension where that is a known one.
    """
    delimiter = b"\r\n--" + _boundary_of(content_type)
    parts: list[FormPart] = []
    seen: set[str] = set()
    for start, end in _spans(body, delimiter, max_parts):
        part = _part(body, start, end, max_field_bytes)
        if part.name in seen and not part.name.endswith("[]"):
            raise FormFault(FormReason.DUPLICATE_FIELD)
        seen.add(part.name)
        parts.append(part)
    return tuple(parts)


def render_form(parts: Iterable[FormPart], boundary: bytes) -> bytes:
    """The form's bytes. ``boundary`` must keep RFC 2046's letters and stand in no part: raises ``ValueError`` if not.

    Names and types come from ``parse_form`` or from this program and are written as they are.
    """
    if not _BOUNDARY.fullmatch(boundary):
        raise ValueError("not a boundary of RFC 2046")
    pieces: list[bytes] = []
    for part in parts:
        if boundary in part.data:
            raise ValueError("the boundary stands in a part")
        pieces += (b"--", boundary, b"\r\n", _head(part), b"\r\n\r\n", part.data, b"\r\n")
    pieces += (b"--", boundary, b"--\r\n")
    return b"".join(pieces)


def safe_filename(name: str) -> str:
    """A fixed name with the extension of ``name`` where it is one of ``SAFE_EXTENSIONS``."""
    _, dot, extension = name.rpartition(".")
    suffix = f".{extension.lower()}" if dot else ""
    return _SAFE_STEM + suffix if suffix in SAFE_EXTENSIONS else _SAFE_STEM


def _boundary_of(content_type: bytes | str) -> bytes:
    if isinstance(content_type, str):
        if not content_type.isascii():
            raise FormFault(FormReason.CONTENT_TYPE)
        content_type = content_type.encode()
    match = _CONTENT_TYPE.fullmatch(content_type)
    boundary = (match[1] or match[2]) if match else b""
    if not _BOUNDARY.fullmatch(boundary):
        raise FormFault(FormReason.CONTENT_TYPE)
    return boundary


def _spans(body: bytes, delimiter: bytes, max_parts: int) -> list[tuple[int, int]]:
    """Where each part begins (its headers) and ends. Every delimiter is found once, from left to right."""
    if not body.startswith(delimiter[2:] + b"\r\n"):
        raise FormFault(FormReason.NOT_A_FORM)
    spans: list[tuple[int, int]] = []
    start = len(delimiter)
    while True:
        if len(spans) == max_parts:
            raise FormFault(FormReason.TOO_MANY_PARTS)
        end = body.find(delimiter, start)
        if end < 0:
            raise FormFault(FormReason.NOT_CLOSED)
        spans.append((start, end))
        after = end + len(delimiter)
        if body.startswith(b"\r\n", after):
            start = after + 2
        elif body[after:] in (b"--", b"--\r\n"):
            return spans
        else:
            # Padding, an epilogue, or a longer line that only begins like the delimiter: parsers disagree on each.
            raise FormFault(FormReason.NOT_A_FORM)


def _part(body: bytes, start: int, end: int, max_field_bytes: int) -> FormPart:
    stop = body.find(b"\r\n\r\n", start, min(end, start + MAX_PART_HEADER_BYTES))
    if stop < 0:
        raise FormFault(FormReason.PART_HEADER)
    headers = _headers(body[start:stop])
    disposition = _DISPOSITION.fullmatch(headers.get(b"content-disposition", b""))
    media_type = headers.get(b"content-type")
    if disposition is None or (media_type is not None and not _is_plain_type(media_type)):
        raise FormFault(FormReason.PART_HEADER)
    name = disposition[1].decode()
    kind = media_type.decode() if media_type else None
    if disposition[2] is not None:
        filename = safe_filename(disposition[2].decode("utf-8", "replace"))
        return FormPart(name, body[stop + 4 : end], filename, kind)
    return FormPart(name, _field(body, stop + 4, end, max_field_bytes), None, kind)


def _headers(block: bytes) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for line in block.split(b"\r\n"):
        match = _HEADER.fullmatch(line)
        key = match[1].lower() if match else b""
        if match is None or key in headers or key not in (b"content-disposition", b"content-type"):
            raise FormFault(FormReason.PART_HEADER)
        headers[key] = match[2]
    return headers


def _is_plain_type(media_type: bytes) -> bool:
    """A bare type, or text with UTF-8 named; a form within the form is neither."""
    bare, _, parameter = media_type.partition(b";")
    utf8 = parameter.strip().lower() in (b"", b"charset=utf-8")
    return utf8 and bool(_MEDIA_TYPE.fullmatch(bare)) and not bare.lower().startswith(b"multipart/")


def _field(body: bytes, start: int, end: int, limit: int) -> bytes:
    if end - start > limit:
        raise FormFault(FormReason.FIELD_TOO_LARGE)
    data = body[start:end]
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise FormFault(FormReason.FIELD_NOT_TEXT) from None
    if "\0" in text:
        raise FormFault(FormReason.FIELD_NOT_TEXT)
    return data


def _head(part: FormPart) -> bytes:
    lines = [f'Content-Disposition: form-data; name="{part.name}"']
    if part.filename is not None:
        lines[0] += f'; filename="{part.filename}"'
    if part.content_type is not None:
        lines.append(f"Content-Type: {part.content_type}")
    return "\r\n".join(lines).encode()
