"""Signals read with the memory of earlier pages are those that are read without it."""

from pathlib import Path

import pytest

from gateway.fleet.engines.adapter import ADAPTERS
from gateway.fleet.engines.sglang import SGLANG
from gateway.fleet.engines.vllm import VLLM
from gateway.fleet.signals import Memory, Signal, read_signals

CAPTURES = Path(__file__).parents[2] / "captures"
PAGES = sorted(CAPTURES.rglob("*metrics*.txt"))


@pytest.mark.parametrize("name", ADAPTERS)
def test_captured_pages_one_after_another_change_no_reading(name):
    adapter, memory = ADAPTERS[name], Memory()
    assert len(PAGES) > 3
    for path in (*PAGES, *reversed(PAGES), PAGES[0]):
        text = path.read_bytes()
        for _ in range(2):
            assert read_signals(adapter, text, memory) == read_signals(adapter, text)


def test_a_memory_may_pass_from_one_kind_of_engine_to_another():
    memory = Memory()
    for path in PAGES:
        for adapter in (VLLM, SGLANG, VLLM):
            assert read_signals(adapter, path.read_bytes(), memory) == read_signals(adapter, path.read_bytes())


def test_a_signal_that_is_gone_is_missing_at_once_and_back_at_once():
    text = (CAPTURES / "vllm-0.32.0" / "metrics-loaded.txt").read_bytes()
    without = b"".join(line for line in text.splitlines(keepends=True) if b"generation_tokens_total" not in line)
    memory = Memory()
    for page, missing in ((text, set()), (without, {Signal.GENERATION_TOKENS}), (b"", VLLM.expected), (text, set())):
        assert read_signals(VLLM, page, memory).missing == missing


def test_a_page_on_which_nothing_wanted_has_changed_is_the_same_reading_until_something_has():
    text = (CAPTURES / "vllm-0.32.0" / "metrics-loaded.txt").read_bytes()
    running = next(line for line in text.splitlines() if line.startswith(b"vllm:num_requests_running"))
    busier = text.replace(running, running.rpartition(b" ")[0] + b" 77.0")
    memory = Memory()
    first = read_signals(VLLM, text, memory)
    assert read_signals(VLLM, text, memory) is first
    assert read_signals(VLLM, text.replace(b"http_requests_total{", b"http_Requests_total{"), memory) is first
    second = read_signals(VLLM, busier, memory)
    assert second.values == {**first.values, Signal.RUNNING: 77.0}
    assert first.values[Signal.RUNNING] != 77.0
    assert read_signals(VLLM, busier, memory) is second
