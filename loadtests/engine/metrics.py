"""The engine's counters and their exposition text, with the family names, labels and bounds that vLLM 0.32.0 has."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from loadtests.engine.counting import Gauges, Histogram, head, number, token_bounds
from loadtests.engine.families import FAMILIES, Family
from loadtests.engine.scheduler import Job, Step, Token
from loadtests.engine.spec import EngineSpec

CONTENT_TYPE = b"text/plain; version=1.0.0; charset=utf-8"

_HIGH_RESOLUTION = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0, 60.0,
)  # fmt: skip
_BY_HANDLER = (0.1, 0.5, 1.0)
_SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
"""Of vllm:engine_sleep_state, in the order of the sleep levels."""


@dataclass(slots=True)
class _Handler:
    """HTTP figures of one route."""

    requests: dict[tuple[str, str], int] = field(default_factory=dict)
    durations: dict[str, Histogram] = field(default_factory=dict)
    received: list[int] = field(default_factory=lambda: [0, 0])
    sent: list[int] = field(default_factory=lambda: [0, 0])


class Metrics:
    """Counters since the start of this engine, which is a process of its own to a scraper. Times in seconds."""

    def __init__(self, spec: EngineSpec, started: float) -> None:
        self._spec = spec
        self._started = started
        self._cpu_before = time.process_time()
        self._quiet_tokens = 0
        self._values: dict[str, dict[str, float]] = {
            family.name: dict.fromkeys(family.labels, 0.0) for family in FAMILIES if family.kind != "histogram"
        }
        self._histograms = {
            family.name: Histogram(_bounds(family, spec)) for family in FAMILIES if family.kind == "histogram"
        }
        # The three that count every token or step are at hand, not behind a look-up.
        self._steps = self._histograms["vllm:iteration_tokens_total"]
        self._firsts = self._histograms["vllm:time_to_first_token_seconds"]
        self._gaps = self._histograms["vllm:inter_token_latency_seconds"]
        self._values["vllm:engine_sleep_state"]['sleep_state="awake"'] = 1.0
        self._instant: dict[tuple[int, int, int, str, int], int] = {}
        self._handlers: dict[str, _Handler] = {}
        self._highr = Histogram(_HIGH_RESOLUTION)

    def value(self, name: str, label: str = "") -> float:
        """The present value of a counter."""
        self._settle()
        return self._values[name][label]

    def step(self, step: Step, made: int) -> None:
        """Computed prompt tokens and tokens made, as vLLM adds them up."""
        if self._spec.quiet_prefill and not made:
            self._quiet_tokens += step.prefill
            return
        before, self._quiet_tokens = self._quiet_tokens, 0
        self._steps.observe(before + step.prefill + made)

    def token(self, token: Token) -> None:
        """A sequence got a token."""
        if token.gap is not None:
            self._gaps.observe(token.gap)
            return
        job = token.job
        self._firsts.observe(job.last_token - job.arrived)
        self._prompt_done(job)

    def instant(self, job: Job, reason: str, copies: int) -> None:
        """A whole sequence came at once. Equal ones are only counted here, and entered when somebody looks."""
        key = (job.prompt_tokens, job.generated, job.cached_tokens, reason, copies)
        self._instant[key] = self._instant.get(key, 0) + 1

    def _settle(self) -> None:
        """Enter what was only noted: instant sequences, and tokens (each was a first one or had a gap)."""
        self._enter_instant()
        self._values["vllm:generation_tokens_total"][""] = self._firsts.count + self._gaps.count

    def _enter_instant(self) -> None:
        entries, self._instant = self._instant, {}
        for (prompt, generated, cached, reason, copies), times in entries.items():
            job = Job(prompt, generated, generated=generated, cached_tokens=cached)
            self._steps.observe(prompt - cached + 1, times)
            self._steps.observe(1, (generated - 1) * times)
            self._firsts.observe(0.0, times)
            self._gaps.observe(0.0, (generated - 1) * times)
            self._prompt_done(job, times)
            self.finished(job, reason, copies, times)

    def _prompt_done(self, job: Job, times: int = 1) -> None:
        values, cached = self._values, job.cached_tokens * times
        prompt = job.prompt_tokens * times
        values["vllm:prompt_tokens_total"][""] += prompt
        by_source = values["vllm:prompt_tokens_by_source_total"]
        by_source['source="local_compute"'] += prompt - cached
        by_source['source="local_cache_hit"'] += cached
        values["vllm:prompt_tokens_cached_total"][""] += cached
        values["vllm:prompt_tokens_cached_by_source_total"]['source="device"'] += cached

    def finished(self, job: Job, reason: str, copies: int, times: int = 1) -> None:
        """A sequence came to its end (`times` equal ones did). Those whose client left are not counted, as in vLLM."""
        self._values["vllm:request_success_total"][f'finished_reason="{reason}"'] += times
        first, end = job.first_token or 0.0, job.finished or 0.0
        scheduled = job.scheduled or 0.0
        decode = end - first
        observations = {
            "vllm:request_prompt_tokens": job.prompt_tokens,
            "vllm:request_generation_tokens": job.generated,
            "vllm:request_max_num_generation_tokens": job.generated,
            "vllm:request_params_n": copies,
            "vllm:request_params_max_tokens": job.output_tokens,
            "vllm:request_time_per_output_token_seconds": decode / max(1, job.generated - 1),
            "vllm:e2e_request_latency_seconds": end - job.arrived,
            "vllm:request_queue_time_seconds": scheduled - job.arrived,
            "vllm:request_inference_time_seconds": end - scheduled,
            "vllm:request_prefill_time_seconds": first - scheduled,
            "vllm:request_decode_time_seconds": decode,
            "vllm:request_num_preemptions": job.preemptions,
            "vllm:request_prefill_kv_computed_tokens": job.prompt_tokens - job.cached_tokens,
        }
        for name, value in observations.items():
            self._histograms[name].observe(value, times)

    def aborted(self, job: Job) -> None:
        self._values["vllm:request_success_total"]['finished_reason="abort"'] += 1

    def slept(self, level: int) -> None:
        states = self._values["vllm:engine_sleep_state"]
        for place, state in enumerate(_SLEEP_STATES):
            states[f'sleep_state="{state}"'] = float(place == level)

    def rejected(self) -> None:
        self._values["vllm:admission_rejections_total"]['reason="max_num_queued_reqs"'] += 1

    def http(self, handler: str, method: str, status: int, *, sizes: tuple[int, int], seconds: float) -> None:
        """An HTTP answer is complete. `handler` is the route's path, or `none`; `sizes` are bytes in and out."""
        figures = self._handlers.get(handler)
        if figures is None:
            figures = self._handlers[handler] = _Handler()
        key = (method, f"{status // 100}xx")
        figures.requests[key] = figures.requests.get(key, 0) + 1
        histogram = figures.durations.get(method)
        if histogram is None:
            histogram = figures.durations[method] = Histogram(_BY_HANDLER)
        histogram.observe(seconds)
        self._highr.observe(seconds)
        figures.received[0] += 1
        figures.received[1] += sizes[0]
        figures.sent[0] += 1
        figures.sent[1] += sizes[1]

    def render(self, gauges: Gauges) -> bytes:
        """The whole exposition text."""
        self._settle()
        values = self._values
        values["vllm:num_requests_running"][""] = gauges.running
        values["vllm:num_requests_waiting"][""] = gauges.waiting
        values["vllm:num_requests_waiting_by_reason"]['reason="capacity"'] = gauges.waiting
        values["vllm:kv_cache_usage_perc"][""] = gauges.kv_usage
        values["vllm:prefix_cache_queries_total"][""] = gauges.totals.prefix_queries
        values["vllm:prefix_cache_hits_total"][""] = gauges.totals.prefix_hits
        values["vllm:num_preemptions_total"][""] = gauges.totals.preemptions
        cpu = time.process_time() - self._cpu_before
        parts = [*_process_lines(self._started, cpu), *self._family_lines(), *self._http_lines(), ""]
        return "\n".join(parts).encode()

    def _family_lines(self) -> Iterator[str]:
        model = f'model_name="{self._spec.model}"'
        created = number(self._started)
        for family in FAMILIES:
            yield from head(family.name, family.kind, family.help)
            if family.kind == "histogram":
                yield from self._histograms[family.name].lines(family.name, 'engine="0",', f",{model}")
            else:
                for label, value in self._values[family.name].items():
                    yield f"{family.name}{_labels(family, model, label)} {number(value)}"
            if family.kind in ("counter", "histogram"):
                base = family.name.removesuffix("_total") if family.kind == "counter" else family.name
                yield from head(f"{base}_created", "gauge", family.help)
                for label in family.labels:
                    yield f"{base}_created{_labels(family, model, label)} {created}"
        yield from _cache_config_lines(self._spec)

    def _http_lines(self) -> Iterator[str]:
        created = number(self._started)
        words = "Total number of requests by method, status and handler."
        rows = [
            (f'{{handler="{handler}",method="{method}",status="{status}"}}', count)
            for handler, figures in self._handlers.items()
            for (method, status), count in figures.requests.items()
        ]
        yield from head("http_requests_total", "counter", words)
        yield from (f"http_requests_total{labels} {float(count)}" for labels, count in rows)
        if rows:
            yield from head("http_requests_created", "gauge", words)
            yield from (f"http_requests_created{labels} {created}" for labels, _ in rows)
        yield from self._size_lines("http_request_size_bytes", "incoming requests", "received", created)
        yield from self._size_lines("http_response_size_bytes", "outgoing responses", "sent", created)
        yield from self._duration_lines(created)

    def _size_lines(self, name: str, what: str, which: str, created: str) -> Iterator[str]:
        words = (
            f"Content length of {what} by handler. Only value of header is respected. "
            "Otherwise ignored. No percentile calculated. "
        )
        yield from head(name, "summary", words)
        for handler, figures in self._handlers.items():
            count, size = getattr(figures, which)
            yield f'{name}_count{{handler="{handler}"}} {float(count)}'
            yield f'{name}_sum{{handler="{handler}"}} {number(size)}'
        if self._handlers:
            yield from head(f"{name}_created", "gauge", words)
            yield from (f'{name}_created{{handler="{handler}"}} {created}' for handler in self._handlers)

    def _duration_lines(self, created: str) -> Iterator[str]:
        name = "http_request_duration_highr_seconds"
        words = "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. "
        yield from head(name, "histogram", words)
        yield from self._highr.lines(name, "", "")
        yield from head(f"{name}_created", "gauge", words)
        yield f"{name}_created {created}"
        name = "http_request_duration_seconds"
        words = (
            "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. "
        )
        yield from head(name, "histogram", words)
        keys = [
            (handler, method, figures.durations[method])
            for handler, figures in self._handlers.items()
            for method in figures.durations
        ]
        for handler, method, histogram in keys:
            yield from histogram.lines(name, f'handler="{handler}",', f',method="{method}"')
        if keys:
            yield from head(f"{name}_created", "gauge", words)
            for handler, method, _ in keys:
                yield f'{name}_created{{handler="{handler}",method="{method}"}} {created}'


