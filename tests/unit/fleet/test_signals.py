"""How a table of names becomes numbers, and what is missing. The engines' own tables are tested beside this."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

import pytest

from gateway.fleet.signals import Reading, Signal, Source, read_signals
from gateway.wire.exposition import MAX_BYTES, MAX_LINES


class Table(NamedTuple):
    signals: Mapping[Signal, Source]
    expected: frozenset[Signal]


def reading(source: Source, *lines: str) -> Reading:
    table = Table({Signal.RUNNING: source}, frozenset({Signal.RUNNING}))
    return read_signals(table, "\n".join(lines).encode())


def seen(source: Source, *lines: str) -> float | None:
    """The value; and that it is missing exactly if there is none."""
    found = reading(source, *lines)
    assert found.missing == (frozenset() if found.values else {Signal.RUNNING})
    return found.values.get(Signal.RUNNING)


RANKS = ('n{engine="0"} 3', 'n{engine="1"} 5.5', 'n{engine="2"} 0')


@pytest.mark.parametrize(("fold", "wanted"), [(sum, 8.5), (max, 5.5), (min, 0.0)])
def test_ranks_are_folded_into_one_number(fold, wanted):
    assert seen(Source(("n",), fold), *RANKS) == wanted


def test_the_newest_name_that_is_present_is_read():
    source = Source(("new", "old"))
    assert seen(source, "old 1", "new 2") == 2
    assert seen(source, "old 1") == 1
    assert seen(source, "older 1") is None
    assert seen(source, "old 1", "new NaN") is None  # garbage under a name is not the absence of it


@pytest.mark.parametrize("text", ["NaN", "-1", "+Inf", "-Inf", "1e999", "x", "1_0", "", "0x10"])
def test_a_rank_whose_number_is_garbage_spoils_the_whole(text):
    assert seen(Source(("n",)), f"n {text}") is None
    for fold in (sum, max, min):
        assert seen(Source(("n",), fold), *RANKS, f'n{{engine="3"}} {text}') is None


def test_a_sum_beyond_all_numbers_is_garbage():
    assert seen(Source(("n",)), 'n{e="0"} 1e308', 'n{e="1"} 1e308') is None
    assert seen(Source(("n",), scale=10.0), "n 1e308") is None


def test_a_number_is_scaled_and_held_to_what_it_may_be_at_most():
    assert seen(Source(("n",), scale=16.0), *RANKS) == 136
    assert seen(Source(("n",), scale=0.01, most=1.0), "n 100") == 1
    assert seen(Source(("n",), most=1.0), "n 1.01") is None


def test_series_are_chosen_by_labels_and_those_without_them_are_kept():
    source = Source(("new", "old"), where=(("mode", frozenset({"a", "b"})), ("pp_rank", frozenset({"0"}))))
    lines = ('new{mode="a"} 1', 'new{mode="b",pp_rank="0"} 2', 'new{mode="c"} 4', 'new{mode="a",pp_rank="1"} 8')
    assert seen(source, *lines, "old 16") == 3
    assert seen(source, lines[2], "old 16") == 16
    assert seen(source, "old 16", 'old{pp_rank="1"} 32') == 16


def test_a_number_may_stand_in_a_label():
    source = Source(("info",), max, label="size")
    assert seen(source, 'info{my_size="9",size="128"} 1') == 128
    assert seen(source, 'info{size="64"} 1', 'info{size="128"} 1') == 128
    for text in ("None", "True", "", "-1", "inf", "nan"):
        assert seen(source, f'info{{size="{text}"}} 1') is None
    assert seen(source, "info 1") is None


def test_a_number_in_a_label_may_be_multiplied_by_another():
    source = Source(("info",), max, label="blocks", times="size")
    assert seen(source, 'info{blocks="10",size="16"} 1') == 160
    for size in ("None", "x", ""):
        assert seen(source, f'info{{blocks="10",size="{size}"}} 1') is None
    assert seen(source, 'info{blocks="10"} 1') is None


def test_a_label_that_only_some_ranks_have_spoils_the_whole():
    source = Source(("info",), label="size", otherwise=Source(("info",)))
    assert seen(source, 'info{size="64"} 1', 'info{size="None"} 1') is None
    assert seen(source, 'info{size="64"} 1', "info 1") is None


def test_what_is_not_present_is_read_elsewhere():
    source = Source(("info",), label="size", otherwise=Source(("info",), max, label="blocks", otherwise=Source(("n",))))
    assert seen(source, 'info{size="64",blocks="9"} 1') == 64
    assert seen(source, 'info{size="None",blocks="9"} 1') == 9
    assert seen(source, 'info{size="x",blocks="9"} 1') is None
    assert seen(source, "info 1", "n 5") == 5
    assert seen(source, "n 5") == 5
    assert seen(source) is None


def test_more_series_than_can_be_of_one_engine_are_garbage():
    lines = [f'n{{engine="{each}"}} 1' for each in range(MAX_LINES)]
    assert seen(Source(("n",)), *lines) == MAX_LINES
    assert seen(Source(("n",)), *lines, "n 1") is None
    info = ['n{size="1"} 1'] * (MAX_LINES + 1)
    assert seen(Source(("n",), label="size"), *info) is None


def test_a_page_that_is_too_big_says_nothing():
    assert seen(Source(("n",)), "n 1", "x" * MAX_BYTES) is None


def test_only_what_is_expected_can_be_missing():
    table = Table(
        {Signal.RUNNING: Source(("n",)), Signal.KV_USE: Source(("k",)), Signal.STEPS: Source(("s",))},
        frozenset({Signal.RUNNING, Signal.KV_USE}),
    )
    assert read_signals(table, b"k 0.5\n") == ({Signal.KV_USE: 0.5}, {Signal.RUNNING})
    assert read_signals(table, b"") == ({}, {Signal.RUNNING, Signal.KV_USE})
    assert read_signals(table, b"n 1\nk 0\ns 2") == (
        {Signal.RUNNING: 1.0, Signal.KV_USE: 0.0, Signal.STEPS: 2.0},
        frozenset(),
    )


def test_a_reading_cannot_be_changed():
    found = reading(Source(("n",)), "n 1")
    with pytest.raises(TypeError):
        found.values[Signal.RUNNING] = 2  # type: ignore[index]


def test_the_signals_are_a_closed_set_that_metrics_may_name():
    assert {str(each) for each in Signal} == {
        "running", "waiting", "kv_use", "prompt_tokens", "generation_tokens", "steps", "preemptions", "cache_queries",
        "cache_hits", "ttft_sum", "ttft_count", "prefill_sum", "prefill_count", "queue_sum", "queue_count", "itl_sum",
        "itl_count", "sleeping", "started_at", "kv_tokens", "block_size",
    }  # fmt: skip


def test_by_default_a_number_has_no_bound():
    assert Source(("n",)).most == inf
