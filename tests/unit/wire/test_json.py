"""Strict JSON: what is refused, why, and that hostile bodies cost no more than their length."""

from __future__ import annotations

import contextlib
import json
import time

import pytest

from gateway.wire.json import MAX_CONTAINERS, JsonFault, JsonReason, _brackets_exceed, dump, parse_object

REFUSED = {
    "utf8_bom": (b'\xef\xbb\xbf{"a":1}', JsonReason.BOM),
    "utf16_bom": ('{"a":1}'.encode("utf-16"), JsonReason.BOM),
    "utf16_bare": ('{"a":1}'.encode("utf-16-le"), JsonReason.NOT_UTF8),
    "utf32_bom": ('{"a":1}'.encode("utf-32"), JsonReason.BOM),
    "utf32_bare": ('{"a":1}'.encode("utf-32-be"), JsonReason.NOT_UTF8),
    "latin1": (b'{"a":"\xe9"}', JsonReason.NOT_UTF8),
    "overlong": (b'{"a":"\xc0\xaf"}', JsonReason.NOT_UTF8),
    "surrogate_octets": (b'{"a":"\xed\xa0\x80"}', JsonReason.NOT_UTF8),
    "lone_surrogate": (rb'{"a":"\ud800"}', JsonReason.NOT_JSON),
    "reversed_surrogates": (rb'{"a":"\udc00\ud800"}', JsonReason.NOT_JSON),
    "nan": (b'{"a":NaN}', JsonReason.NOT_JSON),
    "infinity": (b'{"a":-Infinity}', JsonReason.NOT_JSON),
    "overflow": (b'{"a":1e999}', JsonReason.NOT_JSON),
    "empty": (b"", JsonReason.NOT_JSON),
    "blank": (b" \n", JsonReason.NOT_JSON),
    "trailing_comma": (b'{"a":1,}', JsonReason.NOT_JSON),
    "comment": (b'{"a":1/**/}', JsonReason.NOT_JSON),
    "single_quotes": (b"{'a':1}", JsonReason.NOT_JSON),
    "two_documents": (b'{"a":1}{"b":2}', JsonReason.NOT_JSON),
    "raw_control": (b'{"a":"\n"}', JsonReason.NOT_JSON),
    "leading_zero": (b'{"a":01}', JsonReason.NOT_JSON),
    "unclosed": (b'{"a":[1', JsonReason.NOT_JSON),
    "crossed": (b'{"a":[}]', JsonReason.NOT_JSON),
    "list": (b"[]", JsonReason.NOT_OBJECT),
    "string": (b'"a"', JsonReason.NOT_OBJECT),
    "null": (b"null", JsonReason.NOT_OBJECT),
    "duplicate": (b'{"model":"a","model":"b"}', JsonReason.DUPLICATE_KEY),
    "duplicate_equal": (b'{"model":"a","model":"a"}', JsonReason.DUPLICATE_KEY),
    "duplicate_escaped": (rb'{"model":"a","mod\u0065l":"b"}', JsonReason.DUPLICATE_KEY),
    "duplicate_spaced": (b'{ "model" : "a" , "model" : "b" }', JsonReason.DUPLICATE_KEY),
    "duplicate_deep": (b'{"a":[{"b":{"c":1,"d":2,"c":3}}]}', JsonReason.DUPLICATE_KEY),
    "duplicate_empty": (b'{"":1,"":2}', JsonReason.DUPLICATE_KEY),
    "duplicate_dropped": (b'{"a":{"x":1,"x":2},"a":1}', JsonReason.DUPLICATE_KEY),
    "duplicate_solidus": (rb'{"a/b":1,"a\/b":2}', JsonReason.DUPLICATE_KEY),
    "nul_key": (rb'{"model\u0000":"a"}', JsonReason.NUL_IN_KEY),
    "nul_key_deep": (rb'{"a":[[{"b\u0000":"a"}]]}', JsonReason.NUL_IN_KEY),
    "nul_raw": (b'{"a\x00":"a"}', JsonReason.NOT_UTF8),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, reason = REFUSED[name]
    with pytest.raises(JsonFault) as caught:
        parse_object(body)
    assert caught.value.reason is reason
    assert str(caught.value) == reason.value
    assert caught.value.__context__ is None, "an error in the background would hold the body"


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b' {"a" : 1 }\n',
        rb'{"a":"\"model\":1,\"model\":2"}',
        rb'{"a":"\\","b":"\\\\","c":"\\\""}',
        rb'{"a":"nul \u0000 in a value"}',
        rb'{"a":"\u00e9\ud83d\ude00"}',
        '{"modèle":"é😀"}'.encode(),
        b'{"a":{"x":1},"b":{"x":1}}',
        b'{"a":18446744073709551615,"b":-0.0,"c":1e2}',
        b'{"model":"a","Model":"b","MODEL":"c"}',
    ],
)
def test_accepted_as_the_standard_library_reads_it(body: bytes) -> None:
    assert parse_object(body) == json.loads(body)