def _bounds(family: Family, spec: EngineSpec) -> tuple[float, ...]:
    return token_bounds(spec.max_model_len) if family.bounds is None else family.bounds


def _labels(family: Family, model: str, label: str) -> str:
    parts = ['engine="0"', model, label]
    if family.name == "vllm:admission_rejections_total":
        parts = [model, label]
    # prometheus_client writes labels sorted by name; only finished_reason sorts between engine and model_name.
    return "{" + ",".join(sorted(part for part in parts if part)) + "}"


def _process_lines(started: float, cpu: float) -> Iterable[str]:
    """The families of Python's own collectors; the values are those of no real process, but of the right size."""
    for name, words in (
        ("python_gc_objects_collected", "Objects collected during gc"),
        ("python_gc_objects_uncollectable", "Uncollectable objects found during GC"),
        ("python_gc_collections", "Number of times this generation was collected"),
    ):
        yield from head(f"{name}_total", "counter", words)
        yield from (f'{name}_total{{generation="{generation}"}} 0.0' for generation in range(3))
    yield from head("python_info", "gauge", "Python platform information")
    yield 'python_info{implementation="CPython",major="3",minor="11",patchlevel="7",version="3.11.7"} 1.0'
    for name, kind, words, value in (
        ("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", 2.2e9),
        ("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", 7.2e8),
        ("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", started),
        (
            "process_cpu_seconds_total",
            "counter",
            "Total user and system CPU time spent in seconds.",
            cpu,
        ),
        ("process_open_fds", "gauge", "Number of open file descriptors.", 35.0),
        ("process_max_fds", "gauge", "Maximum number of open file descriptors.", 20000.0),
    ):
        yield from head(name, kind, words)
        yield f"{name} {number(value)}"


