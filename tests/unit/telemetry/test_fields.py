"""The registry of record fields, both ways: all of it is in a record, and nothing else is."""

from __future__ import annotations

import httpx
import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import CODES
from gateway.model import Endpoint, Usage
from gateway.telemetry.fields import FIELDS, record_of
from gateway.telemetry.trace import Trace, conclude

NAMES = (
    "time", "request_id", "endpoint", "tenant", "key_id", "priority", "alias", "revision", "track", "model", "replica",
    "attempts", "stream", "status", "error", "reason", "finish", "prompt_tokens", "cached_tokens", "completion_tokens",
    "request_bytes", "response_bytes", "events", "ttft_ms", "tpot_ms", "overhead_ms", "queue_ms",
    "duration_ms",
)  # fmt: skip


def test_the_names_are_these():
    """A field more is a decision about what may be written of a request: it has to be made here too."""
    assert tuple(field.name for field in FIELDS) == NAMES


def test_every_field_is_explained():
    for field in FIELDS:
        assert field.meaning
        assert field.values in {"few", "many", "number"}


def test_every_field_is_something_that_a_trace_knows_from_the_start():
    trace = Trace("req_1", 5.0, 100.0)
    for name in NAMES:
        assert hasattr(trace, name)


def test_a_record_has_every_field_in_order_and_nothing_else():
    class Talkative(Trace):
        prompt = "hunter2"

    assert tuple(record_of(Trace("req_1", 5.0, 100.0))) == NAMES
    assert tuple(record_of(Talkative("req_1", 5.0, 100.0))) == NAMES
    assert "hunter2" not in repr(record_of(Talkative("req_1", 5.0, 100.0)))
    chatty = Trace("req_1", 5.0, 100.0)
    chatty.prompt = "hunter2"
    assert tuple(record_of(chatty)) == NAMES
    assert "hunter2" not in repr(record_of(chatty))


def _honoured(record: dict) -> None:
    for field in FIELDS:
        value = record[field.name]
        types = field.type if isinstance(field.type, tuple) else (field.type,)
        assert isinstance(value, types), field
        assert not isinstance(value, bool) or bool in types, field


def _maybe(strategy):
    return st.none() | strategy


POINTS = st.floats(0, 1e6)
FACTS = st.fixed_dictionaries(
    {},
    optional={
        "endpoint": st.sampled_from(Endpoint),
        "tenant": st.text(max_size=5),
        "key_id": st.text(max_size=5),
        "alias": st.text(max_size=5),
        "revision": st.integers(1, 9),
        "model": st.text(max_size=5),
        "replica": st.sampled_from(["127.0.0.1:8001", "[::1]:65535"]),
        "attempts": st.integers(0, 9),
        "stream": st.booleans(),
        "status": st.integers(100, 599),
        "error": st.sampled_from(sorted(CODES)),
        "reason": st.sampled_from(["connect", "reset"]),
        "finish": _maybe(st.text(max_size=5) | st.just("stop")),
        "usage": _maybe(st.builds(Usage, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))),
        "request_bytes": st.integers(0, 9),
        "response_bytes": st.integers(0, 9),
        "events": st.integers(0, 9),
        "overhead": POINTS,
        "sent": POINTS,
        "answered": POINTS,
        "last_event": POINTS,
        "ended": POINTS,
        "waited": POINTS,
    },
)


@given(FACTS)
def test_every_type_is_kept_whatever_was_learned(facts):
    trace = Trace("req_1", 5.0, 100.0)
    for name, value in facts.items():
        setattr(trace, name, value)
    conclude(trace)
    record = record_of(trace)
    _honoured(record)
    assert orjson.loads(orjson.dumps(record)).keys() == record.keys()


def test_every_type_is_kept_by_real_requests(shared_site):
    engine = shared_site.engine()
    gateway = shared_site.gateway([engine])
    headers = {"authorization": f"Bearer {gateway.key()}"}
    chat = {"model": "sim-model", "messages": [{"role": "user", "content": "hunter2"}], "max_tokens": 4}
    with httpx.Client(base_url=gateway.url, headers=headers, trust_env=False, timeout=10) as client:
        for body in (chat, {**chat, "stream": True}, {**chat, "model": "unknown"}, {**chat, "max_tokens": 10**6}, {}):
            client.post("/v1/chat/completions", json=body)
        client.post("/v1/embeddings", json={"model": "sim-model", "input": "hunter2"})
        client.get("/v1/models", headers={"authorization": "Bearer nope"})
        client.get("/nowhere/hunter2")
    gateway.records.last(endpoint="other", status=404)
    records = gateway.records.lines
    assert len(records) == 8
    for record in records:
        _honoured(record)
        assert tuple(record) == NAMES
        assert record["endpoint"] in set(Endpoint)
        assert record["error"] is None or record["error"] in CODES
    assert b"hunter2" not in orjson.dumps(records)
    assert {record["status"] for record in records} >= {200, 400, 401, 404}
    streamed = next(record for record in records if record["stream"])
    assert None not in (streamed["ttft_ms"], streamed["tpot_ms"], streamed["events"], streamed["completion_tokens"])
