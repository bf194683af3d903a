"""Who can serve what: a snapshot that follows each replica's life, and who may be spared."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.life import ROUTABLE, Sign, State
from gateway.fleet.look import Seen
from gateway.fleet.registry import Registry
from gateway.fleet.replica import Replica, Transition
from gateway.model import EngineSpec
from gateway.policy.fleet import Breaker, FleetPolicy

WARM = (Sign.HEALTHY, Sign.WARM)
PATHS: dict[State, tuple[Sign, ...]] = {
    State.FOUND: (),
    State.STARTING: (Sign.LISTENS,),
    State.WARMING: (Sign.HEALTHY,),
    State.READY: WARM,
    State.EJECTED: (*WARM, Sign.HUNG),
    State.PROBATION: (*WARM, Sign.HUNG, Sign.RESTED),
    State.DRAINING: (*WARM, Sign.DRAIN),
    State.GONE: (*WARM, Sign.DRAIN, Sign.EMPTY),
}


class Site:
    """A registry whose replicas have links that only count their ends."""

    def __init__(self, count: int = 3, *models: str, share: float = 0.5) -> None:
        self.now = 100.0
        self.policy = FleetPolicy(breaker=Breaker(share=share, eject=10.0, eject_most=600.0, probation=1))
        self.closed: list[str] = []
        self.registry = Registry(self._make, lambda: self.policy, now=lambda: self.now)
        self.replicas = [
            self.registry.add(EngineSpec(f"http://127.0.0.1:{port}"), "file") for port in range(8001, 8001 + count)
        ]
        for each in self.replicas:
            each.seen = Seen(models)

    def _make(self, spec: EngineSpec, origin: str, told: Any, spare: Any) -> Replica:
        link: Any = SimpleNamespace(close=lambda: self.closed.append(spec.id), give_up=lambda _: None)
        return Replica(
            spec,
            lambda _: link,
            lambda: self.policy,
            told,
            spare,
            origin=origin,
            now=lambda: self.now,
            random=lambda: 0.5,
        )

    def bring(self, replica: Replica, state: State) -> None:
        for sign in PATHS[state]:
            replica.take(sign)
        assert replica.life.state is state


# --- snapshots


@pytest.mark.parametrize("state", list(State))
def test_only_ready_and_probation_are_offered(state):
    site = Site(1, "m")
    site.bring(site.replicas[0], state)
    offered = state in ROUTABLE
    assert list(site.registry.ready("m")) == (site.replicas if offered else [])
    assert site.registry.any_ready() is offered
    assert list(site.registry.served_models()) == (["m"] if offered else [])
    assert list(site.registry.listed_models()) == ["m"]


def test_a_model_is_offered_by_those_that_serve_it():
    site = Site(3)
    one, two, three = site.replicas
    one.seen, two.seen, three.seen = Seen(("a", "b")), Seen(("b",)), Seen(("c",))
    site.bring(one, State.READY)
    site.bring(two, State.PROBATION)
    assert (list(site.registry.ready("a")), list(site.registry.ready("b"))) == ([one], [one, two])
    assert list(site.registry.ready("c")) == []
    assert (list(site.registry.served_models()), list(site.registry.listed_models())) == (["a", "b"], ["a", "b", "c"])
    before = site.registry.ready("b")
    one.take(Sign.LOST)
    assert list(site.registry.ready("b")) == [two]
    assert list(before) == [one, two]  # what a request holds does not change


def test_each_replica_is_bounded_by_what_is_said_of_it():
    site = Site(3)
    limits = {replica.id: 5 + number for number, replica in enumerate(site.replicas)}
    site.registry.bound(lambda replica: limits[replica.id])
    assert [replica.room for replica in site.replicas] == [5, 6, 7]


def test_what_an_engine_serves_now_is_offered_once_it_is_published():
    site = Site(1, "a")
    site.bring(site.replicas[0], State.READY)
    snapshot = site.registry.ready("a")
    assert site.registry.ready("a") is snapshot
    site.replicas[0].seen = Seen(("b",))
    site.registry.publish()
    assert (list(site.registry.ready("a")), list(site.registry.ready("b"))) == ([], site.replicas)


def test_the_shortest_context_of_those_that_are_offered_counts():
    site = Site(2)
    one, two = site.replicas
    one.seen, two.seen = Seen(("a", "b"), 4096), Seen(("a", "c"), 2048)
    assert site.registry.max_model_len("a") is None
    site.bring(one, State.READY)
    assert [site.registry.max_model_len(model) for model in "abcd"] == [4096, 4096, None, None]
    site.bring(two, State.READY)
    assert [site.registry.max_model_len(model) for model in "abcd"] == [2048, 4096, 2048, None]
    two.take(Sign.DRAIN)
    assert site.registry.max_model_len("a") == 4096
    one.seen = Seen(("a",))
    site.registry.publish()
    assert site.registry.max_model_len("a") is None


def test_each_transition_is_told_after_the_snapshot_is_made():
    site = Site(1, "m")
    told: list[tuple[Transition, int]] = []
    site.registry.on_transition(lambda step: told.append((step, len(site.registry.ready("m")))))
    site.bring(site.replicas[0], State.READY)
    site.replicas[0].take(Sign.WARM)
    assert [(step.after.state, offered) for step, offered in told] == [(State.WARMING, 0), (State.READY, 1)]


def test_members_are_found_by_their_ids_and_dropped_with_their_connections():
    site = Site(2, "m")
    one, two = site.replicas
    site.bring(one, State.READY)
    assert (one.origin, site.registry.find("127.0.0.1:8002")) == ("file", two)
    assert site.registry.find("127.0.0.1:9") is None
    site.registry.drop(one)
    assert (site.registry.replicas, site.closed) == ((two,), ["127.0.0.1:8001"])
    assert not site.registry.any_ready()
    site.registry.close()
    site.registry.close()
    assert "127.0.0.1:8002" in site.closed


# --- when to come back


@pytest.mark.parametrize(
    ("state", "seconds"),
    [
        (State.FOUND, 30),
        (State.STARTING, 2),
        (State.WARMING, 2),
        (State.READY, 2),
        (State.PROBATION, 2),
        (State.EJECTED, 10),
        (State.DRAINING, 30),
        (State.GONE, 30),
    ],
)
def test_when_a_request_is_worth_another_try(state, seconds):
    site = Site(1, "m")
    site.bring(site.replicas[0], state)
    assert site.registry.back_in("m") == seconds


def test_the_soonest_of_a_pool_counts_and_all_of_it_is_bounded():
    site = Site(2, "m")
    assert site.registry.back_in("unknown") == 30
    one, two = site.replicas
    site.bring(one, State.EJECTED)
    one.life = replace(one.life, until=site.now + 500.0)
    assert site.registry.back_in("m") == 30  # the other one may come at any time
    two.seen = Seen(("other",))
    assert site.registry.back_in("m") == 60
    one.life = replace(one.life, until=site.now + 7.2)
    assert site.registry.back_in("m") == 8
    site.now += 500.0
    assert site.registry.back_in("m") == 2


# --- how many may be out for errors


def test_half_of_a_pool_may_go_for_errors_and_the_rest_is_kept_with_a_remark():
    site = Site(4, "m")
    for each in site.replicas:
        site.bring(each, State.READY)
    for each in site.replicas:
        each.fail("it errs")
    assert [each.life.state for each in site.replicas] == [State.EJECTED] * 2 + [State.READY] * 2
    assert [bool(each.remark) for each in site.replicas] == [False, False, True, True]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("count", [1, 2])
def test_the_last_one_is_never_taken_out_for_errors(count, share):
    site = Site(count, "m", share=share)
    for each in site.replicas:
        site.bring(each, State.READY)
        each.fail("it errs")
    for each in site.replicas:
        each.fail("it errs")
    assert sum(each.life.state is State.READY for each in site.replicas) == (1 if share and count == 2 else count)


def test_what_is_out_because_it_hangs_or_was_never_ready_is_no_part_of_the_pool():
    site = Site(4, "m")
    one, two, three, four = site.replicas
    site.bring(one, State.EJECTED)
    site.bring(two, State.WARMING)
    site.bring(three, State.READY)
    site.bring(four, State.DRAINING)
    three.fail("it errs")
    assert three.life.state is State.READY


@pytest.mark.parametrize("sign", [Sign.FAILING, Sign.HUNG])
def test_one_on_probation_is_not_yet_somebody_to_be_left(sign):
    site = Site(2, "m")
    one, two = site.replicas
    for each in site.replicas:
        site.bring(each, State.READY)
    one.take(sign)
    one.take(Sign.RESTED)
    two.fail("it errs")
    assert two.life.state is State.READY
    one.take(Sign.PROVEN)
    two.fail("it errs")
    assert two.life.state is State.EJECTED


def test_a_replica_of_several_models_is_spared_by_each_of_its_pools():
    site = Site(3)
    both, other, alone = site.replicas
    both.seen, other.seen, alone.seen = Seen(("a", "b")), Seen(("a",)), Seen(("b", "c"))
    for each in site.replicas:
        site.bring(each, State.READY)
    alone.fail("it errs")  # nobody else has c
    assert alone.life.state is State.READY
    both.fail("it errs")
    assert both.life.state is State.EJECTED
    other.fail("it errs")  # of those with a, half are out
    assert other.life.state is State.READY


def test_another_share_holds_from_the_next_failure_on():
    site = Site(3, "m", share=0.0)
    for each in site.replicas:
        site.bring(each, State.READY)
    site.replicas[0].fail("it errs")
    assert site.replicas[0].life.state is State.READY
    site.policy = FleetPolicy(breaker=Breaker(share=0.5))
    site.replicas[0].fail("it errs")
    assert site.replicas[0].life.state is State.EJECTED


EVENTS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(["fail", *Sign])),
    max_size=80,
)


@given(EVENTS, st.floats(0, 1))
def test_errors_alone_never_empty_a_pool_nor_take_more_than_its_share(events, share):
    """Whatever else happens, an ejection for errors of what was ready leaves one that is ready, and enough of them."""
    site = Site(5, "m", share=share)
    for each in site.replicas:
        site.bring(each, State.READY)
    for number, event in events:
        replica = site.replicas[number]
        if event != "fail":
            replica.take(event)
            continue
        before = replica.life.state
        replica.fail("it errs")
        if before is State.READY and replica.life.state is State.EJECTED:
            ready = sum(each.life.state is State.READY for each in site.replicas)
            out = sum(each.life.for_errors for each in site.replicas)
            assert ready >= 1
            assert out <= max(share * (ready + out) + 1e-9, 1)
    offered = [each for each in site.replicas if each.life.state in ROUTABLE]
    assert list(site.registry.ready("m")) == offered
