"""The strict form parser: what the real clients send, what is refused, and that files pass untouched."""

from __future__ import annotations

import contextlib
import time

import pytest

from gateway.model import FormPart
from gateway.wire.multipart import FormFault, FormReason, parse_form, render_form, safe_filename

TYPE = b"multipart/form-data; boundary=XX"


def parse(body: bytes, content_type: bytes | str = TYPE, *, parts: int = 8, field: int = 100) -> tuple[FormPart, ...]:
    return parse_form(body, content_type, max_parts=parts, max_field_bytes=field)


def part(headers: str, data: bytes = b"v") -> bytes:
    return b"--XX\r\n" + headers.encode() + b"\r\n\r\n" + data + b"\r\n"


def field(name: str, data: bytes = b"v") -> bytes:
    return part(f'Content-Disposition: form-data; name="{name}"', data)


FILE = 'Content-Disposition: form-data; name="file"; filename="{}"\r\nContent-Type: audio/x-wav'
END = b"--XX--\r\n"


def test_fields_and_a_file() -> None:
    audio = bytes(range(256)) + b"\r\n--X\r\n--\r\n\r\n"
    form = parse(field("model", b"m") + part(FILE.format("my speech.WAV"), audio) + END)
    assert form == (FormPart("model", b"m"), FormPart("file", audio, "audio.wav", "audio/x-wav"))


@pytest.mark.parametrize("content_type", [TYPE, TYPE.decode(), b'multipart/form-data;boundary="XX"'])
def test_content_types(content_type: bytes | str) -> None:
    assert parse(field("a") + END, content_type) == (FormPart("a", b"v"),)


@pytest.mark.parametrize("end", [b"--XX--", b"--XX--\r\n"])
def test_both_ends(end: bytes) -> None:
    assert parse(field("a", b"") + end) == (FormPart("a", b""),)


def test_only_bracketed_names_may_repeat() -> None:
    assert [p.data for p in parse(field("a[]", b"1") + field("a[]", b"2") + END)] == [b"1", b"2"]
    with pytest.raises(FormFault) as caught:
        parse(field("a", b"1") + field("a", b"2") + END)
    assert caught.value.reason is FormReason.DUPLICATE_FIELD


REFUSED_TYPES = [
    b"multipart/form-data",
    b"multipart/form-data; boundary=",
    b"multipart/form-data; boundary=" + b"a" * 71,
    b'multipart/form-data; boundary="a b "',
    b'multipart/form-data; boundary="a\\"b"',
    b"multipart/form-data; boundary=XX; boundary=YY",
    b"multipart/form-data; boundary=XX; charset=utf-8",
    b"multipart/mixed; boundary=XX",
    b"application/json",
    "multipart/form-data; boundary=é",
]


@pytest.mark.parametrize("content_type", REFUSED_TYPES)
def test_refused_content_types(content_type: bytes | str) -> None:
    with pytest.raises(FormFault) as caught:
        parse(field("a") + END, content_type)
    assert caught.value.reason is FormReason.CONTENT_TYPE


