"""The life of a replica, step by step, and the snapshot that is made of all lives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import product

import pytest

from gateway.errors import EngineReset, EngineTimeout, EngineUnreachable
from gateway.fleet.registry import Registry, Replica
from gateway.fleet.replica import TRANSITIONS, Life, Observation, Sign, State, advance
from gateway.model import EngineSpec
from gateway.policy.engines import Verdict
from gateway.wire.deadline import Sweeper
from gateway.wire.upstream import UpstreamLimits

GOOD = Observation(True, ("m",), 2048)
BETTER = Observation(True, ("m", "n"), 4096)
GONE = Observation(healthy=False)

# (state, what is seen) -> state; what is missing leaves the state alone
WANTED = {
    (State.FOUND, "good"): State.READY,
    (State.FOUND, "gone"): State.FOUND,
    (State.FOUND, "serves nothing"): State.FOUND,
    (State.READY, "good"): State.READY,
    (State.READY, "gone"): State.EJECTED,
    (State.READY, "serves nothing"): State.EJECTED,
    (State.EJECTED, "good"): State.READY,
    (State.EJECTED, "gone"): State.EJECTED,
    (State.EJECTED, "serves nothing"): State.EJECTED,
}
SEEN = {"good": GOOD, "gone": GONE, "serves nothing": Observation(healthy=True)}


def test_the_table_of_lives_is_whole():
    assert set(WANTED) == set(product(State, SEEN))
    assert {State.READY} == {after for (_, sign), after in TRANSITIONS.items() if sign is Sign.HEALTHY}
    assert State.READY not in {after for (_, sign), after in TRANSITIONS.items() if sign is Sign.UNHEALTHY}


@pytest.mark.parametrize(("state", "name"), WANTED)
def test_each_step_of_a_life(state, name):
    after = advance(Life(state, BETTER), SEEN[name])
    assert after.state is WANTED[state, name]
    assert after.seen == (GOOD if name == "good" else BETTER)


@pytest.mark.parametrize(
    ("state", "after"),
    [(State.FOUND, State.FOUND), (State.READY, State.EJECTED), (State.EJECTED, State.EJECTED)],
)
def test_an_engine_that_policy_refuses_is_never_ready_and_says_why(state, after):
    life = advance(Life(state, BETTER), GOOD, Verdict(True, "too old"))
    assert life == Life(after, BETTER, "too old")
    assert advance(life, GONE) == Life(after, BETTER, "too old")  # nothing new is known of it
    assert advance(life, GOOD) == Life(State.READY, GOOD)


def test_an_engine_that_policy_warns_of_serves():
    assert advance(Life(), GOOD, Verdict(False, "old")) == Life(State.READY, GOOD, "old")


@pytest.fixture
def changes() -> list[int]:
    """One item for each snapshot that was made."""
    return []


@pytest.fixture
def registry(changes: list[int]) -> Iterator[Registry]:
    loop = asyncio.new_event_loop()
    sweeper = Sweeper(loop)
    engines = [EngineSpec(f"http://127.0.0.1:{port}") for port in (1, 2, 3)]
    registry = Registry(loop, sweeper, engines, UpstreamLimits(), lambda: changes.append(1))
    yield registry
    registry.close()
    registry.close()
    sweeper.close()
    loop.close()


def indexes(replicas: object) -> list[int]:
    return [replica.index for replica in replicas]  # type: ignore[attr-defined]


def test_nothing_is_ready_before_it_was_seen(registry):
    assert registry.ready("m") == ()
    assert not registry.any_ready()
    assert list(registry.served_models()) == []


def test_the_snapshot_follows_each_life(registry):
    first, second, _ = registry.replicas
    first.observe(GOOD)
    second.observe(BETTER)
    before = registry.ready("m")
    assert indexes(before) == [0, 1]
    assert indexes(registry.ready("n")) == [1]
    assert list(registry.served_models()) == ["m", "n"]
    first.observe(GONE)
    assert indexes(registry.ready("m")) == [1]
    assert indexes(before) == [0, 1]  # a snapshot that a request holds does not change
    first.observe(Observation(True, ("other",)))
    assert indexes(registry.ready("m")) == [1]
    assert indexes(registry.ready("other")) == [0]
    second.observe(GONE)
    first.observe(GONE)
    assert not registry.any_ready()


def test_only_a_change_makes_a_new_snapshot(registry, changes):
    replica = registry.replicas[0]
    replica.observe(GONE)
    assert len(changes) == 0
    replica.observe(GOOD)
    snapshot = registry.ready("m")
    replica.observe(Observation(True, ("m",), 2048))
    assert len(changes) == 1
    assert registry.ready("m") is snapshot


@pytest.mark.parametrize(
    ("error", "state"),
    [(EngineUnreachable(), State.EJECTED), (EngineReset(), State.READY), (EngineTimeout(), State.READY)],
)
def test_only_a_replica_that_cannot_be_reached_is_out_at_once(registry, error, state):
    replica: Replica = registry.replicas[0]
    replica.observe(GOOD)
    replica.note_failure(error)
    assert replica.life.state is state
    assert bool(registry.ready("m")) == (state is State.READY)
    replica.observe(GOOD)
    assert indexes(registry.ready("m")) == [0]


def test_what_is_in_flight_is_counted(registry):
    replica = registry.replicas[0]
    replica.enter()
    replica.enter()
    replica.leave()
    assert replica.in_flight == 1
    assert replica.open_connections == 0
