"""What is taken of an engine of which nothing more is said."""

from __future__ import annotations

from gateway.fleet.engines.base import Adapter


def test_an_unknown_engine_is_trusted_with_nothing():
    adapter = Adapter("x", frozenset(), {}, frozenset(), ())
    assert (adapter.metrics_path, adapter.health_path, adapter.version_path) == ("/metrics", "/health", "/version")
    assert not adapter.cache_salt
