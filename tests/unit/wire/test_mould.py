"""What fits a mould is shown with the model's name swapped; nothing else fits."""

from __future__ import annotations

import orjson
import pytest

from gateway.wire.mould import framed_mould, mould, size_line, whole_chunks

NEEDLE, SWAPPED = b'"model":"served-7b"', b'"model":"alias"'


def event(text: str | None = " one", finish: str | None = None, **extra: object) -> bytes:
    choice = {"index": 0, "delta": {} if text is None else {"content": text}, "finish_reason": finish}
    return b"data: " + orjson.dumps({"id": "c-1", "model": "served-7b", "choices": [choice], **extra})


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def shown(data: bytes) -> bytes:
    return data.replace(NEEDLE, SWAPPED)


PLAIN = event() + b"\n\n"
BOTH = (
    event(" two") + b"\n\n",
    event("") + b"\n\n",
    event('a "quoted" \\ word') + b"\n\n",
    event('"finish_reason"') + b"\n\n",
    event("größer 模型 😀") + b"\n\n",
    event("x" * 5000) + b"\n\n",
)
NEITHER = (
    event(" end", "stop") + b"\n\n",
    event(None) + b"\n\n",
    event(" one", index=1) + b"\n\n",
    event() + b"\n",
    event(" one").replace(b" one", b" one\n\n") + b"\n\n",
    event(" one").replace(b" one", b" one\r") + b"\n\n",
    event(" one").replace(b" one", b'","finish_reason":"stop","x":"') + b"\n\n",
    event(" one").replace(b" one", b"\xff") + b"\n\n",
    event(" one").replace(b" one", b"\xed\xa0\x80") + b"\n\n",
    b"",
    b"data: [DONE]\n\n",
)


@pytest.mark.parametrize("data", BOTH)
def test_an_ordinary_event_is_shown_under_the_callers_name(data):
    cast, framed = mould(event(), NEEDLE, SWAPPED), framed_mould(event(), NEEDLE, SWAPPED)
    assert cast(data) == shown(data)
    assert framed.cast(chunk(data)) == chunk(shown(data))
    assert framed.counted() == (1, len(shown(data)))
    assert framed.counted() == (0, 0)


@pytest.mark.parametrize("data", NEITHER)
def test_anything_else_does_not_fit(data):
    if data != event(None) + b"\n\n":  # an event without text is ordinary to the wider mould
        assert mould(event(), NEEDLE, SWAPPED)(data) is None
    assert framed_mould(event(), NEEDLE, SWAPPED).cast(chunk(data)) is None


@pytest.mark.parametrize(
    "data",
    [
        PLAIN,
        chunk(PLAIN)[:-1],
        chunk(PLAIN)[1:],
        chunk(PLAIN) + chunk(PLAIN),
        chunk(PLAIN).replace(b"\r\n", b";x=y\r\n", 1),
        b"0" + chunk(PLAIN),
        b"%x\r\n%b\r\n" % (len(PLAIN) + 1, PLAIN),
        b"%x\r\n%b\r\n" % (len(PLAIN) - 1, PLAIN),
        chunk(PLAIN)[:-2] + b"0\r\n\r\n",
    ],
)
def test_only_a_whole_chunk_with_its_true_size_fits(data):
    assert framed_mould(event(), NEEDLE, SWAPPED).cast(data) is None


@pytest.mark.parametrize(
    "learned",
    [
        event(" end", "stop"),
        event() + b"\n",
        event(x={"finish_reason": None}),
        event().replace(b'"finish_reason":null', b'"other":null'),
    ],
)
def test_no_mould_is_made_of_what_is_not_ordinary(learned):
    assert mould(learned, NEEDLE, SWAPPED) is None


def test_no_framed_mould_without_text_with_the_model_behind_it_or_of_a_large_event():
    late = b'data: {"choices":[{"delta":{"content":"a"}}],"model":"served-7b","finish_reason":null}'
    for learned in (event(None), late, event("x" * 5000)):
        assert framed_mould(learned, NEEDLE, SWAPPED) is None


def test_many_sizes_take_no_more_than_their_places():
    cast = framed_mould(event(), NEEDLE, SWAPPED).cast
    fronts = next(c.cell_contents for c in cast.__closure__ if isinstance(c.cell_contents, dict))
    for size in range(500):
        data = event("x" * size) + b"\n\n"
        assert cast(chunk(data)) == chunk(shown(data))
        assert len(fronts) <= 64


def test_the_size_line_is_the_one_of_the_chunk():
    sizes = {*range(1, 5000), 65535, 65536, 1 << 20}
    assert all(size_line(len(chunk(b"x" * size))) == b"%x\r\n" % size for size in sizes)
    totals = {len(chunk(b"x" * size)) for size in sizes}
    impossible = set(range(6, 5000)) - totals
    assert impossible == {21, 262, 4103}
    assert all(len(size_line(total)) > total for total in impossible)


def test_reads_of_several_chunks_are_cut_into_them():
    two = chunk(PLAIN) + chunk(event(" two") + b"\n\n")
    assert whole_chunks(two) == [chunk(PLAIN), chunk(event(" two") + b"\n\n")]
    for data in (chunk(PLAIN), two[:-1], two + b"5", b""):
        assert whole_chunks(data) is None
