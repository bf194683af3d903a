"""Every metric of the gateway, declared in one place. Labels come from closed sets: endpoints, aliases, error codes.

Names and bucket bounds of the ``gen_ai_*`` families follow OpenTelemetry's semantic conventions for generative AI
metrics; the gateway's own start with ``gateway_``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.model import Endpoint
from gateway.telemetry.cells import Counter, Histogram
from gateway.telemetry.revisions import RevisionStats
from gateway.telemetry.trace import Trace

DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
TOKENS = tuple(float(4**power) for power in range(14))
QUEUE = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
OVERHEAD = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
LOOP_LAG = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

# OpenTelemetry's well-known operation names; the rest keep the endpoint's own.
OPERATIONS: Mapping[str, str] = MappingProxyType(
    {
        Endpoint.COMPLETIONS.value: "text_completion",
        Endpoint.RESPONSES.value: "chat",
        Endpoint.MESSAGES.value: "chat",
    }
)

# Values by labels, read when a scrape comes.
Reader = Callable[[], Iterable[tuple[tuple[str, ...], float]]]


class Metrics:
    """The families and how one finished request moves them."""

    def __init__(self) -> None:
        common = ("gen_ai_operation_name", "gen_ai_request_model")
        self.duration = Histogram(
            "gen_ai_server_request_duration_seconds",
            "From the request's arrival to the end of its answer",
            (*common, "error_type"),
            DURATION,
        )
        self.first_token = Histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "From the request's arrival to the first event of a streamed answer",
            common,
            FIRST_TOKEN,
        )
        self.per_token = Histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Per output token after the first, by the engine's own count of tokens",
            common,
            PER_TOKEN,
        )
        self.tokens = Histogram(
            "gen_ai_client_token_usage", "Tokens per request", (*common, "gen_ai_token_type"), TOKENS
        )
        self.overhead = Histogram(
            "gateway_overhead_seconds", "Time that the gateway itself added to a request", ("endpoint",), OVERHEAD
        )
        self.queue_wait = Histogram(
            "gateway_queue_wait_seconds",
            "Time of requests in the gateway's queue, by how it ended; those that had a place at once are not counted",
            ("priority", "outcome"),
            QUEUE,
        )
        # Beside the count of the histogram, because 24 cells that begin at 0 are 24 series here and 408 there.
        self.queue_outcomes = Counter(
            "gateway_queue_outcomes",
            "Requests that had to wait in the gateway's queue, by how that ended",
            ("priority", "outcome"),
        )
        self.loop_lag = Histogram(
            "gateway_loop_lag_seconds", "How late a timer of the event loop fires, four times a second", (), LOOP_LAG
        )
        self.requests = Counter("gateway_requests", "Requests answered", ("endpoint", "status"))
        self.refusals = Counter("gateway_refusals", "Requests that were not served, by error code", ("code",))
        self.token_refusals = Counter(
            "gateway_token_refusals", "Tokens (JWT) that were not accepted, by what was wrong with them", ("reason",)
        )
        self.strangers = Counter(
            "gateway_handshake_failures", "Connections of the inference listener that did not begin with TLS", ()
        )
        self.retries = Counter(
            "gateway_retries", "Requests sent to another replica, by how the first failed", ("reason",)
        )
        self.dry_runs = Counter(
            "gateway_balancing_dry_run",
            "Choices of a strategy that was only asked, by whether it would have chosen the same",
            ("strategy", "choice"),
        )
        self.transitions = Counter(
            "gateway_replica_transitions",
            "Steps in the lives of replicas, by what was learned and where it led",
            ("sign", "state"),
        )
        self.revisions = RevisionStats(FIRST_TOKEN, PER_TOKEN)
        self._read: list[tuple[type[GaugeMetricFamily | CounterMetricFamily], str, str, tuple[str, ...], Reader]] = []
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def gauge(self, name: str, meaning: str, labels: tuple[str, ...], read: Reader) -> None:
        """Add a gauge that is read at each scrape."""
        self._read.append((GaugeMetricFamily, name, meaning, labels, read))

    def counter(self, name: str, meaning: str, labels: tuple[str, ...], read: Reader) -> None:
        """Add a counter that others keep, read at each scrape; its name is without ``_total``."""
        self._read.append((CounterMetricFamily, name, meaning, labels, read))

    def waited(self, priority: str, outcome: str, seconds: float) -> None:
        """Count a wait in the queue that has ended."""
        self.queue_outcomes.add(priority, outcome)
        self.queue_wait.at(priority, outcome).observe(seconds)

    def observe(self, trace: Trace) -> None:
        """Count a finished request."""
        alias, error = trace.alias, trace.error
        self.requests.add(trace.endpoint, str(trace.status))
        if error is not None:
            self.refusals.add(error)
        if trace.overhead_ms is not None:
            self.overhead.observe((trace.endpoint,), trace.overhead_ms / 1e3)
        if alias is None:
            return
        operation = OPERATIONS.get(trace.endpoint, trace.endpoint)
        self.revisions.observe(trace)
        self.duration.observe((operation, alias, error or ""), trace.duration_ms / 1e3)
        if trace.ttft_ms is not None:
            self.first_token.observe((operation, alias), trace.ttft_ms / 1e3)
        if trace.tpot_ms is not None:
            self.per_token.observe((operation, alias), trace.tpot_ms / 1e3)
        if trace.prompt_tokens is not None:
            self.tokens.observe((operation, alias, "input"), trace.prompt_tokens)
        if trace.completion_tokens is not None:
            self.tokens.observe((operation, alias, "output"), trace.completion_tokens)

    def collect(self) -> Iterable[Metric]:
        """All families, for the library's registry."""
        histograms = (self.duration, self.first_token, self.per_token, self.tokens, self.overhead)
        waits = (self.queue_wait, self.loop_lag)
        refused = (self.requests, self.refusals, self.token_refusals, self.strangers)
        placed = (self.queue_outcomes, self.retries, self.transitions, self.dry_runs)
        for family in (*histograms, *waits, *refused, *placed):
            yield from family.collect()
        yield from self.revisions.collect()
        for kind, name, meaning, labels, read in self._read:
            made = kind(name, meaning, labels=labels)
            for values, value in read():
                made.add_metric(values, value)
            yield made

    def render(self) -> bytes:
        """The exposition text of a scrape."""
        return generate_latest(self._registry)
