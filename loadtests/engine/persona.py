"""What tells one kind of server from another, as a table: everything that is not the same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loadtests.engine import metrics, refusal, routes, validate
from loadtests.engine.acts import Reply
from loadtests.engine.counting import EngineMetrics
from loadtests.engine.exchange import H11_LINES, HTTPTOOLS_LINES, HeaderLines, ReceivedRequest
from loadtests.engine.refusal import ErrorForms, Refusal
from loadtests.engine.routes import Resolved
from loadtests.engine.sglang import errors as sglang_errors
from loadtests.engine.sglang import metrics as sglang_metrics
from loadtests.engine.sglang import plans as sglang_plans
from loadtests.engine.sglang import routes as sglang_routes
from loadtests.engine.spec import SGLANG, VLLM, EngineSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Persona:
    """One kind of server: how it reads requests, how it words and frames its answers, and its manners."""

    decode: Callable[[ReceivedRequest], validate.Body]
    resolve: Callable[[str, str, EngineSpec], Resolved]
    before_routing: Callable[[ReceivedRequest, EngineSpec], Reply | None]
    forms: ErrorForms
    lines: HeaderLines
    metrics: Callable[[EngineSpec, float], EngineMetrics]
    metrics_type: bytes
    queue_full: Callable[[], Refusal]
    counts_running: bool
    """Whether the limit of the queue counts what runs."""
    full_in_stream: bool
    """A full queue is told inside a stream that begins with 200."""
    head_at_once: bool
    """The head of a stream comes before admission; else with the first event."""
    polls_clients: bool
    """That a client has left is noticed late, as long as it has got nothing."""
    listens_while_starting: bool
    serves_to_the_end: bool
    """SIGTERM: goes on serving, new requests too, until none is left; else it fails or drains."""
    dies_silently: bool
    """What is in flight when it fails is cut off without a word; else it gets an error."""


PERSONAS: Mapping[str, Persona] = {
    VLLM: Persona(
        decode=validate.decoded,
        resolve=routes.resolve,
        before_routing=routes.before_routing,
        forms=refusal.VLLM_FORMS,
        lines=HTTPTOOLS_LINES,
        metrics=metrics.Metrics,
        metrics_type=metrics.CONTENT_TYPE,
        queue_full=refusal.queue_full,
        counts_running=True,
        full_in_stream=False,
        head_at_once=True,
        polls_clients=False,
        listens_while_starting=False,
        serves_to_the_end=False,
        dies_silently=False,
    ),
    SGLANG: Persona(
        decode=sglang_plans.decode_body,
        resolve=sglang_routes.resolve,
        before_routing=sglang_routes.before_routing,
        forms=sglang_errors.FORMS,
        lines=H11_LINES,
        metrics=sglang_metrics.SglangMetrics,
        metrics_type=sglang_metrics.CONTENT_TYPE,
        queue_full=sglang_errors.queue_full,
        counts_running=False,
        full_in_stream=True,
        head_at_once=False,
        polls_clients=True,
        listens_while_starting=True,
        serves_to_the_end=True,
        dies_silently=True,
    ),
}