def test_long_numbers_pass_without_quadratic_work() -> None:
    assert parse_object(b'{"a": 1' + b"0" * 200 + b"}") == {"a": 1e200}
    with pytest.raises(JsonFault):
        parse_object(b'{"a": ' + b"9" * 100_000 + b"}")


@pytest.mark.parametrize("depth", [1, 2, 16])
def test_depth_is_exact(depth: int) -> None:
    lists = b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"
    body = lists if depth > 1 else b"{}"
    assert parse_object(body, max_depth=depth) is not None
    deeper = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
    with pytest.raises(JsonFault) as caught:
        parse_object(deeper, max_depth=depth)
    assert caught.value.reason is JsonReason.TOO_DEEP


def test_depth_counts_no_brackets_in_strings() -> None:
    text = "[{" * 100 + '"\\'
    assert parse_object(json.dumps({"a": text}).encode()) == {"a": text}


def test_containers_are_counted_outside_strings() -> None:
    text = '[{"' * MAX_CONTAINERS
    assert parse_object(json.dumps({"a": text}).encode()) == {"a": text}
    fits = b'{"a":[' + b"[]," * (MAX_CONTAINERS - 3) + b"[]]}"
    assert len(parse_object(fits)["a"]) == MAX_CONTAINERS - 2
    with pytest.raises(JsonFault) as caught:
        parse_object(b'{"a":[' + b"[]," * (MAX_CONTAINERS - 2) + b"[]]}")
    assert caught.value.reason is JsonReason.TOO_MANY_CONTAINERS


HOSTILE = {
    "backslashes": b"\\",
    "quotes": b'"',
    "brackets": b"[",
    "braces": b'{"a":',
    "closing": b"]",
    "colons": b":",
    "pairs": b"[]",
    "escaped_quotes": b'\\"',
    "strings": b'"",',
    "nul_escapes": b"\\u0000",
    "duplicates": b'"a":1,',
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("frame", [(b"", b""), (b'{"a":"', b'"}'), (b"{", b'"a":1}'), (b'{"a":[', b"1]}")])
def test_hostile_bodies_take_linear_time(name: str, frame: tuple[bytes, bytes]) -> None:
    unit = HOSTILE[name]
    body = frame[0] + unit * (2_000_000 // len(unit)) + frame[1]
    started = time.process_time()
    with contextlib.suppress(JsonFault):
        parse_object(body)
    # Quadratic work on two megabytes would take hours; the margin is for slow machines.
    assert time.process_time() - started < 5


def test_dump_is_compact_utf8() -> None:
    assert dump({"a": ["é", 1, None, True]}) == '{"a":["é",1,null,true]}'.encode()


@pytest.mark.parametrize("body", [b"", b"{", b"{}", b"[[", b"{[", b"a[b{c[d", b"{{[[[", b"x" * 100 + b"[" + b"y" * 100])
def test_brackets_are_found_as_counting_would(body):
    count = body.count(b"{") + body.count(b"[")
    for most in range(7):
        assert _brackets_exceed(body, most) is (count > most)
