"""vLLM, 0.8.5 to 0.32.0: names read from each release's source, answers captured from 0.11.0 and 0.32.0.

Each data-parallel rank gives a series (label ``engine``). Everything is there, at 0, from the start on, except where a
version lacks it. Only steps that give a token are counted (``v1/engine/async_llm.py``), so while nothing but one long
prompt is computed in chunks no counter moves before its first token; what moves is KV use, which is told after each
step (``v1/core/sched/scheduler.py``) and grows with each chunk, and so it is among what shows progress. With several
API servers there is no ``process_start_time_seconds``.

Renamed on the way: ``gpu_cache_usage_perc`` and ``gpu_prefix_cache_*`` in 0.9 (both names until 0.10),
``time_per_output_token_seconds`` in 0.10 (both until 0.14). The prefix cache counted blocks in 0.8, of 16 tokens unless
told otherwise. ``kv_cache_size_tokens`` is the capacity of one rank; releases without it have ``num_gpu_blocks``, which
is that of all ranks together on each rank's series (captured with two ranks).
"""

from __future__ import annotations

from types import MappingProxyType

from gateway.fleet.engines.base import Adapter
from gateway.fleet.signals import Signal, Source

_ASLEEP = (("sleep_state", frozenset({"weights_offloaded", "discard_all"})),)
_BLOCK_OF_0_8 = 16.0
_CONFIG = ("vllm:cache_config_info",)
_ITL = "vllm:inter_token_latency_seconds"
_OLD_ITL = "vllm:time_per_output_token_seconds"


def _blocks(name: str) -> Source:
    return Source((name,), scale=_BLOCK_OF_0_8)


VLLM = Adapter(
    name="vllm",
    owners=frozenset({"vllm"}),
    signals=MappingProxyType(
        {
            Signal.STARTED_AT: Source(("process_start_time_seconds",), max),
            Signal.RUNNING: Source(("vllm:num_requests_running",)),
            Signal.WAITING: Source(("vllm:num_requests_waiting",)),
            Signal.SLEEPING: Source(("vllm:engine_sleep_state",), max, where=_ASLEEP),
            Signal.KV_USE: Source(("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), max, most=1.0),
            Signal.CACHE_QUERIES: Source(
                ("vllm:prefix_cache_queries_total",), otherwise=_blocks("vllm:gpu_prefix_cache_queries_total")
            ),
            Signal.CACHE_HITS: Source(
                ("vllm:prefix_cache_hits_total",), otherwise=_blocks("vllm:gpu_prefix_cache_hits_total")
            ),
            Signal.PREEMPTIONS: Source(("vllm:num_preemptions_total",)),
            Signal.PROMPT_TOKENS: Source(("vllm:prompt_tokens_total",)),
            Signal.GENERATION_TOKENS: Source(("vllm:generation_tokens_total",)),
            Signal.STEPS: Source(("vllm:iteration_tokens_total_count",)),
            Signal.TTFT_COUNT: Source(("vllm:time_to_first_token_seconds_count",)),
            Signal.TTFT_SUM: Source(("vllm:time_to_first_token_seconds_sum",)),
            Signal.ITL_COUNT: Source((f"{_ITL}_count", f"{_OLD_ITL}_count")),
            Signal.ITL_SUM: Source((f"{_ITL}_sum", f"{_OLD_ITL}_sum")),
            Signal.QUEUE_COUNT: Source(("vllm:request_queue_time_seconds_count",)),
            Signal.QUEUE_SUM: Source(("vllm:request_queue_time_seconds_sum",)),
            Signal.PREFILL_COUNT: Source(("vllm:request_prefill_time_seconds_count",)),
            Signal.PREFILL_SUM: Source(("vllm:request_prefill_time_seconds_sum",)),
            Signal.BLOCK_SIZE: Source(_CONFIG, max, label="block_size"),
            Signal.KV_TOKENS: Source(
                _CONFIG,
                label="kv_cache_size_tokens",
                otherwise=Source(_CONFIG, max, label="num_gpu_blocks", times="block_size"),
            ),
        }
    ),
    expected=frozenset(
        {
            Signal.RUNNING,
            Signal.WAITING,
            Signal.KV_USE,
            Signal.PROMPT_TOKENS,
            Signal.GENERATION_TOKENS,
            Signal.STEPS,
            Signal.PREEMPTIONS,
            Signal.CACHE_QUERIES,
            Signal.CACHE_HITS,
            Signal.TTFT_SUM,
            Signal.TTFT_COUNT,
            Signal.PREFILL_SUM,
            Signal.PREFILL_COUNT,
            Signal.QUEUE_SUM,
            Signal.QUEUE_COUNT,
            Signal.ITL_SUM,
            Signal.ITL_COUNT,
        }
    ),
    progress=(Signal.STEPS, Signal.GENERATION_TOKENS, Signal.PROMPT_TOKENS, Signal.KV_USE),
    cache_salt=True,
)
