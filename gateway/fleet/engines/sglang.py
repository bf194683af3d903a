"""SGLang: answers and names captured from 0.5.23; older names and what each means from its source.

Metrics only with ``--enable-metrics``, and only those of requests once there was one. A series stands for each
data-parallel rank and each pipeline stage, so counts are taken from the first stage. With
``--enable-metrics-for-all-schedulers`` there is also one for each tensor-parallel rank, and each request counts that
many times.

``prompt_tokens_total`` and ``generation_tokens_total`` move only when a request ends (captured: four requests running,
216 tokens made, neither had moved). What moves at each forward pass is ``cuda_graph_passes_total``, with or without a
graph, and ``realtime_tokens_total``, whose ``decode`` leaves out each request's first token. Gauges are refreshed at
intervals of decoding steps and may lag by tenths of a second. ``token_usage`` is rounded to two digits;
``full_token_usage`` is not, but speaks of full-attention layers alone.

``/health`` makes a token and takes 1.0 s at least, each further look 1 s more; it turns 503 at SIGTERM while all
requests, new ones too, are still served. A full queue is a 503, in a stream inside an error event. When the scheduler
dies connections just break. No version path. Any name of a model is served, so names are the gateway's to check.
"""

from __future__ import annotations

from types import MappingProxyType

from gateway.fleet.engines.base import Adapter
from gateway.fleet.signals import Signal, Source

_FIRST_STAGE = ("pp_rank", frozenset({"0"}))
_PREFILL = (("stage", frozenset({"prefill_forward"})), _FIRST_STAGE)
_STAGES = "sglang:per_stage_req_latency_seconds"
_TOKENS = "sglang:realtime_tokens_total"


def _first_stage(*names: str) -> Source:
    return Source(names, where=(_FIRST_STAGE,))


def _tokens(older: str, *modes: str) -> Source:
    return Source((_TOKENS, older), where=(("mode", frozenset(modes)), _FIRST_STAGE))


SGLANG = Adapter(
    name="sglang",
    owners=frozenset({"sglang"}),
    signals=MappingProxyType(
        {
            Signal.PREFILL_SUM: Source((f"{_STAGES}_sum",), where=_PREFILL),
            Signal.PREFILL_COUNT: Source((f"{_STAGES}_count",), where=_PREFILL),
            Signal.QUEUE_SUM: _first_stage("sglang:queue_time_seconds_sum"),
            Signal.QUEUE_COUNT: _first_stage("sglang:queue_time_seconds_count"),
            Signal.PREEMPTIONS: _first_stage("sglang:num_retracted_requests_total"),
            Signal.STEPS: _first_stage("sglang:cuda_graph_passes_total", _TOKENS),
            Signal.PROMPT_TOKENS: _tokens("sglang:prompt_tokens_total", "prefill_compute", "prefill_cache"),
            Signal.GENERATION_TOKENS: _tokens("sglang:generation_tokens_total", "decode"),
            Signal.CACHE_QUERIES: _tokens("sglang:prompt_tokens_total", "prefill_compute", "prefill_cache"),
            Signal.CACHE_HITS: _tokens("sglang:cached_tokens_total", "prefill_cache"),
            Signal.KV_TOKENS: _first_stage("sglang:max_total_num_tokens"),
            Signal.BLOCK_SIZE: Source(("sglang:page_size",), max),
            Signal.RUNNING: _first_stage("sglang:num_running_reqs"),
            Signal.WAITING: _first_stage("sglang:num_queue_reqs"),
            Signal.KV_USE: Source(("sglang:token_usage",), max, most=1.0),
            Signal.TTFT_SUM: Source(("sglang:time_to_first_token_seconds_sum",)),
            Signal.TTFT_COUNT: Source(("sglang:time_to_first_token_seconds_count",)),
            Signal.ITL_SUM: Source(("sglang:inter_token_latency_seconds_sum",)),
            Signal.ITL_COUNT: Source(("sglang:inter_token_latency_seconds_count",)),
        }
    ),
    expected=frozenset(
        {
            Signal.RUNNING,
            Signal.WAITING,
            Signal.KV_USE,
            Signal.PROMPT_TOKENS,
            Signal.GENERATION_TOKENS,
            Signal.TTFT_SUM,
            Signal.TTFT_COUNT,
        }
    ),
    progress=(Signal.STEPS,),
    version_path=None,
    health_patience=5.0,
    cache_salt=True,
)