DISPOSITION = 'Content-Disposition: form-data; name="a"'
REFUSED = {
    "empty": (b"", FormReason.NOT_A_FORM),
    "preamble": (b"x\r\n" + field("a") + END, FormReason.NOT_A_FORM),
    "no_part": (END, FormReason.NOT_A_FORM),
    "epilogue": (field("a") + END + b"x", FormReason.NOT_A_FORM),
    "padding": (b'--XX \r\nContent-Disposition: form-data; name="a"\r\n\r\nv\r\n' + END, FormReason.NOT_A_FORM),
    "longer_line": (field("a", b"v\r\n--XXY") + END, FormReason.NOT_A_FORM),
    "bare_lf": (b'--XX\nContent-Disposition: form-data; name="a"\n\nv\n--XX--\n', FormReason.NOT_A_FORM),
    "not_closed": (field("a"), FormReason.NOT_CLOSED),
    "cut_short": (field("a")[:-4], FormReason.NOT_CLOSED),
    "no_headers": (b"--XX\r\n\r\nv\r\n" + END, FormReason.PART_HEADER),
    "no_disposition": (part("Content-Type: text/plain") + END, FormReason.PART_HEADER),
    "attachment": (part('Content-Disposition: attachment; name="a"') + END, FormReason.PART_HEADER),
    "no_name": (part("Content-Disposition: form-data") + END, FormReason.PART_HEADER),
    "bare_name": (part("Content-Disposition: form-data; name=a") + END, FormReason.PART_HEADER),
    "odd_name": (part('Content-Disposition: form-data; name="a b"') + END, FormReason.PART_HEADER),
    "quote_in_name": (part('Content-Disposition: form-data; name="a\\"b"') + END, FormReason.PART_HEADER),
    "extended_name": (part("Content-Disposition: form-data; name*=utf-8''a") + END, FormReason.PART_HEADER),
    "two_names": (part(DISPOSITION + '; name="b"') + END, FormReason.PART_HEADER),
    "extended_filename": (part(DISPOSITION + "; filename*=utf-8''a") + END, FormReason.PART_HEADER),
    "nul_in_filename": (part(DISPOSITION + '; filename="a\0b"') + END, FormReason.PART_HEADER),
    "tab_in_filename": (part(DISPOSITION + '; filename="a\tb"') + END, FormReason.PART_HEADER),
    "two_dispositions": (part(DISPOSITION + "\r\n" + DISPOSITION) + END, FormReason.PART_HEADER),
    "unknown_header": (part(DISPOSITION + "\r\nX-A: b") + END, FormReason.PART_HEADER),
    "transfer_encoding": (part(DISPOSITION + "\r\nContent-Transfer-Encoding: base64") + END, FormReason.PART_HEADER),
    "folded": (part(DISPOSITION + ';\r\n filename="b"') + END, FormReason.PART_HEADER),
    "nested": (part(DISPOSITION + "\r\nContent-Type: multipart/mixed; boundary=YY") + END, FormReason.PART_HEADER),
    "nested_bare": (part(DISPOSITION + "\r\nContent-Type: multipart/mixed") + END, FormReason.PART_HEADER),
    "utf16": (part(DISPOSITION + "\r\nContent-Type: text/plain; charset=utf-16") + END, FormReason.PART_HEADER),
    "long_header": (part(DISPOSITION + f'; filename="{"a" * 2000}"') + END, FormReason.PART_HEADER),
    "not_text": (field("a", b"\xff") + END, FormReason.FIELD_NOT_TEXT),
    "nul": (field("a", b"x\0") + END, FormReason.FIELD_NOT_TEXT),
    "field_too_large": (field("a", b"x" * 101) + END, FormReason.FIELD_TOO_LARGE),
    "too_many": (b"".join(field(f"a{n}") for n in range(9)) + END, FormReason.TOO_MANY_PARTS),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, reason = REFUSED[name]
    with pytest.raises(FormFault) as caught:
        parse(body)
    assert caught.value.reason is reason
    assert str(caught.value) == reason.value


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("a.wav", "audio.wav"),
        ("A.MP3", "audio.mp3"),
        ("../../etc/passwd", "audio"),
        ("a.wav.exe", "audio"),
        (".wav", "audio.wav"),
        ("", "audio"),
        ("a.", "audio"),
        ("evil.wav/../x", "audio"),
    ],
)
def test_filenames_are_ours(name: str, safe: str) -> None:
    assert safe_filename(name) == safe


def test_what_is_rendered_is_read_alike() -> None:
    parts = (
        FormPart("model", b"m"),
        FormPart("file", b"\r\n\r\n--\0\xff", "audio.ogg", "audio/ogg"),
        FormPart("x[]", b""),
    )
    assert (
        parse_form(render_form(parts, b"b0"), b"multipart/form-data; boundary=b0", max_parts=3, max_field_bytes=9)
        == parts
    )


@pytest.mark.parametrize("boundary", [b"", b"a" * 71, b"a\r\nb", b"a ", "é".encode()])
def test_bad_boundaries_are_not_written(boundary: bytes) -> None:
    with pytest.raises(ValueError, match="boundary"):
        render_form((FormPart("a", b"v"),), boundary)


def test_a_boundary_within_data_is_not_written() -> None:
    with pytest.raises(ValueError, match="boundary"):
        render_form((FormPart("a", b"..b0.."),), b"b0")


@pytest.mark.parametrize("unit", [b"\r\n--X", b"\r\n--XX", b"\r\n", b"--XX", b"-", b"\r\n--XX\r\n", b":", b'"'])
def test_hostile_bodies_take_linear_time(unit: bytes) -> None:
    body = part(FILE.format("a.wav"), unit * (4_000_000 // len(unit))) + END
    started = time.process_time()
    with contextlib.suppress(FormFault):
        parse(body)
    assert time.process_time() - started < 5
