"""Pages read with the memory of earlier ones say what they say without it."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.exposition import MAX_BYTES, Exposition
from gateway.wire.layout import Layout

NAMES = ("a_total", "ab", "a", "h", "z", "gone")


def page(*lines: str) -> bytes:
    return ("# HELP x words\n# TYPE x gauge\n" + "\n".join(lines) + "\n").encode()


def test_lines_that_stay_are_the_same_list_and_those_that_change_are_new():
    layout = Layout()
    first = layout.page(page("a 1", "b 1")).lines("a")
    assert first == [b" 1"]
    assert layout.page(page("a 1", "b 22")).lines("a") is first
    assert layout.page(page("longer 12345678", "a 1")).lines("a") is first, "also somewhere else"
    assert layout.page(page("a 2", "b 22")).lines("a") == [b" 2"]
    assert first == [b" 1"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["a 1"], ["a 1", 'a{e="1"} 2']),
        (['a{e="1"} 2'], ['a{e="0"} 1', 'a{e="1"} 2']),
        (["a 1", 'a{e="1"} 2'], ["a 1"]),
        (["a 1", 'a{e="1"} 2'], ['a{e="1"} 2']),
        (["a 1"], ["b 1"]),
        (["b 1"], ["a 1"]),
        (["a 1"], ["ab 1"]),
        (["a 1", "b 1"], ["b 1", "a 1"]),
        (["a 1"], ["b " + "1" * 500, "a 1"]),
        (["b " + "1" * 500, "a 1"], ["a 1"]),
        (["a 1"], ["a 1.5e+06\r"]),
        (["a\t1"], ["ab\t1"]),
        (["a 1", "b 1"], ["a 1 17", "b 1"]),
        (["a 1", "b 1"], ["a 10", "a 2", "b 1"]),
        (["a 1", "b 1"], ['a{e="1"} 10', "b 10"]),
        (['a{e="0"} 1', 'a{e="1"} 1', "b 1"], ['a{e="0"} 1', 'a{e="1"} 22', "b 1"]),
        (['a{e="0"} 1', "b 1", 'a{e="1"} 1'], ['a{e="0"} 22', "b 1", 'a{e="1"} 1']),
        (["a 1"], []),
    ],
)
def test_a_page_that_has_changed_is_read_as_if_it_were_the_first(before, after):
    layout = Layout()
    for lines in (before, before, before, after, after, before):
        text = page(*lines)
        reading = layout.page(text)
        for name in ("a", "b"):
            assert reading.lines(name) == Exposition(text).lines(name)


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"a 1", b"a 1\n", b"a 1\na 2\n", b"a", b"a\n", b"\na 1\n", b"x" * 5 + b"\n"]
)
def test_short_and_broken_pages_are_read_as_any_other(text):
    layout = Layout()
    for _ in range(3):
        assert layout.page(text).lines("a") == Exposition(text).lines("a")


def test_a_page_that_is_too_long_is_empty_also_when_its_layout_is_known():
    layout = Layout()
    layout.page(page("a 1")).lines("a")
    assert layout.page(page("a 1") + b"# " + b"x" * MAX_BYTES + b"\n").lines("a") == []


def test_what_is_remembered_is_bounded():
    layout = Layout()
    for number in range(1000):
        layout.page(page("a 1")).lines(f"name_{number}")
    assert len(layout.known) <= 128


def _text(state: dict[str, dict[str, int]]) -> bytes:
    lines: list[str] = []
    for name, series in state.items():
        lines += [f"# HELP {name} x", f"# TYPE {name} y", *(f"{name}{labels} {n}" for labels, n in series.items())]
    return "\n".join([*lines, ""]).encode()


def _grow(state: dict[str, dict[str, int]], random: Random) -> None:
    """What may come of a page: figures grow, series and families come and go."""
    for series in state.values():
        for labels in series:
            series[labels] += random.choice([0, 0, 1, 99, 12_345])
    name = random.choice(NAMES)
    match random.randrange(8):
        case 0:
            state.setdefault(name, {"": 5})[f'{{e="{random.randrange(9)}"}}'] = 0
        case 1:
            state.pop(name, None)
        case 2 if len(state.get(name, ())) > 1:
            state[name].pop(random.choice(list(state[name])))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_whatever_becomes_of_a_page_its_layout_changes_no_reading(seed):
    random, layout = Random(seed), Layout()
    state = {name: {f'{{e="{rank}"}}': 0 for rank in range(random.randint(1, 3))} for name in NAMES[:5]}
    for _ in range(12):
        text = _text(state)
        reading = layout.page(text)
        for name in random.sample(NAMES, len(NAMES)):
            assert reading.lines(name) == Exposition(text).lines(name)
        _grow(state, random)


def test_names_whose_lines_have_changed_are_told_and_what_cannot_be_said_is_read_anew():
    layout = Layout()

    def changed(text):
        page = layout.page(text)
        told = layout.changed
        for name in ("a", "b", "c", "gone"):
            page.lines(name)
        return told

    assert changed(page("a 1", "b 1", "c 1")) is None, "the first page"
    assert changed(page("a 1", "b 1", "c 1")) == []
    assert changed(page("a 1", "b 22", "c 1")) == ["b"]
    assert changed(page("longer 1", "a 22", "b 333", "c 1")) == ["a", "b"]
    assert changed(page("longer 1", "a 22", "c 1")) == ["b"], "it is gone"
    assert changed(page("longer 1", "a 22", "gone 1", "c 1")) == ["gone"]
    assert changed(page("a 22", "gone 1", "c 1", "x" * 200)) is None, "a series more, maybe"
    assert changed(b"a 22") is None, "without an end"
    assert changed(page("a 22", "gone 1", "c 1")) is None, "nothing to compare it with"
    assert changed(page("a 22", "gone 1", "c 1")) == []
