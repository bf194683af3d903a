"""SGLang's counters and their exposition text: names, types, labels and bounds of 0.5.23, those that a router may read.

There is no process_start_time_seconds among them. Counters of tokens move when a request finishes; only
`sglang:realtime_tokens_total` moves before, at each prefill and once in `_LOG_INTERVAL` decode steps. (That it moves at
log intervals is its help text; their length is taken to be 40 steps, and was not captured.)
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

from loadtests.engine.counting import Gauges, Histogram, head, number
from loadtests.engine.scheduler import Job, Step, Token
from loadtests.engine.spec import EngineSpec

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_LOG_INTERVAL = 40
_QUEUE = (
    0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    70.0, 80.0, 90.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 900.0, 1000.0, 1200.0, 1400.0, 1600.0,
    1800.0, 2000.0, 2500.0, 3000.0,
)  # fmt: skip
_FIRSTS = (
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0,
)  # fmt: skip
_WHOLES = (*_FIRSTS, 600.0, 1200.0, 1800.0, 2400.0)
_GAPS = (
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0,
    2.0, 4.0, 6.0, 8.0,
)  # fmt: skip
_HELP = {
    "queue_time_seconds": "Histogram of queueing time in seconds.",
    "realtime_tokens_total": (
        "Total number of tokens processed (updated on each log interval). mode: prefill_compute, prefill_cache, decode."
    ),
    "max_total_num_tokens": "Maximum total number of tokens in the KV cache pool.",
    "context_len": "Maximum context length.",
    "num_running_reqs": "The number of running requests.",
    "num_queue_reqs": "The number of requests in the waiting queue.",
    "cache_hit_rate": "The prefix cache hit rate.",
    "token_usage": "The token usage.",
    "full_token_usage": "The token usage for full attention layers.",
    "num_used_tokens": "The number of used tokens.",
    "http_requests_total": "Total number of HTTP requests by endpoint and method",
    "http_responses_total": "Total number of HTTP responses by endpoint and status code",
    "prompt_tokens_total": "Number of prefill tokens processed.",
    "generation_tokens_total": "Number of generation tokens processed.",
    "num_requests_total": "Number of requests processed.",
    "cached_tokens_total": "Number of cached prompt tokens by source (device/host/storage).",
    "num_retracted_reqs": "The number of retracted requests.",
    "time_to_first_token_seconds": "Histogram of time to first token in seconds.",
    "e2e_request_latency_seconds": "Histogram of End-to-end request latency in seconds",
    "inter_token_latency_seconds": "Histogram of inter-token latency in seconds.",
}
_RANK = ('moe_ep_rank="0"', 'pp_rank="0"', 'tp_rank="0"')


class SglangMetrics:
    """Counters since the start of this engine. A series is there from its first count on, as SGLang's are."""

    def __init__(self, spec: EngineSpec, started: float) -> None:
        del started
        self._spec = spec
        self._realtime = {"prefill_compute": 0, "decode": 0, "prefill_cache": 0}
        self._decoded = self._steps = 0
        self._counts: dict[tuple[str, str], int] = defaultdict(int)
        self._queue = Histogram(_QUEUE)
        self._gaps = Histogram(_GAPS)
        self._by_stream: dict[str, dict[str, Histogram]] = {"time_to_first_token_seconds": {}}
        self._by_stream["e2e_request_latency_seconds"] = {}
        self._http: dict[str, dict[str, int]] = {"http_requests_total": {}, "http_responses_total": {}}

    def step(self, step: Step, made: int) -> None:
        self._decoded += made
        self._steps += 1
        self._realtime["prefill_compute"] += step.prefill
        if step.prefill or self._steps >= _LOG_INTERVAL:
            self._realtime["decode"] += self._decoded
            self._decoded = self._steps = 0

    def token(self, token: Token) -> None:
        job = token.job
        if token.gap is not None:
            self._gaps.observe(token.gap)
            return
        self._of("time_to_first_token_seconds", _FIRSTS, job).observe(job.last_token - job.arrived)
        self._queue.observe((job.scheduled or job.arrived) - job.arrived)

    def instant(self, job: Job, reason: str, copies: int) -> None:
        self._realtime["prefill_compute"] += job.prompt_tokens - job.cached_tokens
        self._realtime["decode"] += job.generated
        self._of("time_to_first_token_seconds", _FIRSTS, job).observe(0.0)
        self._queue.observe(0.0)
        self._gaps.observe(0.0, max(0, job.generated - 1))
        self.finished(job, reason, copies)

    def finished(self, job: Job, reason: str, copies: int) -> None:
        stream = _streaming(job)
        self._counts["prompt_tokens_total", stream] += job.prompt_tokens
        self._counts["generation_tokens_total", stream] += min(job.generated, job.output_tokens)
        self._counts["num_requests_total", stream] += 1
        if job.cached_tokens:
            self._counts["cached_tokens_total", 'cache_source="device"'] += job.cached_tokens
            self._realtime["prefill_cache"] += job.cached_tokens
        spent = (job.finished or job.arrived) - job.arrived
        self._of("e2e_request_latency_seconds", _WHOLES, job).observe(spent)

    def aborted(self, job: Job) -> None:
        """Nothing counts that."""

    def rejected(self) -> None:
        """Nothing counts that either."""

    def slept(self, level: int) -> None:
        """Sleep is vLLM's."""

    def http(self, handler: str, method: str, status: int, *, sizes: tuple[int, int], seconds: float) -> None:
        asked, answered = self._http["http_requests_total"], self._http["http_responses_total"]
        name = f'endpoint="{handler}",method="{method}"'
        asked[name] = asked.get(name, 0) + 1
        name = f'{name},status_code="{status}"'
        answered[name] = answered.get(name, 0) + 1

    def render(self, gauges: Gauges) -> bytes:
        lines: list[str] = []
        lines += self._histogram("queue_time_seconds", {"": self._queue}, _RANK)
        modes = {f'mode="{mode}"': float(count) for mode, count in self._realtime.items()}
        lines += self._samples("realtime_tokens_total", "counter", modes, _RANK)
        for name, value in self._gauges(gauges).items():
            lines += self._samples(name, "gauge", {"": value}, _RANK)
        for name, rows in self._http.items():
            lines += head(f"sglang:{name}", "counter", _HELP[name])
            lines += [f"sglang:{name}{{{labels}}} {number(count)}" for labels, count in rows.items()]
        for name in ("prompt_tokens_total", "generation_tokens_total", "num_requests_total", "cached_tokens_total"):
            rows = {label: count for (counted, label), count in self._counts.items() if counted == name}
            lines += self._samples(name, "counter", rows)
        retracted = gauges.totals.preemptions
        lines += self._samples("num_retracted_reqs", "gauge", {'pid="5022"': retracted}, _RANK)
        for name, by_stream in self._by_stream.items():
            lines += self._histogram(name, by_stream)
        lines += self._histogram("inter_token_latency_seconds", {"": self._gaps})
        return "\n".join([*lines, ""]).encode()

    def _gauges(self, gauges: Gauges) -> dict[str, float]:
        spec, totals = self._spec, gauges.totals
        most = (spec.kv_blocks - 1) * spec.block_size
        return {
            "max_total_num_tokens": most,
            "context_len": spec.max_model_len,
            "num_running_reqs": gauges.running,
            "num_queue_reqs": gauges.waiting,
            "cache_hit_rate": totals.prefix_hits / totals.prefix_queries if totals.prefix_queries else 0.0,
            "token_usage": round(gauges.kv_usage, 2),
            "full_token_usage": gauges.kv_usage,
            "num_used_tokens": round(gauges.kv_usage * most),
        }

    def _of(self, name: str, bounds: tuple[float, ...], job: Job) -> Histogram:
        return self._by_stream[name].setdefault(_streaming(job), Histogram(bounds))

    def _labels(self, *more: str) -> str:
        known = ('engine_type="unified"', f'model_name="{self._spec.model}"')
        return ",".join(sorted(label for label in (*known, *more) if label))

    def _samples(self, name: str, kind: str, rows: Mapping[str, float], rank: tuple[str, ...] = ()) -> Iterator[str]:
        yield from head(f"sglang:{name}", kind, _HELP[name])
        for label, value in rows.items():
            yield f"sglang:{name}{{{self._labels(label, *rank)}}} {number(value)}"

    def _histogram(self, name: str, rows: dict[str, Histogram], rank: tuple[str, ...] = ()) -> Iterator[str]:
        """In SGLang's order: sum, buckets, count."""
        yield from head(f"sglang:{name}", "histogram", _HELP[name])
        for label, histogram in rows.items():
            yield f"sglang:{name}_sum{{{self._labels(label, *rank)}}} {number(histogram.total)}"
            count = 0
            for bound, here in zip((*histogram.bounds, math.inf), histogram.counts, strict=True):
                count += here
                labels = self._labels(label, f'le="{number(bound)}"', *rank)
                yield f"sglang:{name}_bucket{{{labels}}} {number(count)}"
            yield f"sglang:{name}_count{{{self._labels(label, *rank)}}} {number(count)}"


def _streaming(job: Job) -> str:
    return f'is_streaming="{str(job.streamed).lower()}"'
