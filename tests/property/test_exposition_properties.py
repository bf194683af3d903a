"""Whatever a page says, prometheus_client reads the same from it; whatever bytes come, nothing is raised."""

from __future__ import annotations

from collections import defaultdict
from math import isfinite
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gateway.fleet.engines.adapter import ADAPTERS
from gateway.fleet.signals import Signal, read_signals
from gateway.wire.exposition import Exposition, label, labels, number, value

CAPTURES = Path(__file__).parents[1] / "captures"
PAGES = tuple(
    (CAPTURES / page / "metrics-loaded.txt").read_bytes()
    for page in ("vllm-0.32.0", "vllm-0.32.0/dp2", "vllm-0.11.0", "sglang-0.5.23")
)

# Names of which some begin with others, and labels whose names end in others.
NAMES = ("vllm:wait", "vllm:wait_by", "vllm:wait_by_sum", "vllm:waiting", "wait", "a", "a_total", "a_b_total", "b")
LABELS = ("engine", "my_engine", "e", "le", "block_size", "effective_block_size")
ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})

blanks = st.text(" \t", max_size=2)
words = st.text(max_size=6) | st.sampled_from(
    ['"', "\\", "\n", "}", "{", "#", ",", "=", 'e="', ',e="1"', "# TYPE a gauge", "\\n", '\\"', "} 7"]
)
numbers = st.floats().map(repr) | st.integers(-9, 10**9).map(str) | st.sampled_from(["NaN", "+Inf", "-Inf", "1e3"])


@st.composite
def lines(draw, name: str) -> str:
    pairs = draw(st.dictionaries(st.sampled_from(LABELS), words, max_size=3)).items()
    gap = draw(blanks)
    escaped = [f'{gap}{key}="{text.translate(ESCAPES)}"' for key, text in draw(st.permutations(list(pairs)))]
    braces = "{" + ",".join(escaped) + draw(st.sampled_from(["", ","] if escaped else [""])) + "}"
    shown = braces if escaped or draw(st.booleans()) else ""
    stamp = draw(st.sampled_from(["", " 1700000000000"]))
    return f"{name}{draw(blanks) if shown else ''}{shown} {draw(blanks)}{draw(numbers)}{stamp}{draw(blanks)}"


@st.composite
def pages(draw) -> str:
    told = []
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=6)):
        if draw(st.booleans()):
            told += [f"# HELP {name} {name} 5", f"# TYPE {name} untyped"]
        told += draw(st.lists(lines(name), min_size=1, max_size=4))
        if draw(st.integers(0, 3)) == 0:
            told.append("# a remark")
    return draw(st.sampled_from(["\n", "\r\n"])).join(told) + draw(st.sampled_from(["", "\n", "\r\n"]))


def samples(text: str) -> dict[str, list[tuple[dict[str, str], str]]]:
    found: dict[str, list[tuple[dict[str, str], str]]] = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name].append((sample.labels, repr(float(sample.value))))
    return found


@settings(max_examples=100, deadline=None)
@given(pages(), st.permutations(NAMES))
def test_what_is_read_is_what_the_clients_parser_reads(text, names):
    wanted = samples(text)
    page = Exposition(text.encode())
    for name in names:
        found = page.lines(name)
        assert [(labels(line), repr(value(line))) for line in found] == wanted.get(name, [])
        assert [{key: label(line, key) for key in LABELS} for line in found] == [
            {key: pairs.get(key) for key in LABELS} for pairs, _ in wanted.get(name, [])
        ]


def check(text: bytes) -> None:
    for adapter in ADAPTERS.values():
        reading = read_signals(adapter, text)
        assert all(isfinite(each) and each >= 0 for each in reading.values.values())
        assert set(reading.values) <= set(adapter.signals)
        assert reading.missing == adapter.expected - set(reading.values)
        assert reading.values.get(Signal.KV_USE, 0) <= 1


@settings(deadline=None)
@given(
    st.binary(max_size=300), st.lists(st.sampled_from([b"\n", b"#", b"{", b'"', b"\\", b"vllm:num_requests_running"]))
)
def test_any_bytes_give_a_reading(noise, parts):
    check(noise)
    check(noise.join(parts))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(PAGES),
    st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 300), st.binary(max_size=6)), min_size=1, max_size=12),
)
def test_a_spoilt_page_gives_a_reading(text, changes):
    for at, cut, put in changes:
        text = text[:at] + put + text[at + cut :]
    check(text)


@given(st.binary(max_size=60), st.sampled_from(LABELS))
def test_any_bytes_are_a_line(line, name):
    value(line)
    number(line)
    assert label(line, name) in (None, labels(line).get(name))
