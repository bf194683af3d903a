"""vLLM: real pages of two releases and two ranks, and the names of every release since 0.8.5."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.fleet.engines.vllm import VLLM
from gateway.fleet.signals import Reading, Signal, read_signals

CAPTURES = Path(__file__).parents[3] / "captures"


def page(name: str) -> bytes:
    return (CAPTURES / f"{name}.txt").read_bytes()


def read(name: str) -> Reading:
    return read_signals(VLLM, page(name))


def test_a_loaded_engine():
    found = read("vllm-0.32.0/metrics-loaded")
    assert found.missing == frozenset()
    assert found.values == {
        Signal.STARTED_AT: 1796027635.66,
        Signal.RUNNING: 4,
        Signal.WAITING: 8,
        Signal.SLEEPING: 0,
        Signal.KV_USE: 0.0014649331624244644,
        Signal.CACHE_QUERIES: 2712,
        Signal.CACHE_HITS: 0,
        Signal.PREEMPTIONS: 0,
        Signal.PROMPT_TOKENS: 2712,
        Signal.GENERATION_TOKENS: 1268,
        Signal.STEPS: 468,
        Signal.TTFT_COUNT: 45,
        Signal.TTFT_SUM: 2.3598906993865967,
        Signal.ITL_COUNT: 1223,
        Signal.ITL_SUM: 2.4101408819996095,
        Signal.QUEUE_COUNT: 41,
        Signal.QUEUE_SUM: 0.0010702189999847178,
        Signal.PREFILL_COUNT: 41,
        Signal.PREFILL_SUM: 1.0901329390003411,
        Signal.BLOCK_SIZE: 128,
        Signal.KV_TOKENS: 2097152,
    }


def test_an_engine_that_has_answered_nothing_gives_every_signal():
    found = read("vllm-0.32.0/metrics-idle")
    assert set(found.values) == set(VLLM.signals)
    assert found.values[Signal.RUNNING] == found.values[Signal.STEPS] == 0


def test_two_ranks_are_one_replica():
    found = read("vllm-0.32.0/dp2/metrics-loaded")
    assert found.missing == frozenset()
    assert set(VLLM.signals) - set(found.values) == {Signal.STARTED_AT}
    assert (found.values[Signal.RUNNING], found.values[Signal.WAITING]) == (8, 8)
    assert found.values[Signal.KV_USE] == pytest.approx(0.0009766221)
    assert found.values[Signal.STEPS] == 24 + 45
    assert found.values[Signal.TTFT_COUNT] == 14
    assert found.values[Signal.KV_TOKENS] == 2 * 2097152
    assert found.values[Signal.BLOCK_SIZE] == 128


def test_an_old_release():
    found = read("vllm-0.11.0/metrics-loaded")
    assert found.missing == frozenset()
    assert set(VLLM.signals) - set(found.values) == {Signal.SLEEPING}
    assert (found.values[Signal.RUNNING], found.values[Signal.WAITING]) == (4, 8)
    assert (found.values[Signal.ITL_COUNT], found.values[Signal.STEPS]) == (744, 276)
    assert found.values[Signal.KV_TOKENS] == 16384 * 128


@pytest.mark.parametrize(("state", "sleeping"), [("awake", 0), ("weights_offloaded", 1), ("discard_all", 1)])
def test_a_sleeping_engine_is_seen_as_such(state, sleeping):
    text = page("vllm-0.32.0/metrics-loaded")
    text = text.replace(b'sleep_state="awake"} 1.0', b'sleep_state="awake"} 0.0')
    text = text.replace(b'sleep_state="%b"} 0.0' % state.encode(), b'sleep_state="%b"} 1.0' % state.encode())
    assert read_signals(VLLM, text).values[Signal.SLEEPING] == sleeping


def test_a_renamed_gauge_is_missing_and_not_zero():
    text = page("vllm-0.32.0/metrics-loaded").replace(b"vllm:kv_cache_usage_perc", b"vllm:kv_cache_used_ratio")
    found = read_signals(VLLM, text)
    assert Signal.KV_USE not in found.values
    assert found.missing == {Signal.KV_USE}


def test_a_share_in_percent_is_garbage():
    text = b'vllm:kv_cache_usage_perc{engine="0"} 57.0\n'
    assert Signal.KV_USE in read_signals(VLLM, text).missing


# Read from the source of each release; a counter gets the suffix _total on its page, a histogram _sum and _count.
_SINCE_0_8 = "num_requests_running num_requests_waiting"
_COUNTERS = "num_preemptions_total prompt_tokens_total generation_tokens_total"
_TIMES = "time_to_first_token_seconds request_queue_time_seconds request_prefill_time_seconds"
_GPU = "gpu_cache_usage_perc gpu_prefix_cache_queries_total gpu_prefix_cache_hits_total"
_CACHE = "kv_cache_usage_perc prefix_cache_queries_total prefix_cache_hits_total"
_OLD_ITL, _ITL = "time_per_output_token_seconds", "inter_token_latency_seconds"
RELEASES = {
    "0.8.5": (_GPU, _OLD_ITL),
    "0.9.2": (f"{_GPU} {_CACHE}", _OLD_ITL),
    "0.10.2": (f"{_GPU} {_CACHE}", f"{_OLD_ITL} {_ITL}"),
    "0.11.2": (_CACHE, f"{_OLD_ITL} {_ITL}"),
    "0.12.0": (_CACHE, f"{_OLD_ITL} {_ITL}"),
    "0.14.1": (_CACHE, f"{_OLD_ITL} {_ITL}"),
    "0.17.1": (_CACHE, _ITL),
    "0.21.0": (f"{_CACHE} num_requests_waiting_by_reason", _ITL),
    "0.25.1": (f"{_CACHE} num_requests_waiting_by_reason", _ITL),
    "0.28.0": (f"{_CACHE} num_requests_waiting_by_reason", _ITL),
    "0.32.0": (f"{_CACHE} num_requests_waiting_by_reason admission_rejections_total", _ITL),
}


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_gives_all_that_is_expected(release):
    plain, itl = RELEASES[release]
    names = f"{_SINCE_0_8} {_COUNTERS} {plain}".split()
    times = [f"{name}_{part}" for name in f"{_TIMES} {itl}".split() for part in ("sum", "count", "created")]
    steps = ["iteration_tokens_total_sum", "iteration_tokens_total_count"]
    text = "".join(
        f'# TYPE vllm:{name} x\nvllm:{name}{{engine="0",model_name="m"}} 0.5\n' for name in names + times + steps
    )
    found = read_signals(VLLM, text.encode())
    assert found.missing == frozenset()
    cached = 8.0 if release == "0.8.5" else 0.5  # blocks of 16 tokens
    assert found.values[Signal.CACHE_QUERIES] == found.values[Signal.CACHE_HITS] == cached


def test_a_long_prompt_that_is_computed_alone_shows_progress():
    before = page("vllm-0.32.0/metrics-loaded")
    after = before.replace(b"} 0.0014649331624244644", b"} 0.0020")  # no step has given a token meanwhile
    first, second = (read_signals(VLLM, text).values for text in (before, after))
    assert [first[signal] for signal in VLLM.progress] != [second[signal] for signal in VLLM.progress]
