"""Reads captures of real engines: `NAME.http` (request, head, body) and `NAME.head.txt` with `NAME.sse` (a stream).

Lines that begin with `>` are the request; what follows the first empty line is the answer as curl gave it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_MASKS = (
    (re.compile(rb"date: [^\r\n]*"), b"date: -"),
    (re.compile(rb"x-request-id: [0-9a-f]{32}\r"), b"x-request-id: -\r"),
    (re.compile(rb'"(created|created_at)":\d+'), rb'"\1":0'),
    (re.compile(rb'"(msg_)?[0-9a-f]{32}"'), rb'"\1ID"'),
    (re.compile(rb"(chatcmpl-tool-|chatcmpl-|cmpl-|resp_|msg_|modelperm-)[0-9a-f]{16}"), rb"\1ID"),
    (re.compile(rb"\[\d\d:\d\d:\d\d\]"), b"[TIME]"),
    (re.compile(rb"vllm-0\.32\.0-[0-9a-f]{8}"), b"FINGERPRINT"),
)


@dataclass(frozen=True, slots=True)
class Capture:
    """One exchange. `head` ends with the empty line; `body` is what came after it, without framing."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    request_body: bytes
    head: bytes
    body: bytes

    def request(self) -> bytes:
        """The request as bytes, for a raw connection."""
        lines = [f"{self.method} {self.path} HTTP/1.1", "host: engine", *(f"{k}: {v}" for k, v in self.headers)]
        if self.request_body or self.method == "POST":
            lines.append(f"content-length: {len(self.request_body)}")
        return "\r\n".join([*lines, "", ""]).encode() + self.request_body


def read_capture(path: Path) -> Capture:
    """Read one capture; for `NAME.head.txt` the body is that of `NAME.sse`."""
    raw = path.read_bytes()
    asked, answer = _parted(raw)
    head, _, body = answer.partition(b"\r\n\r\n")
    if path.name.endswith(".head.txt"):
        body = path.with_name(path.name.replace(".head.txt", ".sse")).read_bytes()
    elif body.endswith(b"\n"):
        body = body[:-1]
    lines = [line.removeprefix(">").removeprefix(" ") for line in asked.decode().split("\n")]
    method, target = lines[0].split()[:2]
    end = lines.index("") if "" in lines else len(lines)
    headers = tuple((name, value) for name, _, value in (line.partition(": ") for line in lines[1:end]))
    return Capture(method, target, headers, "\n".join(lines[end + 1 :]).encode(), head + b"\r\n\r\n", body)


def _parted(raw: bytes) -> tuple[bytes, bytes]:
    """Request lines and answer."""
    place = raw.index(b"HTTP/1.1 ")
    return raw[:place].rstrip(b"\n"), raw[place:]


def masked(data: bytes) -> bytes:
    """The same bytes with what differs from one answer to the next made equal: ids, times, fingerprint."""
    for pattern, stand_in in _MASKS:
        data = pattern.sub(stand_in, data)
    return data
