"""Rules for header blocks and request targets. Pure.

The front guard refuses what two HTTP parsers could read differently, whatever the parser in use made of it: doubled
framing, doubled credentials, odd names, odd targets. Each rule answers a class of the raw-socket corpus in
``tests/security``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

Headers = Sequence[tuple[bytes, bytes]]

MAX_HEADERS = 64
# At most one of each: framing, identity and what the body means may have one reading only.
SINGLE = (
    b"host",
    b"connection",
    b"content-length",
    b"content-type",
    b"authorization",
    b"x-api-key",
    b"transfer-encoding",
    b"expect",
    b"content-encoding",
)
_EXPECT = b"100-continue"
CONNECTION_TOKENS = frozenset({b"close", b"keep-alive", b"te"})

_NAMES = re.compile(rb"[a-z0-9-]+\Z")
_VALUES = re.compile(rb"[\t\x20-\x7e]*\Z")
_TARGET = re.compile(rb"/[A-Za-z0-9/_.:@-]*\Z")
# No host name of the DNS has an underscore, but the services of a compose file do.
_HOST = re.compile(rb"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?\Z")
_DIGITS = re.compile(rb"[0-9]{1,15}\Z")


def judge_head(version: str, headers: Headers, head: Mapping[bytes, bytes], most: int = MAX_HEADERS) -> str | None:
    """Why this header block is refused, in words that quote none of it; ``None`` when it is sound."""
    if version != "1.1":
        return "Only HTTP/1.1 is spoken here."
    if len(headers) > most:
        return "Too many headers."
    if not _NAMES.match(b"".join([name for name, _ in headers])) or b"" in head:
        return "A header name has a character outside a-z, 0-9 and '-'."
    if not _VALUES.match(b"".join([value for _, value in headers])):
        return "A header value has a character outside visible ASCII."
    if len(head) != len(headers) and _repeated(headers):
        return "A header that may stand once is repeated."
    return _judge_framing(head)


def _repeated(headers: Headers) -> bool:
    names = [name for name, _ in headers]
    return any(names.count(name) > 1 for name in SINGLE)


def _bad_host(head: Mapping[bytes, bytes]) -> bool:
    host = head.get(b"host")
    return host is None or not _HOST.match(host)


def _bad_framing(head: Mapping[bytes, bytes]) -> bool:
    length, coding = head.get(b"content-length"), head.get(b"transfer-encoding")
    if coding is not None:
        return length is not None or coding != b"chunked"
    return length is not None and not _DIGITS.match(length)


def _bad_connection(head: Mapping[bytes, bytes]) -> bool:
    connection = head.get(b"connection")
    return connection is not None and not _known_tokens(connection)


_FRAMING: tuple[tuple[Callable[[Mapping[bytes, bytes]], bool], str], ...] = (
    (_bad_host, "The Host header is missing or malformed."),
    (_bad_framing, "The body's framing is ambiguous or unknown."),
    (lambda head: b"content-encoding" in head, "Compressed request bodies are not taken."),
    (lambda head: b"upgrade" in head, "This connection cannot be upgraded."),
    (lambda head: head.get(b"expect", _EXPECT).lower() != _EXPECT, "Only 'Expect: 100-continue' is understood."),
    (_bad_connection, "The Connection header names an unknown option."),
)


def _judge_framing(head: Mapping[bytes, bytes]) -> str | None:
    for refused, reason in _FRAMING:
        if refused(head):
            return reason
    return None


def _known_tokens(connection: bytes) -> bool:
    return all(token.strip().lower() in CONNECTION_TOKENS for token in connection.split(b","))


def header_lines(headers: Headers) -> bytes:
    """Headers of ours as they are sent, each line with its CRLF."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def plain_target(target: bytes) -> str | None:
    """The target as a path, or ``None`` when it is not one plain absolute path without query, escapes or dots.

    Paths are compared before any decoding, so nothing that a decoder would change may pass.
    """
    if not _TARGET.match(target) or target.find(b"//") >= 0 or target.find(b"/.") >= 0:
        return None
    return target.decode("ascii")


def has_body(head: Mapping[bytes, bytes]) -> bool:
    """Whether a sound head announces a body of at least one byte, or of unknown length."""
    return b"transfer-encoding" in head or bool(head.get(b"content-length", b"").strip(b"0"))


def without_port(host: bytes) -> bytes:
    """The name or address of a sound Host value."""
    name, colon, _ = host.rpartition(b":")
    return name if colon and not host.endswith(b"]") else host
