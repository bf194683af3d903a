"""How large an image says it is, from the first bytes of its file. Nothing is decompressed.

A few bytes can declare an image that fills memory when it is decoded, so what a decoder would believe is read here in
the same order and everything that decoders disagree about is refused: a second header, fill bytes, animation, a header
that does not end within ``HEADER_BYTES`` or ``_PIECES``.

Sources: PNG (W3C, third edition) sections 5 and 11.2; ISO/IEC 10918-1 Annex B; RFC 9649 (WebP), RFC 6386 9.1 (VP8).
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping
from types import MappingProxyType

HEADER_BYTES = 256 * 1024  # metadata may stand before the size of a JPEG: thumbnails, colour profiles
_PIECES = 512  # chunks or segments that are looked at

Size = tuple[int, int]

_PNG = b"\x89PNG\r\n\x1a\n"
_SOI = b"\xff\xd8"
_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})  # SOF markers; the three others are tables
_SCAN = 0xDA
_SEGMENTS = frozenset({0xC4, 0xCC, *range(0xDB, 0xF0), 0xFE}) | _FRAMES  # markers with a length, before the scan


def declared_size(kind: str, data: str) -> Size | None:
    """Width and height of an image of media type ``kind``, given in base64.

    ``None``: it is not such an image, or its header is one that this gateway does not trust.
    """
    reader = _READERS.get(kind)
    if reader is None or len(data) % 4:
        return None
    try:
        head = binascii.a2b_base64(data[: HEADER_BYTES // 3 * 4])
    except ValueError:  # letters outside ASCII, and what is no base64
        return None
    size = reader(head)
    return size if size is not None and min(size) > 0 else None


def _png(head: bytes) -> Size | None:
    """IHDR first and once; no animation. Chunks are walked to the first data."""
    if not head.startswith(_PNG) or head[8:16] != b"\0\0\0\x0dIHDR":
        return None
    at = 8
    for _ in range(_PIECES):
        kind = head[at + 4 : at + 8]
        if kind == b"IDAT":
            return _number(head, 16, 4), _number(head, 20, 4)
        if len(kind) < 4 or kind == b"acTL" or (kind == b"IHDR" and at > 8):
            return None
        at += _number(head, at, 4) + 12
    return None


def _jpeg(head: bytes) -> Size | None:
    """Exactly one frame header before the first scan: decoders take the last one, or the first."""
    if not head.startswith(_SOI):
        return None
    at, size = 2, None
    for _ in range(_PIECES):
        if at + 4 > len(head) or head[at] != 0xFF:
            return None
        marker, length = head[at + 1], _number(head, at + 2, 2)
        if marker == _SCAN:
            return size
        if marker not in _SEGMENTS or length < 2:
            return None
        if marker in _FRAMES:
            if size is not None or length < 8 or at + 9 > len(head):
                return None
            size = _number(head, at + 7, 2), _number(head, at + 5, 2)
        at += length + 2
    return None


def _webp(head: bytes) -> Size | None:
    """The first chunk says it all: lossy, lossless, or extended with a canvas that decoders hold the frame to."""
    if len(head) < 25 or head[:4] != b"RIFF" or head[8:12] != b"WEBP":
        return None
    kind = head[12:16]
    if kind == b"VP8L" and head[20] == 0x2F:
        bits = _little(head, 21, 4)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if len(head) < 30:
        return None
    if kind == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":
        return _little(head, 26, 2) & 0x3FFF, _little(head, 28, 2) & 0x3FFF
    if kind == b"VP8X" and not head[20] & 0x02:  # the flag of an animation
        return _little(head, 24, 3) + 1, _little(head, 27, 3) + 1
    return None


def _number(head: bytes, at: int, size: int) -> int:
    return int.from_bytes(head[at : at + size], "big")


def _little(head: bytes, at: int, size: int) -> int:
    return int.from_bytes(head[at : at + size], "little")


_READERS: Mapping[str, Callable[[bytes], Size | None]] = MappingProxyType(
    {"image/png": _png, "image/jpeg": _jpeg, "image/webp": _webp}
)