_CACHE_CONFIG = (
    '_block_size_resolved="True",block_size="{block}",cache_dtype="auto",cache_hit_alignment_tokens="None",'
    'effective_attention_block_size="{block}",enable_mamba_shared_prefix_checkpoint="False",'
    'enable_prefix_caching="{prefix}",engine="0",gpu_memory_utilization="0.92",hash_block_size="None",'
    'is_attention_free="False",kv_cache_dtype_skip_layers="[]",kv_cache_layout="None",'
    'kv_cache_max_concurrency="{concurrency}",kv_cache_memory_bytes="1073741824",kv_cache_size_tokens="{size}",'
    'kv_offloading_backend="native",kv_offloading_size="None",kv_sharing_fast_prefill="False",mamba_block_size="None",'
    'mamba_cache_dtype="auto",mamba_cache_mode="none",mamba_page_size_padded="None",mamba_ssm_cache_dtype="float32",'
    'num_cpu_blocks="None",num_gpu_blocks="{blocks}",num_gpu_blocks_override="None",prefix_cache_retention_interval="0",'
    'prefix_caching_hash_algo="sha256",prefix_match_unit="None",replayssm_buffer_len="16",skip_page_size_padded="None",'
    'sliding_window="None",swa_bounded_replay="True",use_kda_recoverssm="False",use_replayssm="False",'
    'user_specified_block_size="False"'
)


def _cache_config_lines(spec: EngineSpec) -> Iterable[str]:
    yield from head("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
    size = spec.kv_blocks * spec.block_size
    labels = _CACHE_CONFIG.format(
        block=spec.block_size,
        prefix=spec.prefix_caching,
        concurrency=size / spec.max_model_len,
        size=size,
        blocks=spec.kv_blocks,
    )
    yield f"vllm:cache_config_info{{{labels}}} 1.0"
