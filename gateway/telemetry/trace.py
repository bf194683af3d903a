"""What is learned of one request while it passes, and the arithmetic on it."""

from __future__ import annotations

from gateway.model import Endpoint, Priority, Usage

FINISH_REASONS = frozenset(
    {
        "stop", "length", "tool_calls", "content_filter", "function_call", "abort", "error", "repetition",
        "end_turn", "max_tokens", "stop_sequence", "tool_use", "completed", "incomplete", "failed",
    }
)  # fmt: skip


class Measures:
    """What is measured of one request and does not stand in its record as it is. ``Trace`` sets all of it.

    Points of ``time.perf_counter``, in seconds: when it arrived, when it was sent to an engine, when the engine's
    answer (a stream's first event) was there, when the last event came, when it ended. ``waited`` is for how many
    seconds there was nothing to do but wait: for the body, for a place, and for each engine tried; ``queued`` is the
    wait for a place alone. ``overhead`` is seconds; ``usage`` is as the engine said; ``first_bytes`` is the size of a
    stream's first event.
    """

    __slots__ = (
        "answered", "arrived", "ended", "first_bytes", "last_event", "overhead", "queued", "sent", "usage", "waited"
    )  # fmt: skip

    arrived: float
    sent: float
    answered: float
    last_event: float
    ended: float
    waited: float
    queued: float
    first_bytes: int
    usage: Usage | None
    overhead: float | None


class Trace(Measures):
    """What is learned of one request while it passes. Its own attributes, those in ``fields.FIELDS``, make its record;
    ``finish`` is as the engine said, until ``conclude``.

    Defaults live on the class: setting thirty attributes that most requests leave alone would cost each a microsecond,
    and what was set is the part of the record that is not the same for all (``__dict__``).
    """

    endpoint: str = Endpoint.OTHER.value
    tenant: str | None = None
    key_id: str | None = None
    priority: Priority | None = None
    alias: str | None = None
    revision: int | None = None
    track: str = "stable"
    model: str | None = None
    replica: str | None = None
    attempts: int = 0
    stream: bool = False
    status: int = 0
    error: str | None = None
    reason: str | None = None
    finish: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    request_bytes: int = 0
    response_bytes: int = 0
    events: int | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    overhead_ms: float | None = None
    queue_ms: float = 0.0
    duration_ms: float = 0.0

    def __init__(self, request_id: str, time: float, arrived: float) -> None:
        self.arrived = arrived
        self.sent = self.answered = self.last_event = self.ended = self.waited = self.queued = 0.0
        self.first_bytes = 0
        self.usage = self.overhead = None
        self.request_id = request_id
        self.time = time


def overhead(trace: Trace, now: float) -> float:
    """Seconds between arrival and ``now`` in which the gateway waited neither for the client nor an engine."""
    return now - trace.arrived - trace.waited


def conclude(trace: Trace) -> None:
    """Work out what the record says from the points in time, and the engine's own words, that were noted on the way.

    Whole microseconds as milliseconds: ``round`` to a number of digits takes ten times as long as to none.
    """
    trace.duration_ms = round((trace.ended - trace.arrived) * 1e6) / 1e3
    if trace.queued:
        trace.queue_ms = round(trace.queued * 1e6) / 1e3
    if trace.overhead is not None:
        trace.overhead_ms = round(trace.overhead * 1e6) / 1e3
    if trace.finish is not None and trace.finish not in FINISH_REASONS:
        trace.finish = "other"
    usage = trace.usage
    if usage is not None:
        trace.prompt_tokens, trace.completion_tokens, trace.cached_tokens = usage
    if trace.events and trace.answered:
        trace.ttft_ms = round((trace.answered - trace.arrived) * 1e6) / 1e3
        if usage is not None and usage.completion > 1 and trace.last_event:
            trace.tpot_ms = round((trace.last_event - trace.answered) / (usage.completion - 1) * 1e3, 4)
