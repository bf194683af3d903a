"""SGLang: a real page, older names, pipeline stages, and a full queue."""

from __future__ import annotations

from pathlib import Path

from gateway.fleet.engines.sglang import SGLANG
from gateway.fleet.signals import Signal, read_signals

CAPTURES = Path(__file__).parents[3] / "captures" / "sglang-0.5.23"
LOADED = (CAPTURES / "metrics-loaded.txt").read_bytes()


def test_a_loaded_engine():
    found = read_signals(SGLANG, LOADED)
    assert found.missing == frozenset()
    assert found.values == {
        Signal.PREFILL_SUM: 0.5629032679976262,
        Signal.PREFILL_COUNT: 59,
        Signal.QUEUE_SUM: 0.04173509499969441,
        Signal.QUEUE_COUNT: 59,
        Signal.STEPS: 53 + 1060,
        Signal.PROMPT_TOKENS: 2302 + 1051,
        Signal.GENERATION_TOKENS: 1228,
        Signal.CACHE_QUERIES: 2302 + 1051,
        Signal.CACHE_HITS: 1051,
        Signal.KV_TOKENS: 8675379,
        Signal.BLOCK_SIZE: 1,
        Signal.RUNNING: 4,
        Signal.WAITING: 8,
        Signal.KV_USE: 0,
        Signal.TTFT_SUM: 0.4729118767786531 + 1.7011863299999277,
        Signal.TTFT_COUNT: 30 + 22,
        Signal.ITL_SUM: 4.274642455000958,
        Signal.ITL_COUNT: 1012,
    }


def test_a_retraction_is_a_preemption_and_shows_once_there_was_one():
    assert Signal.PREEMPTIONS not in read_signals(SGLANG, LOADED).values
    text = LOADED + b'# TYPE r counter\nsglang:num_retracted_requests_total{pp_rank="0"} 3.0\n'
    assert read_signals(SGLANG, text).values[Signal.PREEMPTIONS] == 3


def test_older_names_of_token_counts():
    text = b"".join(line + b"\n" for line in LOADED.split(b"\n") if b"realtime" not in line and b"passes" not in line)
    found = read_signals(SGLANG, text)
    assert found.missing == frozenset()
    assert found.values[Signal.PROMPT_TOKENS] == found.values[Signal.CACHE_QUERIES] == 882 + 454
    assert found.values[Signal.GENERATION_TOKENS] == 285 + 773
    assert found.values[Signal.CACHE_HITS] == 1015
    # Those move when a request ends, which says nothing of one that is at work.
    assert not set(SGLANG.progress) & set(found.values)


def test_a_request_counts_once_however_many_stages_it_passes():
    stages = [LOADED.replace(b'pp_rank="0"', b'pp_rank="%d"' % stage) for stage in (0, 1)]
    lines = [
        pair for pages in zip(*(page.split(b"\n") for page in stages), strict=True) for pair in dict.fromkeys(pages)
    ]
    found = read_signals(SGLANG, b"\n".join(lines)).values
    assert found == read_signals(SGLANG, LOADED).values


def test_ranks_of_data_parallelism_are_summed():
    text = b'sglang:num_running_reqs{dp_rank="0"} 3\nsglang:num_running_reqs{dp_rank="1"} 4\n'
    text += b'# TYPE k gauge\nsglang:token_usage{dp_rank="0"} 0.3\nsglang:token_usage{dp_rank="1"} 0.4\n'
    found = read_signals(SGLANG, text).values
    assert (found[Signal.RUNNING], found[Signal.KV_USE]) == (7, 0.4)


def test_its_health_is_slow():
    assert SGLANG.health_patience > 2 * 1.0
    assert SGLANG.version_path is None
