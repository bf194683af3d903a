"""The metric families of vLLM 0.32.0: names, types, help texts, labels and bucket bounds (captured, idle server).

Each counter and histogram has a `_created` gauge beside it, which the writer adds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """`labels` are the label sets besides engine and model_name, in the order the server writes them."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ("",)
    bounds: tuple[float, ...] | None = None
    """Upper bounds of the buckets without +Inf. A histogram without any has 1, 2, 5, 10 ... up to max_model_len."""


_STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
_COPIES = (1.0, 2.0, 5.0, 10.0, 20.0)
_TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    640.0,
    2560.0,
)
_GAPS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_SPANS = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
    960.0,
    1920.0,
    7680.0,
)
_FEW = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)

FAMILIES: tuple[Family, ...] = (
    Family(
        "vllm:estimated_flops_per_gpu_total",
        "counter",
        "Estimated number of floating point operations per GPU (for Model Flops Utilization calculations).",
    ),
    Family(
        "vllm:estimated_read_bytes_per_gpu_total",
        "counter",
        "Estimated number of bytes read from memory per GPU (for Model Flops Utilization calculations).",
    ),
    Family(
        "vllm:estimated_write_bytes_per_gpu_total",
        "counter",
        "Estimated number of bytes written to memory per GPU (for Model Flops Utilization calculations).",
    ),
    Family("vllm:num_requests_running", "gauge", "Number of requests in model execution batches."),
    Family("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed."),
    Family(
        "vllm:num_requests_waiting_by_reason",
        "gauge",
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; "
        "'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of "
        "all reasons equals vllm:num_requests_waiting.",
        labels=(
            'reason="capacity"',
            'reason="deferred"',
        ),
    ),
    Family(
        "vllm:engine_sleep_state",
        "gauge",
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
        "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
        labels=(
            'sleep_state="awake"',
            'sleep_state="weights_offloaded"',
            'sleep_state="discard_all"',
        ),
    ),
    Family("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage."),
    Family("vllm:prefix_cache_queries_total", "counter", "Prefix cache queries, in terms of number of queried tokens."),
    Family("vllm:prefix_cache_hits_total", "counter", "Prefix cache hits, in terms of number of cached tokens."),
    Family(
        "vllm:external_prefix_cache_queries_total",
        "counter",
        "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of "
        "queried tokens.",
    ),
    Family(
        "vllm:external_prefix_cache_hits_total",
        "counter",
        "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of "
        "cached tokens.",
    ),
    Family("vllm:mm_cache_queries_total", "counter", "Multi-modal cache queries, in terms of number of queried items."),
    Family("vllm:mm_cache_hits_total", "counter", "Multi-modal cache hits, in terms of number of cached items."),
    Family("vllm:num_preemptions_total", "counter", "Cumulative number of preemption from the engine."),
    Family("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed."),
    Family(
        "vllm:prompt_tokens_by_source_total",
        "counter",
        "Number of prompt tokens by source.",
        labels=(
            'source="local_compute"',
            'source="local_cache_hit"',
            'source="external_kv_transfer"',
        ),
    ),
    Family("vllm:prompt_tokens_cached_total", "counter", "Number of cached prompt tokens (local + external)."),
    Family(
        "vllm:prompt_tokens_cached_by_source_total",
        "counter",
        "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded "
        "to DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at "
        "admission; sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
        labels=(
            'source="device"',
            'source="host"',
            'source="p2p"',
            'source="disk"',
            'source="external_unspecified"',
        ),
    ),
    Family("vllm:generation_tokens_total", "counter", "Number of generation tokens processed."),
    Family(
        "vllm:request_success_total",
        "counter",
        "Count of successfully processed requests.",
        labels=(
            'finished_reason="stop"',
            'finished_reason="length"',
            'finished_reason="abort"',
            'finished_reason="error"',
            'finished_reason="repetition"',
        ),
    ),
    Family(
        "vllm:admission_rejections_total",
        "counter",
        "Number of admission attempts rejected by a queue limit, by reason.",
        labels=(
            'reason="max_num_queued_reqs"',
            'reason="max_num_queued_tokens"',
        ),
    ),
    Family("vllm:request_prompt_tokens", "histogram", "Number of prefill tokens processed."),
    Family(
        "vllm:request_generation_tokens",
        "histogram",
        "Number of generation tokens processed.",
    ),
    Family(
        "vllm:iteration_tokens_total",
        "histogram",
        "Histogram of number of tokens per engine_step.",
        bounds=_STEP_TOKENS,
    ),
    Family(
        "vllm:request_max_num_generation_tokens",
        "histogram",
        "Histogram of maximum number of requested generation tokens.",
    ),
    Family("vllm:request_params_n", "histogram", "Histogram of the n request parameter.", bounds=_COPIES),
    Family(
        "vllm:request_params_max_tokens",
        "histogram",
        "Histogram of the max_tokens request parameter.",
    ),
    Family(
        "vllm:time_to_first_token_seconds",
        "histogram",
        "Histogram of time to first token in seconds.",
        bounds=_TTFT,
    ),
    Family(
        "vllm:inter_token_latency_seconds",
        "histogram",
        "Histogram of inter-token latency in seconds.",
        bounds=_GAPS,
    ),
    Family(
        "vllm:request_time_per_output_token_seconds",
        "histogram",
        "Histogram of time_per_output_token_seconds per request.",
        bounds=_GAPS,
    ),
    Family(
        "vllm:e2e_request_latency_seconds",
        "histogram",
        "Histogram of e2e request latency in seconds.",
        bounds=_SPANS,
    ),
    Family(
        "vllm:request_queue_time_seconds",
        "histogram",
        "Histogram of time spent in WAITING phase for request.",
        bounds=_SPANS,
    ),
    Family(
        "vllm:request_inference_time_seconds",
        "histogram",
        "Histogram of time spent in RUNNING phase for request.",
        bounds=_SPANS,
    ),
    Family(
        "vllm:request_prefill_time_seconds",
        "histogram",
        "Histogram of time spent in PREFILL phase for request.",
        bounds=_SPANS,
    ),
    Family(
        "vllm:request_decode_time_seconds",
        "histogram",
        "Histogram of time spent in DECODE phase for request.",
        bounds=_SPANS,
    ),
    Family(
        "vllm:request_num_preemptions",
        "histogram",
        "Histogram of the number of times a request was preempted.",
        bounds=_FEW,
    ),
    Family(
        "vllm:request_prefill_kv_computed_tokens",
        "histogram",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
    ),
)
