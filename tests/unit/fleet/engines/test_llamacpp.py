"""llama.cpp: pages as its server writes them, with and without what older builds had. None is a capture."""

from __future__ import annotations

from gateway.fleet.engines.llamacpp import LLAMACPP
from gateway.fleet.signals import Signal, read_signals


def page(**values: str) -> bytes:
    return "".join(
        f"# HELP llamacpp:{name} Help.\n# TYPE llamacpp:{name} gauge\nllamacpp:{name} {value}\n"
        for name, value in values.items()
    ).encode()


NEW = page(
    prompt_tokens_total="6886",
    prompt_seconds_total="2903.63",
    tokens_predicted_total="3469",
    tokens_predicted_seconds_total="3544.27",
    n_decode_total="1.23457e+06",
    n_tokens_max="4096",
    prompt_tokens_seconds="2.37151",
    predicted_tokens_seconds="0.978763",
    requests_processing="4",
    requests_deferred="46",
    n_busy_slots_per_decode="3.87",
)


def test_a_page_of_a_working_engine():
    found = read_signals(LLAMACPP, NEW)
    assert found.missing == frozenset()
    assert found.values == {
        Signal.PROMPT_TOKENS: 6886,
        Signal.GENERATION_TOKENS: 3469,
        Signal.ITL_COUNT: 3469,
        Signal.ITL_SUM: 3544.27,
        Signal.STEPS: 1234570,
        Signal.RUNNING: 4,
        Signal.WAITING: 46,
    }


def test_older_builds_tell_how_full_the_cache_is():
    found = read_signals(LLAMACPP, NEW + page(kv_cache_usage_ratio="0.5"))
    assert found.values[Signal.KV_USE] == 0.5


def test_a_model_that_is_being_loaded_is_not_read():
    body = b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'
    assert read_signals(LLAMACPP, body) == ({}, LLAMACPP.expected)


def test_progress_is_read_from_calls_of_the_model():
    assert LLAMACPP.progress == (Signal.STEPS,)
