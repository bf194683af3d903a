"""Every metric by name, labels and buckets, as dashboards and alerts know them, and where label values come from."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gateway.admission.outcomes import Outcome
from gateway.errors import CODES
from gateway.model import Endpoint, Priority, Usage
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.trace import Trace, conclude

GEN_AI = ("gen_ai_operation_name", "gen_ai_request_model")
LABELS = {
    "gen_ai_server_request_duration_seconds": {*GEN_AI, "error_type"},
    "gen_ai_server_time_to_first_token_seconds": {*GEN_AI},
    "gen_ai_server_time_per_output_token_seconds": {*GEN_AI},
    "gen_ai_client_token_usage": {*GEN_AI, "gen_ai_token_type"},
    "gateway_overhead_seconds": {"endpoint"},
    "gateway_queue_wait_seconds": {"priority", "outcome"},
    "gateway_queue_outcomes": {"priority", "outcome"},
    "gateway_loop_lag_seconds": set(),
    "gateway_requests": {"endpoint", "status"},
    "gateway_refusals": {"code"},
    "gateway_token_refusals": {"reason"},
    "gateway_balancing_dry_run": {"strategy", "choice"},
    "gateway_replica_transitions": {"sign", "state"},
    "gateway_handshake_failures": set(),
    "gateway_retries": {"reason"},
    "gateway_alias_requests": {"alias", "revision", "track", "outcome"},
    "gateway_alias_time_to_first_token_seconds": {"alias", "revision", "track"},
    "gateway_alias_time_per_output_token_seconds": {"alias", "revision", "track"},
}
# OpenTelemetry's semantic conventions for generative AI metrics advise these; ours is the last.
BUCKETS = {
    "gen_ai_server_request_duration_seconds": [0.01 * 2**power for power in range(14)],
    "gen_ai_server_time_to_first_token_seconds": [
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
    ],
    "gen_ai_server_time_per_output_token_seconds": [
        0.01,
        0.025,
        0.05,
        0.075,
        0.1,
        0.15,
        0.2,
        0.3,
        0.4,
        0.5,
        0.75,
        1.0,
        2.5,
    ],
    "gen_ai_client_token_usage": [4.0**power for power in range(14)],
    "gateway_overhead_seconds": [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0],
}


def _trace(**facts) -> Trace:
    whole = {
        "endpoint": Endpoint.CHAT, "alias": "general", "status": 200, "stream": True, "events": 5, "sent": 100.1,
        "answered": 101.0, "last_event": 103.0, "ended": 103.5, "overhead": 0.002, "usage": Usage(7, 5, 1),
    }  # fmt: skip
    trace = Trace("req_1", 5.0, 100.0)
    for name, value in {**whole, **facts}.items():
        setattr(trace, name, value)
    conclude(trace)
    return trace


def _families(metrics: Metrics) -> dict:
    return {family.name: family for family in text_string_to_metric_families(metrics.render().decode())}


def _observed(**facts) -> dict:
    metrics = Metrics()
    metrics.observe(_trace(**facts))
    return _families(metrics)


def _samples(families: dict, name: str, suffix: str) -> list:
    return [sample for sample in families[name].samples if sample.name == name + suffix]


def test_the_families_are_these():
    names = set(_families(Metrics()))
    assert {name for name in names if not name.startswith("process_")} == set(LABELS)


def test_the_labels_are_these():
    metrics = Metrics()
    metrics.observe(_trace())
    metrics.observe(_trace(error="engine_error"))
    metrics.waited("bulk", "expired", 300.0)
    metrics.retries.add("reset")
    metrics.transitions.add("lost", "ejected")
    metrics.dry_runs.add("estimate", "same")
    metrics.token_refusals.add("signature")
    for name, family in _families(metrics).items():
        for sample in family.samples:
            if name in LABELS:
                assert set(sample.labels) - {"le"} == LABELS[name], name


@pytest.mark.parametrize("name", BUCKETS)
def test_the_buckets_are_these(name):
    samples = _samples(_observed(usage=Usage(7, 5)), name, "_bucket")
    bounds = [float(s.labels["le"]) for s in samples if s.labels.get("gen_ai_token_type") != "output"]
    assert bounds[:-1] == pytest.approx(BUCKETS[name])
    assert math.isinf(bounds[-1])


def test_one_request_moves_each_by_its_own_amount():
    families = _observed()
    sums = {name: sum(s.value for s in _samples(families, name, "_sum")) for name in BUCKETS}
    assert sums == {
        "gen_ai_server_request_duration_seconds": pytest.approx(3.5),
        "gen_ai_server_time_to_first_token_seconds": pytest.approx(1.0),
        "gen_ai_server_time_per_output_token_seconds": pytest.approx(0.5),
        "gen_ai_client_token_usage": 12,
        "gateway_overhead_seconds": pytest.approx(0.002),
    }
    tokens = _samples(families, "gen_ai_client_token_usage", "_sum")
    assert {sample.labels["gen_ai_token_type"]: sample.value for sample in tokens} == {"input": 7, "output": 5}
    assert [s.labels for s in _samples(families, "gateway_requests", "_total")] == [
        {"endpoint": "chat", "status": "200"}
    ]
    assert families["gateway_refusals"].samples == []


def test_an_error_is_a_refusal_and_the_type_of_a_duration():
    families = _observed(error="engine_timeout", status=504, events=None, usage=None)
    assert [s.labels for s in families["gateway_refusals"].samples] == [{"code": "engine_timeout"}]
    duration = _samples(families, "gen_ai_server_request_duration_seconds", "_count")
    assert [sample.labels["error_type"] for sample in duration] == ["engine_timeout"]
    assert families["gen_ai_client_token_usage"].samples == []
    assert families["gen_ai_server_time_to_first_token_seconds"].samples == []


@pytest.mark.parametrize(
    ("endpoint", "operation"),
    [
        ("chat", "chat"),
        ("responses", "chat"),
        ("messages", "chat"),
        ("completions", "text_completion"),
        ("embeddings", "embeddings"),
        ("rerank", "rerank"),
        ("transcriptions", "transcriptions"),
    ],
)
def test_operations_have_the_names_of_the_convention(endpoint, operation):
    families = _observed(endpoint=Endpoint(endpoint))
    (sample,) = _samples(families, "gen_ai_server_request_duration_seconds", "_count")
    assert sample.labels["gen_ai_operation_name"] == operation


def test_a_wait_is_counted_by_how_it_ended_and_measured():
    metrics = Metrics()
    for seconds in (0.5, 2.5):
        metrics.waited(Priority.BULK, Outcome.EXPIRED, seconds)
    families = _families(metrics)
    labels = {"priority": "bulk", "outcome": "expired"}
    assert [(s.labels, s.value) for s in families["gateway_queue_outcomes"].samples] == [(labels, 2.0)]
    (total,) = _samples(families, "gateway_queue_wait_seconds", "_sum")
    assert (total.labels, total.value) == (labels, 3.0)


def test_a_request_without_an_alias_is_counted_but_names_no_model():
    """The alias of a trace is set only once it was found and allowed; the served model is never a label."""
    families = _observed(alias=None, model="served-7b", error="model_not_found", status=404)
    assert families["gen_ai_server_request_duration_seconds"].samples == []
    assert [s.value for s in _samples(families, "gateway_requests", "_total")] == [1.0]
    assert b"served-7b" not in Metrics().render()


FACTS = st.fixed_dictionaries(
    {
        "endpoint": st.sampled_from(Endpoint),
        "alias": st.sampled_from([None, "general", 'odd"\\\n']),
        "status": st.sampled_from([200, 404, 499, 503]),
        "error": st.sampled_from([None, *CODES]),
        "events": st.sampled_from([None, 0, 5]),
        "usage": st.none() | st.builds(Usage, st.integers(0, 10**8), st.integers(0, 10**8), st.integers(0, 9)),
        "overhead": st.none() | st.floats(0, 10),
        "tenant": st.just("canary-tenant"),
        "key_id": st.just("canary-key"),
        "model": st.just("canary-model"),
        "finish": st.just("canary-finish"),
    }
)


@settings(max_examples=30, deadline=None)
@given(st.lists(FACTS, max_size=8))
def test_the_text_always_parses_and_every_label_value_is_of_a_closed_set(requests):
    metrics = Metrics()
    for facts in requests:
        metrics.observe(_trace(**facts))
    families = _families(metrics)
    operations = {endpoint.value for endpoint in Endpoint} | {"text_completion"}
    closed = {
        "gen_ai_operation_name": operations,
        "gen_ai_request_model": {"general", 'odd"\\\n'},
        "gen_ai_token_type": {"input", "output"},
        "error_type": {"", *CODES},
        "endpoint": {endpoint.value for endpoint in Endpoint},
        "status": {"200", "404", "499", "503"},
        "code": set(CODES),
    }
    for family in families.values():
        for sample in family.samples:
            for label, value in sample.labels.items():
                assert label == "le" or value in closed[label]
    assert b"canary" not in metrics.render()
    assert sum(s.value for s in _samples(families, "gateway_requests", "_total")) == len(requests)


def test_a_gauge_is_read_at_each_scrape():
    metrics, values = Metrics(), [1.0]
    metrics.gauge("gateway_in_flight", "Requests in flight", ("replica",), lambda: [(("0",), values[0])])
    for value in (1.0, 7.0):
        values[0] = value
        (sample,) = _families(metrics)["gateway_in_flight"].samples
        assert (sample.labels, sample.value) == ({"replica": "0"}, value)


def test_a_counter_that_others_keep_is_read_at_each_scrape():
    metrics, values = Metrics(), [1.0]
    metrics.counter("gateway_record_drops", "Records lost", ("where",), lambda: [(("here",), values[0])])
    for value in (1.0, 7.0):
        values[0] = value
        family = _families(metrics)["gateway_record_drops"]
        assert family.type == "counter"
        assert [(s.name, s.labels, s.value) for s in family.samples] == [
            ("gateway_record_drops_total", {"where": "here"}, value)
        ]


def test_the_process_is_measured_too():
    assert {"process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds"} <= set(_families(Metrics()))
