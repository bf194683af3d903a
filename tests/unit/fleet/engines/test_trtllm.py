"""TensorRT-LLM: a page with the names of its collector. There is no capture of a real one."""

from __future__ import annotations

from gateway.fleet.engines.trtllm import TRTLLM
from gateway.fleet.signals import Signal, read_signals

LABELS = 'engine_type="pytorch",model_name="m"'
PAGE = "".join(
    f"# HELP trtllm_{name} Help.\n# TYPE trtllm_{name} {kind}\n" + "".join(f"trtllm_{line}\n" for line in lines)
    for name, kind, lines in (
        ("request_success_total", "counter", [f'request_success_total{{{LABELS},finished_reason="stop"}} 7.0']),
        (
            "time_to_first_token_seconds",
            "histogram",
            [
                f"time_to_first_token_seconds_sum{{{LABELS}}} 1.5",
                f'time_to_first_token_seconds_bucket{{le="+Inf",{LABELS}}} 7.0',
                f"time_to_first_token_seconds_count{{{LABELS}}} 7.0",
            ],
        ),
        ("prompt_tokens_total", "counter", [f"prompt_tokens_total{{{LABELS}}} 700.0"]),
        ("generation_tokens_total", "counter", [f"generation_tokens_total{{{LABELS}}} 70.0"]),
        ("kv_cache_utilization", "gauge", [f'kv_cache_utilization{{{LABELS},pid="9"}} 0.25']),
        ("kv_cache_gen_alloc_blocks_total", "counter", [f"kv_cache_gen_alloc_blocks_total{{{LABELS}}} 12.0"]),
        ("num_requests_running", "gauge", [f'num_requests_running{{{LABELS},pid="9"}} 3.0']),
        ("num_requests_waiting", "gauge", [f'num_requests_waiting{{{LABELS},pid="9"}} 2.0']),
        ("kv_cache_tokens_per_block", "gauge", [f'kv_cache_tokens_per_block{{{LABELS},pid="9"}} 32.0']),
        ("prompt_cached_tokens_total", "counter", [f"prompt_cached_tokens_total{{{LABELS}}} 128.0"]),
    )
)


def test_a_page_of_a_working_engine():
    found = read_signals(TRTLLM, PAGE.encode())
    assert found.missing == frozenset()
    assert found.values == {
        Signal.TTFT_SUM: 1.5,
        Signal.TTFT_COUNT: 7,
        Signal.PROMPT_TOKENS: 700,
        Signal.CACHE_QUERIES: 700,
        Signal.CACHE_HITS: 128,
        Signal.GENERATION_TOKENS: 70,
        Signal.KV_USE: 0.25,
        Signal.STEPS: 12,
        Signal.RUNNING: 3,
        Signal.WAITING: 2,
        Signal.BLOCK_SIZE: 32,
    }


def test_a_release_with_latencies_alone_shows_what_it_lacks():
    only = "".join(line + "\n" for line in PAGE.split("\n") if "time_to_first" in line)
    assert read_signals(TRTLLM, only.encode()).missing == {Signal.RUNNING, Signal.WAITING, Signal.KV_USE}


def test_the_page_is_the_one_that_reading_does_not_empty():
    assert TRTLLM.metrics_path == "/prometheus/metrics"
    json = b'[{"iter":7,"numActiveRequests":3,"numQueuedRequests":1,"kvCacheStats":{"usedNumBlocks":4}}]'
    assert read_signals(TRTLLM, json) == ({}, TRTLLM.expected)


def test_progress_is_not_read_from_what_moves_when_a_request_ends():
    assert TRTLLM.progress == (Signal.STEPS, Signal.KV_USE)
