"""Image headers: real ones, cut ones, and those with which a file says one thing to us and another to a decoder."""

from __future__ import annotations

import base64
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.policy.images import HEADER_BYTES, declared_size

PNG_MARK = b"\x89PNG\r\n\x1a\n"
# Real files of one and two pixels, as libpng, libjpeg and libwebp write them.
REAL = {
    "image/png": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==",
    "image/webp": "UklGRhoAAABXRUJQVlA4TA0AAAAvAAAAEAcQERGIiP4HAA==",
}


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + b"crc4"


def ihdr(width: int, height: int) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))


def png(width: int = 3, height: int = 2, *, before: bytes = b"") -> bytes:
    return PNG_MARK + ihdr(width, height) + before + chunk(b"IDAT", b"x")


def segment(marker: int, data: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data


def frame(width: int, height: int, marker: int = 0xC0) -> bytes:
    return segment(marker, struct.pack(">BHHB", 8, height, width, 1) + b"\1\x11\0")


SCAN = segment(0xDA, b"\1\1\0\0\x3f\0")


def jpeg(*segments: bytes) -> bytes:
    return b"\xff\xd8" + b"".join(segments) + SCAN + b"\x12\x34\xff\xd9"


def webp(kind: bytes, data: bytes) -> bytes:
    body = kind + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def lossy(width: int, height: int) -> bytes:
    return webp(b"VP8 ", b"\x30\x01\0\x9d\x01\x2a" + struct.pack("<HH", width, height) + b"data")


def lossless(width: int, height: int) -> bytes:
    return webp(b"VP8L", b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14) + b"data")


def extended(width: int, height: int, flags: int = 0) -> bytes:
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return webp(b"VP8X", bytes([flags, 0, 0, 0]) + size)


def size(kind: str, data: bytes) -> tuple[int, int] | None:
    return declared_size(f"image/{kind}", base64.b64encode(data).decode())


@pytest.mark.parametrize("kind", REAL)
def test_files_of_real_encoders(kind: str) -> None:
    assert declared_size(kind, REAL[kind]) == (1, 1)


@pytest.mark.parametrize(
    ("kind", "data", "wanted"),
    [
        ("png", png(640, 480), (640, 480)),
        ("png", png(1, 1, before=chunk(b"iCCP", b"p" * 3000) + chunk(b"tEXt", b"t")), (1, 1)),
        ("png", png(1 << 30, 1 << 30), (1 << 30, 1 << 30)),
        ("jpeg", jpeg(frame(640, 480)), (640, 480)),
        ("jpeg", jpeg(segment(0xE0, b"JFIF\0"), segment(0xDB, b"q" * 65), frame(9, 8, 0xC2)), (9, 8)),
        ("jpeg", jpeg(*[segment(0xE1, b"e" * 60_000)] * 4, frame(65_535, 65_535)), (65_535, 65_535)),
        ("webp", lossy(640, 480), (640, 480)),
        ("webp", lossy(640 | 1 << 14, 480 | 3 << 14), (640, 480)),  # the two high bits are a scale
        ("webp", lossless(16_384, 16_384), (16_384, 16_384)),
        ("webp", extended(1 << 24, 1), (1 << 24, 1)),
        ("webp", extended(5, 4, flags=0x10), (5, 4)),
    ],
)
def test_sizes(kind: str, data: bytes, wanted: tuple[int, int]) -> None:
    assert size(kind, data) == wanted


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("png", b""),
        ("png", PNG_MARK),
        ("png", PNG_MARK + ihdr(1, 1)),
        ("png", png(0, 1)),
        ("png", png(1, 0)),
        ("png", png(1, 1, before=ihdr(100_000, 100_000))),
        ("png", png(1, 1, before=chunk(b"acTL", b"\0\0\x10\0\0\0\0\0"))),
        ("png", png(1, 1, before=chunk(b"tEXt") * 600)),
        ("png", png(1, 1, before=chunk(b"tEXt", b"x" * HEADER_BYTES))),
        ("png", PNG_MARK + struct.pack(">I", 0xFFFFFFFF) + b"IHDR"),
        ("png", PNG_MARK + chunk(b"tEXt") + ihdr(1, 1) + chunk(b"IDAT")),
        ("png", b"\0" + png()),
        ("png", jpeg(frame(1, 1))),
        ("jpeg", png()),
        ("webp", png()),
        ("gif", b"GIF89a\1\0\1\0"),
        ("jpeg", jpeg()),
        ("jpeg", jpeg(frame(1, 0))),  # the height would come after the scan (DNL)
        ("jpeg", jpeg(frame(1, 1), frame(60_000, 60_000))),
        ("jpeg", jpeg(b"\xff", frame(1, 1))),
        ("jpeg", jpeg(b"\xff\xd0", frame(1, 1))),
        ("jpeg", jpeg(b"\xff\xe0\0\1", frame(1, 1))),
        ("jpeg", jpeg(segment(0xC0, b"\x08\0\1"))),
        ("jpeg", jpeg(*[segment(0xFE, b"")] * 600, frame(1, 1))),
        ("jpeg", jpeg(*[segment(0xE1, b"e" * 60_000)] * 5, frame(1, 1))),
        ("jpeg", b"\xff\xd8\xff\xd9"),
        ("webp", lossy(0, 1)),
        ("webp", lossy(1, 1).replace(b"\x9d\x01\x2a", b"\x9d\x01\x2b")),
        ("webp", lossless(1, 1).replace(b"\x2f", b"\x2e")),
        ("webp", extended(1, 1, flags=0x02)),
        ("webp", extended(1, 1)[:29]),
        ("webp", webp(b"ALPH", b"x" * 20)),
        ("webp", lossy(1, 1).replace(b"WEBP", b"WAVE")),
    ],
)
def test_what_is_no_such_image_or_not_to_be_trusted(kind: str, data: bytes) -> None:
    assert size(kind, data) is None


@pytest.mark.parametrize("data", ["A", "AAA", "====", "AA=A", "é" * 4, ""])
def test_what_is_no_base64(data: str) -> None:
    assert declared_size("image/png", data) is None


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    st.sampled_from(["png", "jpeg", "webp"]),
    st.sampled_from(
        [png(9, 9), jpeg(segment(0xE0, b"JFIF\0"), frame(9, 9)), lossy(9, 9), lossless(9, 9), extended(9, 9)]
    ),
    st.integers(0, 80),
    st.binary(max_size=12),
)
def test_damage_makes_no_exception_and_no_size_of_zero(kind: str, whole: bytes, at: int, wrong: bytes) -> None:
    found = size(kind, whole[:at] + wrong + whole[at + len(wrong) :])
    assert found is None or min(found) > 0
