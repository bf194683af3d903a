"""Pages of metrics: real ones, read as prometheus_client reads them, and lines written in every way the format has."""

from __future__ import annotations

import random
from collections import defaultdict
from math import inf, isnan
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.wire.exposition import (
    MAX_BYTES,
    MAX_LABELS,
    MAX_LINE,
    MAX_LINES,
    UNREADABLE,
    Exposition,
    label,
    labels,
    number,
    value,
)

CAPTURES = Path(__file__).parents[2] / "captures"
PAGES = sorted(path.relative_to(CAPTURES).as_posix() for path in CAPTURES.rglob("metrics-*.txt"))


def samples(text: str) -> dict[str, list[tuple[dict[str, str], str]]]:
    found: dict[str, list[tuple[dict[str, str], str]]] = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name].append((sample.labels, repr(float(sample.value))))
    return found


def read(page: Exposition, name: str) -> list[tuple[dict[str, str], str]]:
    return [(labels(line), repr(value(line))) for line in page.lines(name)]


def test_there_are_pages_of_every_captured_engine():
    assert {page.split("/")[0] for page in PAGES} == {"sglang-0.5.23", "vllm-0.11.0", "vllm-0.32.0"}


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("order", ["page", "reversed", "shuffled"])
@pytest.mark.parametrize("page", PAGES)
def test_a_real_page_is_read_as_the_clients_parser_reads_it(page, order, ends):
    text = (CAPTURES / page).read_text()
    wanted = samples(text)
    names = list(wanted)
    if order == "reversed":
        names.reverse()
    if order == "shuffled":
        random.Random(7).shuffle(names)
    exposition = Exposition(text.replace("\n", ends).encode())
    assert {name: read(exposition, name) for name in names} == wanted


LINES = [
    (" 4", {}, 4.0),
    (" 4.0 1700000000000", {}, 4.0),
    ("\t 4.0\t1700000000000", {}, 4.0),
    (" 1.79602763566e+09\r", {}, 1.79602763566e09),
    (" -2", {}, -2.0),
    (" +Inf", {}, inf),
    ('{a="b"} 5', {"a": "b"}, 5.0),
    ('{a="b"}5', {"a": "b"}, 5.0),
    ('{a="b",} 5', {"a": "b"}, 5.0),
    ('{z="1",a="2"} 5', {"z": "1", "a": "2"}, 5.0),
    (' { a = "b" , c\t=\t"d" } 5', {"a": "b", "c": "d"}, 5.0),
    ("{} 5", {}, 5.0),
    (r'{a="say \"b=\\\"\n"} 5', {"a": 'say "b=\\"\n'}, 5.0),
    (r'{a="\\n"} 5', {"a": "\\n"}, 5.0),
    (r'{a="\q"} 5', {"a": r"\q"}, 5.0),
    ('{a="} 6 {",b="x"} 5', {"a": "} 6 {", "b": "x"}, 5.0),
    ('{a="# {",b="x"} 5', {"a": "# {", "b": "x"}, 5.0),
    ('{le="1"} 5 # {trace_id="a}"} 0.7 1700000000.0', {"le": "1"}, 5.0),
    ('{le="#"} 5 1700000000 # {trace_id="#"} 0.7', {"le": "#"}, 5.0),
    (' 5 # {trace_id="x"} 0.7', {}, 5.0),
    ('{a="é"} 5', {"a": "é"}, 5.0),
    ('{a="1",a="2"} 5', {"a": "1"}, 5.0),
]


@pytest.mark.parametrize(("line", "wanted", "much"), LINES)
def test_a_line_is_read_however_it_is_written(line, wanted, much):
    assert Exposition(f"name{line}".encode()).lines("name") == [line.encode()]
    assert labels(line.encode()) == wanted
    assert {name: label(line.encode(), name) for name in wanted} == wanted
    assert value(line.encode()) == much


@pytest.mark.parametrize(
    "line",
    [
        "",
        " ",
        " x",
        " 1_0",
        " 1_0 5",
        " 0x10",
        " NaN",
        "{",
        "{} ",
        '{a="b"}',
        '{a="b"} x',
        '{a="b" 5',
        '{a="b 5 # {}',
        " --5",
        ' {a="#} 5',
        " " + "1" * MAX_LINE,
    ],
)
def test_what_is_no_number_is_not_taken_for_one(line):
    assert isnan(value(line.encode()))


