"""Which adapter a replica gets, and what holds for the tables of all engines."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import orjson
import pytest

from gateway.fleet.engines.adapter import ADAPTERS, GENERIC, Adapter, Source, adapter_for
from gateway.fleet.signals import Signal, read_signals

CAPTURES = Path(__file__).parents[3] / "captures"


def test_the_known_kinds():
    assert set(ADAPTERS) == {"vllm", "sglang", "tensorrt-llm", "llama.cpp", "generic"}
    assert all(name == adapter.name for name, adapter in ADAPTERS.items())


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("vllm", "vllm"),
        ("sglang", "sglang"),
        ("tensorrt_llm", "tensorrt-llm"),
        ("llamacpp", "llama.cpp"),
        ("openai", "generic"),
        ("generic", "generic"),
        ("", "generic"),
        (None, "generic"),
    ],
)
def test_an_engine_is_what_its_model_list_says(owner, name):
    assert adapter_for(owner) is ADAPTERS[name]


@pytest.mark.parametrize(("engine", "name"), [("vllm-0.32.0", "vllm"), ("sglang-0.5.23", "sglang")])
def test_real_model_lists_name_their_engine(engine, name):
    answer = (CAPTURES / engine / "get-v1-models.http").read_bytes()
    listed = orjson.loads(answer[answer.index(b'{"object"') :])["data"]
    assert [adapter_for(row["owned_by"]) for row in listed] == [ADAPTERS[name]]


def test_what_the_operator_declares_wins():
    assert adapter_for("vllm", "sglang") is ADAPTERS["sglang"]
    assert adapter_for(None, "llama.cpp") is ADAPTERS["llama.cpp"]
    assert adapter_for("vllm", "generic") is GENERIC
    assert adapter_for("vllm", "unknown") is GENERIC


def test_no_two_engines_share_an_owner():
    owners = [owner for adapter in ADAPTERS.values() for owner in adapter.owners]
    assert len(owners) == len(set(owners))


@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS)
def test_a_table_is_sound(adapter: Adapter):
    assert adapter.expected <= set(adapter.signals)
    assert set(adapter.progress) <= set(adapter.signals)
    assert all(path.startswith("/") for path in (adapter.metrics_path, adapter.health_path))
    assert 0 < adapter.health_patience <= GENERIC.health_patience
    for total, count in (("ttft_sum", "ttft_count"), ("prefill_sum", "prefill_count"), ("queue_sum", "queue_count")):
        assert (Signal(total) in adapter.signals) == (Signal(count) in adapter.signals)
    assert (Signal.ITL_SUM in adapter.signals) == (Signal.ITL_COUNT in adapter.signals)
    assert (Signal.CACHE_HITS in adapter.signals) == (Signal.CACHE_QUERIES in adapter.signals)
    assert all(0 < len(name) < 60 for source in adapter.signals.values() for name in source.names)


@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS)
def test_a_share_is_never_more_than_one(adapter: Adapter):
    source = adapter.signals.get(Signal.KV_USE)
    assert source is None or source.most == 1.0


@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS)
def test_a_page_without_anything_misses_all_that_is_expected(adapter: Adapter):
    for page in (b"", b"404 page not found", b'[{"iter":1,"numActiveRequests":3}]', b"<html>"):
        assert read_signals(adapter, page) == ({}, adapter.expected)


def test_an_adapter_and_a_source_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        GENERIC.name = "other"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Source(("n",)).scale = 2.0  # type: ignore[misc]
