"""The fault menu: what can go wrong with an engine, each by a name with parameters, as a table.

A fault of scope GENERATION, HEALTH, METRICS is a small machine that sees each act of an answer and says which acts take
its place. A fault of scope ENGINE or LISTENER is a state that the server looks up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from loadtests.engine.acts import Close, Event, Hang, Head, Raw, Reply, Reset, Wait
from loadtests.engine.fault_machines import (
    FORMS,
    Machine,
    Params,
    before,
    both_lengths,
    break_off,
    bytes_after_end,
    change_one,
    done_changed,
    draining,
    each_event,
    error_event_at,
    giant_headers,
    headers_late,
    huge_line,
    in_place,
    informational,
    keepalive,
    malformed,
    merged,
    on_head,
    split,
    spoil_utf8,
    status,
    truncated,
    wrong_model,
)
from loadtests.engine.refusal import VLLM_FORMS, ErrorForms

GENERATION, HEALTH, METRICS, ENGINE, LISTENER = "generation", "health", "metrics", "engine", "listener"
HEALTH_PATHS = frozenset({"/health", "/ping"})
METRICS_PATHS = frozenset({"/metrics"})


class UnknownFault(ValueError):
    """No fault has this name, or it has no such parameter."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of the menu. `make` builds the machine for one answer; it is None for a state of the engine."""

    scope: str
    meaning: str
    make: Callable[[Params], Machine] | None = None
    defaults: Params = field(default_factory=dict)
    early: bool = False
    """The request never reaches the scheduler."""


