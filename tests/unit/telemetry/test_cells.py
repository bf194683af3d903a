"""Counters and histograms against those of the library, on the same data."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Counter as TheirCounter
from prometheus_client import Histogram as TheirHistogram

from gateway.telemetry.cells import Counter, Histogram
from gateway.telemetry.metrics import DURATION, FIRST_TOKEN, OVERHEAD, PER_TOKEN, TOKENS

BOUNDS = {"duration": DURATION, "first": FIRST_TOKEN, "pace": PER_TOKEN, "tokens": TOKENS, "overhead": OVERHEAD}
LABELS = ("endpoint", "alias")
# Characters that the exposition format has to escape are among them.
VALUES = st.tuples(st.sampled_from(["chat", "rerank"]), st.sampled_from(["a", 'quo"te', "back\\slash", "new\nline"]))


def _ours(*families) -> bytes:
    registry = CollectorRegistry()
    for family in families:
        registry.register(family)
    return generate_latest(registry)


def _theirs(registry: CollectorRegistry) -> bytes:
    """Without the time of creation, which the gateway does not export."""
    return b"".join(line for line in generate_latest(registry).splitlines(True) if b"_created" not in line)


@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS.keys())
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_histogram_shows_the_same_text(bounds, data):
    amounts = st.floats(-1, 3 * bounds[-1]) | st.sampled_from(bounds) | st.integers(0, 10)
    observed = data.draw(st.lists(st.tuples(VALUES, amounts), max_size=30))
    registry = CollectorRegistry()
    ours = Histogram("h", "A histogram", LABELS, bounds)
    theirs = TheirHistogram("h", "A histogram", LABELS, buckets=bounds, registry=registry)
    for labels, amount in observed:
        ours.at(*labels).observe(amount)
        theirs.labels(*labels).observe(amount)
    assert _ours(ours) == _theirs(registry)


@given(st.lists(st.tuples(VALUES, st.floats(0, 1e9)), max_size=30))
def test_a_counter_shows_the_same_text(added):
    registry = CollectorRegistry()
    ours = Counter("c", "A counter", LABELS)
    theirs = TheirCounter("c", "A counter", LABELS, registry=registry)
    for labels, amount in added:
        ours.add(*labels, amount=amount)
        theirs.labels(*labels).inc(amount)
    assert _ours(ours) == _theirs(registry)


def test_a_value_equal_to_a_bound_is_within_it():
    histogram = Histogram("h", "A histogram", (), (1.0, 2.0))
    histogram.at().observe(1.0)
    histogram.at().observe(2.0)
    text = _ours(histogram).decode()
    assert 'h_bucket{le="1.0"} 1.0' in text
    assert 'h_bucket{le="2.0"} 2.0' in text


def test_a_counter_can_be_asked():
    counter = Counter("c", "A counter", ("code",))
    counter.add("a")
    counter.add("a", amount=2)
    assert (counter.value("a"), counter.value("b")) == (3.0, 0.0)
    assert b'code="b"' not in _ours(counter), "asking makes no cell"


def test_a_family_without_observations_is_declared():
    assert b"# TYPE h histogram" in _ours(Histogram("h", "A histogram", ("a",), (1.0,)))
    assert b"# TYPE c_total counter" in _ours(Counter("c", "A counter", ("a",)))
