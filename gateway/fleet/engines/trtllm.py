"""TensorRT-LLM's ``trtllm-serve``. Read from its source and pull requests, not captured.

Sources: ``tensorrt_llm/metrics/collector.py`` at commit 050f80de (2026) and ``serve/openai_server.py`` of the same time
and at 00057725; the page came with pull request 5785, its iteration metrics with 12545 (March 2026), those of the
prompt cache with 12636.

``/metrics`` is JSON, a list of iterations since someone last asked: what one reader takes, another does not see, so two
gateways would each see a part. Hence ``/prometheus/metrics``, which is there with ``return_perf_metrics: true``; the
gauges also need ``enable_iter_perf_stats: true``, and all of it a first request. Releases before 12545 have only
latencies, and show as missing signals.

Token counters move only when a request ends. What moves while it works is the count of KV blocks given to decoding, one
for each ``tokens_per_block`` tokens of a request, and with it KV use, which a prefill moves too.
``time_per_output_token`` is one mean per request, so its sum over its count is a mean of means. Every gauge has a label
``pid``.

It answers under any model's name (no check in the source), and takes ``cache_salt``.
"""

from __future__ import annotations

from types import MappingProxyType

from gateway.fleet.engines.base import Adapter
from gateway.fleet.signals import Signal, Source

TRTLLM = Adapter(
    name="tensorrt-llm",
    owners=frozenset({"tensorrt_llm"}),
    signals=MappingProxyType(
        {
            Signal.TTFT_SUM: Source(("trtllm_time_to_first_token_seconds_sum",)),
            Signal.TTFT_COUNT: Source(("trtllm_time_to_first_token_seconds_count",)),
            Signal.ITL_SUM: Source(("trtllm_time_per_output_token_seconds_sum",)),
            Signal.ITL_COUNT: Source(("trtllm_time_per_output_token_seconds_count",)),
            Signal.QUEUE_SUM: Source(("trtllm_request_queue_time_seconds_sum",)),
            Signal.QUEUE_COUNT: Source(("trtllm_request_queue_time_seconds_count",)),
            Signal.PREFILL_SUM: Source(("trtllm_request_prefill_time_seconds_sum",)),
            Signal.PREFILL_COUNT: Source(("trtllm_request_prefill_time_seconds_count",)),
            Signal.PROMPT_TOKENS: Source(("trtllm_prompt_tokens_total",)),
            Signal.CACHE_QUERIES: Source(("trtllm_prompt_tokens_total",)),
            Signal.GENERATION_TOKENS: Source(("trtllm_generation_tokens_total",)),
            Signal.KV_USE: Source(("trtllm_kv_cache_utilization",), max, most=1.0),
            Signal.STEPS: Source(("trtllm_kv_cache_gen_alloc_blocks_total",)),
            Signal.RUNNING: Source(("trtllm_num_requests_running",)),
            Signal.WAITING: Source(("trtllm_num_requests_waiting",)),
            Signal.BLOCK_SIZE: Source(("trtllm_kv_cache_tokens_per_block",), max),
            Signal.CACHE_HITS: Source(("trtllm_prompt_cached_tokens_total",)),
        }
    ),
    expected=frozenset({Signal.RUNNING, Signal.WAITING, Signal.KV_USE, Signal.TTFT_SUM, Signal.TTFT_COUNT}),
    progress=(Signal.STEPS, Signal.KV_USE),
    metrics_path="/prometheus/metrics",
    cache_salt=True,
)