FAULTS: Mapping[str, Fault] = {
    "refuse": Fault(LISTENER, "the listener is closed: connection refused; open connections stay"),
    "accept_and_hang": Fault(GENERATION, "no byte ever comes", lambda _: in_place((Hang(),)), early=True),
    "first_byte_delay": Fault(
        GENERATION, "no byte for `seconds`", lambda p: before([Wait(float(p["seconds"]))]), {"seconds": 0.2}
    ),
    "headers_then_hang": Fault(
        GENERATION,
        "the head comes, then nothing",
        lambda _: on_head(lambda act: (act if isinstance(act, Head) else replace(act, cut=0), Hang())),
    ),
    "headers_late": Fault(GENERATION, "the head comes only together with the first event", headers_late),
    "stall_mid_stream": Fault(
        GENERATION,
        "after `after_events` events silence, on an open connection",
        break_off(Hang()),
        {"after_events": 3},
    ),
    "truncate_chunk": Fault(
        GENERATION,
        "after `after_events` events half a chunk, then FIN",
        truncated,
        {"after_events": 3},
    ),
    "reset_mid_stream": Fault(
        GENERATION,
        "after `after_events` events and `pause` seconds a TCP reset",
        lambda p: break_off(Wait(float(p["pause"])), Reset())(p),
        {"after_events": 3, "pause": 0.02},
    ),
    "reset_before_response": Fault(
        GENERATION, "a TCP reset in the place of an answer", lambda _: in_place((Reset(),)), early=True
    ),
    "close_mid_stream": Fault(
        GENERATION,
        "after `after_events` events FIN, without the terminating chunk",
        break_off(Wait(0.0), Close()),
        {"after_events": 3},
    ),
    "malformed_sse": Fault(
        GENERATION,
        "after `after_events` events one that is not JSON",
        malformed,
        {"after_events": 2, "text": 'data: {"id":"chatcmpl-broken","choices":['},
    ),
    "invalid_utf8": Fault(
        GENERATION,
        "after `after_events` events one with bytes that are not UTF-8",
        lambda p: change_one(p, lambda event: (Event(spoil_utf8(event.data)),), spoil_utf8),
        {"after_events": 2},
    ),
    "huge_line": Fault(
        GENERATION,
        "after `after_events` events a line of `bytes` bytes without an end",
        huge_line,
        {"after_events": 1, "bytes": 8_000_000},
    ),
    "error_event_first": Fault(
        GENERATION, "an error event, [DONE] and a clean end, with no token", error_event_at, {"after_events": 0}
    ),
    "error_event_mid": Fault(GENERATION, "the same after `after_events` events", error_event_at, {"after_events": 3}),
    "done_missing": Fault(GENERATION, "the stream ends without [DONE]", lambda _: done_changed(0)),
    "done_twice": Fault(GENERATION, "[DONE] comes twice", lambda _: done_changed(2)),
    "wrong_content_type": Fault(
        GENERATION,
        "the answer says it is `content_type`",
        lambda p: on_head(lambda act: (replace(act, content_type=str(p["content_type"]).encode()),)),
        {"content_type": "text/html; charset=utf-8"},
    ),
    "informational_flood": Fault(
        GENERATION, "`responses` answers of `status` come first", informational, {"responses": 100, "status": 103}
    ),
    "giant_headers": Fault(
        GENERATION, "`bytes` bytes in `headers` headers", giant_headers, {"bytes": 200_000, "headers": 1}
    ),
    "bytes_after_end": Fault(
        GENERATION,
        "`text` follows the end of the answer",
        bytes_after_end,
        {"text": "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nsmugg"},
    ),
    "status_burst": Fault(
        GENERATION,
        "`status` with vLLM's error body",
        status,
        {"status": 500, "message": "Internal server error", "type": "InternalServerError", "headers": {}},
        early=True,
    ),
    "bad_status_line": Fault(
        GENERATION,
        "a first line that is not HTTP",
        lambda p: in_place((Raw(str(p["line"]).encode() + b"\r\ncontent-length: 0\r\n\r\n"), Wait(0.0), Close())),
        {"line": "HTTP/1.1 abc Nonsense"},
        early=True,
    ),
    "both_lengths": Fault(GENERATION, "content-length and transfer-encoding at once", both_lengths),
    "wrong_model_name": Fault(GENERATION, "the answer names `model`", wrong_model, {"model": "another-model"}),
    "keepalive_comments": Fault(
        GENERATION,
        "a `: keep-alive` comment after each `interval` seconds without event",
        keepalive,
        {"interval": 0.05},
    ),
    "split_events": Fault(
        GENERATION,
        "each event in many writes of `sizes` bytes, cut inside characters, `pause` seconds apart",
        split,
        {"sizes": (7, 1, 13, 29), "pause": 0.0005},
    ),
    "merged_events": Fault(GENERATION, "`events` events in one chunk and one write", merged, {"events": 4}),
    "crlf_events": Fault(
        GENERATION, "events end their lines with CR LF", lambda _: each_event(lambda data: data.replace(b"\n", b"\r\n"))
    ),
    "no_space_data": Fault(
        GENERATION, "`data:` without a space", lambda _: each_event(lambda data: data.replace(b"data: ", b"data:"))
    ),
    "draining": Fault(
        GENERATION, "each request gets the instant 500 of an engine that shuts down", draining, early=True
    ),
    "health_slow": Fault(
        HEALTH, "/health answers after `seconds`", lambda p: before([Wait(float(p["seconds"]))]), {"seconds": 1.0}
    ),
    "health_503": Fault(HEALTH, "/health says 503", lambda _: in_place((Reply(503, content_type=None),))),
    "metrics_slow": Fault(
        METRICS, "/metrics answers after `seconds`", lambda p: before([Wait(float(p["seconds"]))]), {"seconds": 5.0}
    ),
    "metrics_garbage": Fault(
        METRICS,
        "/metrics answers `text`",
        lambda p: each_event(lambda _: str(p["text"]).encode()),
        {"text": "<html>\x00{{{ not metrics\nvllm:num_requests_running NaN NaN NaN\n"},
    ),
    "metrics_stale": Fault(ENGINE, "/metrics answers for ever what it said when the fault was set"),
    "health_ok_generation_hangs": Fault(
        ENGINE, "the engine process is frozen: heads come, no token, gauges frozen, /health 200 (SIGSTOP, captured)"
    ),
    "paused": Fault(ENGINE, "vLLM's /pause: requests are accepted and hang, gauges say 0 (captured)"),
    "asleep": Fault(
        ENGINE,
        "vLLM's /sleep at `level`: what runs ends with `abort`, new requests hang, gauges say 0; clearing wakes it",
        defaults={"level": 1},
    ),
    "slow_death": Fault(
        ENGINE,
        "each finished request makes steps `factor` times as long, up to `cap` times",
        defaults={"factor": 1.5, "cap": 100.0},
    ),
    "flapping": Fault(
        LISTENER,
        "the listener is closed for `down` seconds, then open for `up`, and so on; open connections stay",
        defaults={"down": 0.5, "up": 0.5},
    ),
}

