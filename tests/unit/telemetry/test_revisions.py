"""How revisions do: what counts as what, what is kept, and what is told to the store."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.errors import CODES
from gateway.telemetry.revisions import RevisionStats
from gateway.telemetry.trace import Trace

BOUNDS = (0.1, 1.0)


def _trace(alias="general", revision=1, **fields):
    trace = Trace("req_1", fields.pop("time", 5.0), 0.0)
    trace.alias, trace.revision, trace.status = alias, revision, 200
    for name, value in fields.items():
        setattr(trace, name, value)
    return trace


def _stats(*traces):
    stats = RevisionStats(BOUNDS, BOUNDS)
    for trace in traces:
        stats.observe(trace)
    return stats


def test_only_what_the_gateway_or_an_engine_failed_at_is_a_failure():
    for code, spec in CODES.items():
        cell = _stats(_trace(status=spec.status, error=code)).tracks("general", 1)["stable"]
        assert (cell.served, cell.failures) == (0, int(spec.status >= 500)), code


def test_a_stream_that_failed_after_it_had_begun_is_a_failure_and_not_served():
    cell = _stats(_trace(status=200, error="engine_error")).tracks("general", 1)["stable"]
    assert (cell.served, cell.failures) == (0, 1)


def test_tracks_of_a_trial_are_counted_apart():
    stats = _stats(_trace(), _trace(track="canary", ttft_ms=50.0, tpot_ms=500.0), _trace(track="canary"))
    tracks = stats.tracks("general", 1)
    assert {name: cell.served for name, cell in tracks.items()} == {"stable": 1, "canary": 2}
    assert (tracks["canary"].ttft.counts, tracks["canary"].per_token.counts) == ([1, 0, 0], [0, 1, 0])


def test_a_request_without_an_alias_is_nobodys():
    stats = _stats(_trace(alias=None, revision=None))
    assert (list(stats.tracks("general", 1)), dict(stats.take_uses())) == ([], {})


def test_only_the_newest_revisions_that_were_called_are_kept():
    stats = _stats(*(_trace(revision=number) for number in (1, 2, 3, 4, 5, 6)))
    assert [bool(stats.tracks("general", number)) for number in range(1, 7)] == [False, False, True, True, True, True]
    stats.observe(_trace(revision=1))  # pinned: older than what is kept
    assert stats.tracks("general", 6)


def test_aliases_that_are_gone_are_forgotten():
    stats = _stats(_trace(), _trace(alias="other"))
    stats.forget(["other"])
    assert not stats.tracks("general", 1)
    assert stats.tracks("other", 1)


def test_uses_are_taken_once_and_may_be_given_back_without_hiding_newer_ones():
    stats = _stats(_trace(time=5.0), _trace(revision=2, time=6.0), _trace(revision=3, status=502, error="engine_error"))
    uses = stats.take_uses()
    assert uses == {("general", 1): 5.0, ("general", 2): 6.0}
    assert stats.take_uses() == {}
    stats.observe(_trace(time=9.0))
    stats.give_back(uses)
    assert stats.take_uses() == {("general", 1): 9.0, ("general", 2): 6.0}


def test_the_families_are_sound_expositions_with_closed_labels():
    registry = CollectorRegistry()
    registry.register(_stats(_trace(ttft_ms=50.0), _trace(track="canary", error="engine_error", status=502)))
    families = {f.name: f for f in text_string_to_metric_families(generate_latest(registry).decode())}
    order = ("alias", "revision", "track", "outcome")
    samples = families["gateway_alias_requests"].samples
    requests = {tuple(s.labels[name] for name in order): s.value for s in samples}
    assert requests == {
        ("general", "1", "stable", "served"): 1.0,
        ("general", "1", "stable", "failed"): 0.0,
        ("general", "1", "canary", "served"): 0.0,
        ("general", "1", "canary", "failed"): 1.0,
    }
    buckets = [
        s.value
        for s in families["gateway_alias_time_to_first_token_seconds"].samples
        if s.name.endswith("_bucket") and s.labels["track"] == "stable"
    ]
    assert buckets == [1.0, 1.0, 1.0]