@pytest.mark.parametrize("text", [b"", b" ", b"None", b"1_000", b"1e", b"\xff", b"True"])
def test_no_number(text):
    assert isnan(number(text))


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('{a="b"} 5', "b"),
        ('{my_size="1"} 5', "size"),
        ('{x="a,size=",y="z"} 5', "size"),
        ('{x="size=",y="z"} 5', "size"),
        (r'{x=",size=\"9\""} 5', "size"),
        ('{le="1"} 5 # {size="9"} 0.7', "size"),
        (" 5", "size"),
        ("size", "size"),
        ("s", "s"),
        ('size="1"', "size"),
        ('size="1",', "size"),
        ('{size="1', "size"),
        ("{size=1} 5", "size"),
        ("", "size"),
    ],
)
def test_a_label_that_only_looks_like_one_is_none(line, name):
    assert label(line.encode(), name) is None
    assert name not in labels(line.encode())


def test_a_label_is_found_behind_what_looks_like_it():
    line = rb'{my_size="1",x="size=\"2\"",y=",size=",size="3"} 5'
    assert label(line, "size") == "3"
    assert label(line.replace(rb"\"", b""), "size") == "3"


def test_a_name_is_not_the_beginning_of_another():
    text = b'wait_by{r="a"} 1\nwait_by{r="b"} 2\nwait_total 3\n# HELP wait Waiting.\n# TYPE wait gauge\nwait{e="0"} 4\n'
    page = Exposition(text)
    assert page.lines("wait") == [b'{e="0"} 4']
    assert page.lines("wait_by") == [b'{r="a"} 1', b'{r="b"} 2']
    assert page.lines("wai") == []
    assert page.lines("ait") == []
    assert page.lines("Waiting.") == []


def test_created_gauges_beside_counters_are_left_alone():
    text = (
        b'# HELP n_total N.\n# TYPE n_total counter\nn_total{e="0"} 4.0\nn_total{e="1"} 5.0\n'
        b'# HELP n_created N.\n# TYPE n_created gauge\nn_created{e="0"} 1.7e+09\nn_created{e="1"} 1.7e+09\n'
    )
    assert Exposition(text).lines("n_total") == [b'{e="0"} 4.0', b'{e="1"} 5.0']
    assert Exposition(text).lines("n") == []


def test_sums_and_counts_of_every_rank_are_found_in_any_order():
    text = b"# TYPE a gauge\na 1\n# TYPE h histogram\n" + b"".join(
        b'h_bucket{e="%d",le="+Inf"} 1\nh_count{e="%d"} 2\nh_sum{e="%d"} 3\n' % (e, e, e) for e in range(3)
    )
    for names in (["a", "h_sum", "h_count"], ["h_count", "a", "h_sum"], ["h_sum", "h_count", "h_sum", "a"]):
        page = Exposition(text)
        assert [len(page.lines(name)) for name in names] == [1 if name == "a" else 3 for name in names]


def test_comments_and_marks_in_labels_do_not_end_a_family():
    text = b'a{x="#"} 1\n# note\n#TYPE a\n#\n' + b'a{x="####"} 2\n' * 40 + b"# TYPE b gauge\nb 3\na 4\n"
    assert len(Exposition(text).lines("a")) == 41


def test_a_page_without_type_lines_is_read_too():
    assert Exposition(b"a 1\nab 2\nb 2\na 3").lines("a") == [b" 1", b" 3"]


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"\n\n\n", b"a", b"a\n", b"# TYPE a gauge", b"# a 1", b" a 1", b"b 1\xff\x00"]
)
def test_pages_without_the_name(text):
    assert Exposition(text).lines("a") == []


def test_a_page_over_the_bound_is_taken_as_empty():
    filler = b"x" * (MAX_BYTES - 4)
    assert Exposition(b"a 1\n" + filler).lines("a") == [b" 1"]
    assert Exposition(b"a 1\n" + filler + b"x").lines("a") == []


def test_a_name_with_too_many_lines_ends_in_one_that_cannot_be_read():
    assert Exposition(b"a 1\n" * MAX_LINES).lines("a") == [b" 1"] * MAX_LINES
    assert Exposition(b"a 1\n" * (MAX_LINES + 1)).lines("a") == [b" 1"] * MAX_LINES + [UNREADABLE]
    assert isnan(value(UNREADABLE))
    assert Exposition(b"ab 1\n" * (MAX_LINES + 1) + b"a 1\n").lines("a") == []


def test_a_line_over_the_bound_has_neither_value_nor_labels():
    line = b'{b="1",a="' + b"x" * MAX_LINE + b'"} 5'
    assert isnan(value(line))
    assert labels(line) == {}


def test_labels_over_the_bound_are_not_read():
    line = b"{%b} 5" % b",".join(b'a%d="%d"' % (each, each) for each in range(MAX_LABELS + 1))
    assert len(labels(line)) == MAX_LABELS
    assert value(line) == 5