_SCOPED_PATHS = {HEALTH: HEALTH_PATHS, METRICS: METRICS_PATHS}


@dataclass(slots=True)
class ActiveFault:
    """A fault that is on. `left` counts the requests it still applies to, None: all. `path`: only there."""

    name: str
    params: Params
    left: int | None = None
    path: str | None = None

    def matches(self, path: str, generation: bool) -> bool:
        fault = FAULTS[self.name]
        if fault.make is None:
            return False
        if self.path is not None:
            return path == self.path
        return generation if fault.scope == GENERATION else path in _SCOPED_PATHS.get(fault.scope, ())


class FaultSet:
    """The faults that are on now. `changed` is called after each change; `forms` writes the errors of a fault."""

    def __init__(self, changed: Callable[[], None], forms: ErrorForms = VLLM_FORMS) -> None:
        self._forms = forms
        self._active: dict[str, ActiveFault] = {}
        self._changed = changed

    def set(self, name: str, *, count: int | None = None, path: str | None = None, **params: Any) -> None:
        """Switch a fault on, for the next `count` requests or until cleared; raises UnknownFault."""
        fault = FAULTS.get(name)
        if fault is None:
            raise UnknownFault(f"no fault is called {name!r}; known: {', '.join(sorted(FAULTS))}")
        strange = sorted(set(params) - set(fault.defaults))
        if strange:
            raise UnknownFault(
                f"{name} has no parameter {', '.join(strange)}; it has: {', '.join(fault.defaults) or '-'}"
            )
        if count is not None and fault.make is None:
            raise UnknownFault(f"{name} is a state of the engine, not of a request: it takes no count")
        self._active[name] = ActiveFault(name, {**fault.defaults, **params}, count, path)
        self._changed()

    def clear(self, name: str | None = None) -> None:
        """Switch one fault off, or all."""
        if name is None:
            self._active.clear()
        else:
            self._active.pop(name, None)
        self._changed()

    def active(self, name: str) -> bool:
        return name in self._active

    def params(self, name: str) -> Params | None:
        """The parameters of a fault that is on, else None."""
        active = self._active.get(name)
        return None if active is None else active.params

    def listing(self) -> list[dict[str, object]]:
        """The faults that are on, for /sim/state."""
        return [
            {"name": each.name, "count": each.left, "path": each.path, **each.params} for each in self._active.values()
        ]

    def machines(self, path: str, generation: bool) -> tuple[list[Machine], bool]:
        """The machines for one request, in the order the faults were set, and whether it is kept from the scheduler.

        A fault with a count is used up by one.
        """
        if not self._active:
            return [], False
        matching = [each for each in self._active.values() if each.matches(path, generation)]
        for each in matching:
            if each.left is not None:
                each.left -= 1
                if each.left <= 0:
                    del self._active[each.name]
        makes = ((FAULTS[each.name].make, each.params) for each in matching)
        machines = [make({**params, FORMS: self._forms}) for make, params in makes if make is not None]
        return machines, any(FAULTS[each.name].early for each in matching)
