"""Strict JSON: one reading of a body, or none.

Parsers differ. vLLM reads bodies with ``json.loads``, which takes UTF-16, a byte order mark, NaN and lone surrogates,
and keeps the last of two equal keys without a word. Here orjson alone judges validity (RFC 8259, UTF-8), and what it
cannot see (equal keys, depth, sheer number) is checked beside it. Every step is linear in the body; none is recursive
before the depth is known.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

import orjson

# 4 MB of "[[]]," make 1.6 million lists and hold the event loop for a second; 2,048 messages of parts stay below this.
MAX_CONTAINERS = 32_768
# A container takes three octets ("[],"), so that a smaller body needs no counting.
_COUNTED_FROM = 3 * MAX_CONTAINERS

_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_INVALID = object()
_ESCAPED_NUL = b"\\u0000"


class JsonReason(StrEnum):
    """Why a body was refused; a closed set, so that it may be logged."""

    BOM = "bom"
    NOT_UTF8 = "not_utf8"
    NOT_JSON = "not_json"
    NOT_OBJECT = "not_object"
    DUPLICATE_KEY = "duplicate_key"
    TOO_DEEP = "too_deep"
    TOO_MANY_CONTAINERS = "too_many_containers"
    NUL_IN_KEY = "nul_in_key"


class JsonFault(ValueError):
    """The body is not one JSON object that every parser reads alike. Carries a reason, never the input."""

    def __init__(self, reason: JsonReason) -> None:
        self.reason = reason
        super().__init__(reason.value)


def dump(value: Any) -> bytes:
    """Compact UTF-8 JSON of a value made of dict, list, str, int, float, bool and None."""
    return orjson.dumps(value)


def parse_object(body: bytes, *, max_depth: int = 16) -> dict[str, Any]:
    """The object that ``body`` holds, nested at most ``max_depth`` containers deep.

    Raises ``JsonFault``. Writing the tree again and getting the same bytes proves that no member was lost, because a
    tree cannot hold two equal keys; clients write compactly, so this is the usual case and costs a fifth of a parse.
    Only a body written otherwise (spaces, escaped letters) is read a second time for its keys.
    """
    if len(body) >= _COUNTED_FROM and _containers(body) > MAX_CONTAINERS:
        raise JsonFault(JsonReason.TOO_MANY_CONTAINERS)
    tree = _loads(body)
    if tree is _INVALID:
        raise JsonFault(_why_invalid(body))
    if type(tree) is not dict:
        raise JsonFault(JsonReason.NOT_OBJECT)
    # A body with no more brackets than levels cannot be deeper. The parser stops at 1,024 levels by itself, which
    # bounds what a hostile nest can cost.
    if _brackets_exceed(body, max_depth) and _is_deeper(tree, max_depth):
        raise JsonFault(JsonReason.TOO_DEEP)
    if orjson.dumps(tree) != body:
        _refuse_duplicates(body)
    # ``find``, because ``in`` first tries its left side as a number and drops the exception: 0.5 us.
    if body.find(_ESCAPED_NUL) >= 0 and _has_nul_key(tree):
        raise JsonFault(JsonReason.NUL_IN_KEY)
    return tree


def _loads(body: bytes) -> Any:
    """The parser's error holds the whole body, and would stay reachable as the context of a fault raised beside it."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return _INVALID


def _containers(body: bytes) -> int:
    """Opening brackets outside strings. Exact for valid JSON; for anything else merely a number, and it is refused.

    With escaped backslashes gone first and escaped quotes second, every quote left opens or closes a string.
    """
    everywhere = body.count(b"{") + body.count(b"[")
    if everywhere <= MAX_CONTAINERS:
        return everywhere
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    return sum(piece.count(b"{") + piece.count(b"[") for piece in bare.split(b'"')[::2])


def _brackets_exceed(body: bytes, most: int) -> bool:
    """Whether more than ``most`` brackets open.

    They are looked for, which skips what stands between 32 bytes at a time; to count them would look at each byte.
    """
    left = most
    for bracket in (b"{", b"["):
        at = body.find(bracket)
        while at >= 0:
            left -= 1
            if left < 0:
                return True
            at = body.find(bracket, at + 1)
    return False


def _is_deeper(tree: dict[str, Any], max_depth: int) -> bool:
    """Whether containers nest deeper than ``max_depth``, one level at a time."""
    level: list[Any] = [tree]
    for _ in range(max_depth):
        level = _containers_below(level)
        if not level:
            return False
    return True


def _containers_below(level: list[Any]) -> list[Any]:
    below: list[Any] = []
    for node in level:
        for child in node.values() if type(node) is dict else node:
            if type(child) is dict or type(child) is list:
                below.append(child)  # noqa: PERF401 - one list for all nodes of the level
    return below


def _refuse_duplicates(body: bytes) -> None:
    """A second reading, only for keys; its depth and validity are already known.

    Numbers are read as floats because ``int`` takes quadratic time on long ones and refuses 4,300 digits.
    """
    json.loads(body, object_pairs_hook=_unique, parse_int=float)


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) > 1 and len({key for key, _ in pairs}) != len(pairs):
        raise JsonFault(JsonReason.DUPLICATE_KEY)


def _has_nul_key(tree: dict[str, Any]) -> bool:
    """Whether any key holds U+0000, which ends a name early in a parser written in C."""
    level: list[Any] = [tree]
    while level:
        if any("\0" in key for node in level if type(node) is dict for key in node):
            return True
        level = _containers_below(level)
    return False


def _why_invalid(body: bytes) -> JsonReason:
    if body.startswith(_BOMS):
        return JsonReason.BOM
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return JsonReason.NOT_UTF8
    # Text in UTF-16 or UTF-32 without a byte order mark is valid UTF-8 with NULs between its letters.
    return JsonReason.NOT_UTF8 if "\0" in text else JsonReason.NOT_JSON
