"""Engines that take requests and do not move, whatever their health check says; and those that are only slow."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.fleet.life import State
from loadtests.engine.process import EngineProcess
from tests.conftest import COLD, RunningGateway, Site, wait_until
from tests.integration.conftest import (
    PACED,
    PATIENT,
    WARM,
    History,
    Load,
    of_users,
    replica_of,
    set_fault,
    settled,
    state_of,
    stream_at,
    warmups,
)

Start = Callable[..., EngineProcess]
INTERVAL = 0.1
HANG = 1.0
IDLE = 4.0  # more than it takes to find a hang
LOOK = 3.5  # what a look at a silent engine takes
MARGIN = 3.0  # for a busy machine
BREAKER = {"eject": 0.5, "eject_most": 2, "probation": 2}
HEALTH = {"hang": HANG, "blind_hang": 2 * HANG, "canary_interval": 0, "canary_limit": 1}


def front(
    site: Site, *engines: Any, warmup: Any = COLD, health: Any = HEALTH, strategy: str = "estimate", **flags: Any
) -> RunningGateway:
    policy = site.routing(warmup=warmup, breaker=BREAKER, health=health, balancing={"strategy": strategy})
    flags = {"timeouts_idle": IDLE, "policies": policy, "probe_interval": INTERVAL, **PATIENT, **flags}
    gateway = site.gateway([each.url for each in engines], **flags)
    gateway.wait_ready("sim-model", len(engines))
    return gateway


def assert_only_begun_streams(load: Load, gateway: RunningGateway, at: str) -> None:
    """Whatever failed was a stream that its user had seen begin at that replica, and the idle timeout ended it."""
    for each in load.failures:
        record = gateway.records.last(request_id=each.request_id)
        assert each.begun, record
        assert (each.code, record["reason"], record["replica"]) == ("engine_timeout", "timeout", at)
        assert "[DONE]" not in each.text


@pytest.mark.parametrize(
    "fault",
    [
        "health_ok_generation_hangs",  # the process that computes is frozen, and the gauges with it
        "paused",  # the gauges say that nothing is pending
        "accept_and_hang",  # not even a head comes
    ],
)
def test_a_hang_behind_a_good_health_check_is_found_and_who_waits_is_answered_elsewhere(site: Site, fault: str) -> None:
    hanging, sound = (site.engine(**PACED) for _ in range(2))
    gateway = front(site, hanging, sound, warmup=WARM)
    history, at = History(gateway), replica_of(gateway, hanging.url).id
    with Load(gateway) as load:
        load.more(20)
        warmed = warmups(hanging)
        begun = time.monotonic()
        set_fault(site, hanging, fault)
        found = history.when(hanging.url, State.EJECTED) - begun
        assert found <= HANG + 3 * INTERVAL + MARGIN
        load.more(10)
        left = len(of_users(hanging))
        load.more(20)
        assert len(of_users(hanging)) == left
        wait_until(lambda: replica_of(gateway, hanging.url).life.ejections >= 2, "a canary that is not answered")
        wait_until(
            lambda: not replica_of(gateway, hanging.url).in_flight, "who waits to be answered, begun ones to end"
        )
        set_fault(site, hanging, None)
        history.when(hanging.url, State.PROBATION)
        history.when(hanging.url, State.READY)
        wait_until(lambda: len(of_users(hanging)) > left + 2, "users there again")
    assert_only_begun_streams(load, gateway, at)
    waited = max(each.ended - each.began for each in load.asked if each.fine)
    assert waited <= HANG + 3 * INTERVAL + 2 * MARGIN
    assert warmups(hanging) == warmed
    assert {"found", "starting", "warming"}.isdisjoint(history.of(hanging.url))
    assert history.of(sound.url) == []
    wait_until(lambda: settled(gateway), "nothing in flight")


def test_a_frozen_process_is_found_by_its_silence_and_comes_back_as_the_same(site: Site, process: Start) -> None:
    frozen, sound = (process("--step-time", "0.02", "--prefill-tokens-per-second", "0") for _ in range(2))
    health = {"hang": 30, "blind_hang": 120, "misses": 1}  # no counter can be read that would show a hang
    gateway = front(site, frozen, sound, warmup=WARM, health=health, timeouts_idle=60)
    history, replica = History(gateway), replica_of(gateway, frozen.url)
    with Load(gateway) as load, stream_at(gateway, frozen.url, 150) as running:
        begun = time.monotonic()
        frozen.freeze()
        with Load(gateway, users=6, once=True) as waiting:
            found = history.when(frozen.url, State.EJECTED) - begun
        # A look at its metrics and one at its health; both once more if it was heard after the look before its stop.
        assert found <= 4 * LOOK + 2 * INTERVAL + MARGIN
        assert waiting.failures == []
        load.more(10)
        assert running.asked == []
        assert replica.in_flight >= 1
        frozen.thaw()
        history.when(frozen.url, State.PROBATION)
        history.when(frozen.url, State.READY)
    assert load.failures == []
    assert running.failures == []
    assert {"found", "starting", "warming"}.isdisjoint(history.of(frozen.url))
    wait_until(lambda: settled(gateway), "nothing in flight")


def test_an_idle_engine_that_hangs_is_found_before_a_user_meets_it(site: Site) -> None:
    hanging, sound = (site.engine(**PACED) for _ in range(2))
    gateway = front(site, hanging, sound, health={**HEALTH, "canary_interval": 0.5})
    history = History(gateway)
    begun = time.monotonic()
    set_fault(site, hanging, "paused")
    assert history.when(hanging.url, State.EJECTED) - begun <= 0.5 + 1.0 + 3 * INTERVAL + MARGIN
    with Load(gateway, once=True) as load:
        pass
    assert load.failures == []
    assert of_users(hanging) == []
    assert {gateway.records.last(request_id=each.request_id)["attempts"] for each in load.asked} == {1}
    set_fault(site, hanging, None)
    history.when(hanging.url, State.READY)


@pytest.mark.parametrize("cap", [20, 400], ids=["slow", "dying"])
def test_a_slow_engine_is_kept_while_it_moves_and_taken_out_once_it_does_not(site: Site, cap: float) -> None:
    """By policy, slow is no fault: a step that takes less than ``hang`` is progress, one that takes longer is none."""
    slow, sound = (site.engine(**PACED) for _ in range(2))
    # The default would keep users from an engine that it has found slow.
    gateway = front(site, slow, sound, timeouts_idle=60, strategy="round-robin")
    history = History(gateway)
    with Load(gateway, tokens=4) as load:
        load.more(10)
        set_fault(site, slow, "slow_death", factor=3.0, cap=cap)  # steps of 0.2 s, or of 4 s
        if cap == 400:
            history.when(slow.url, State.EJECTED)
            load.more(10)
            set_fault(site, slow, None)
        else:
            wait_until(lambda: slow._scheduler.pace.factor >= cap, "the slowest pace", 20.0)
            seen = len(of_users(slow))
            begun = time.monotonic()
            wait_until(lambda: time.monotonic() - begun > 2 * HANG and len(of_users(slow)) > seen + 2, "users", 20.0)
            assert history.of(slow.url) == []
    assert load.failures == []


def test_a_busy_engine_that_moves_is_never_taken_out_for_slow_looks(site: Site) -> None:
    busy = site.engine(**PACED)
    gateway = front(site, busy, health={**HEALTH, "misses": 2})
    history, replica = History(gateway), replica_of(gateway, busy.url)
    with Load(gateway) as load:
        load.more(5)
        set_fault(site, busy, "health_slow", seconds=5)
        wait_until(lambda: looks(busy, "/health") >= 2, "slow looks")
        begun = looks(busy, "/health")
        wait_until(lambda: looks(busy, "/health") >= begun + 3, "as many misses as would do", 40.0)
    assert load.failures == []
    assert history.of(busy.url) == []
    assert replica.life.state is State.READY


def looks(engine: Any, path: str) -> int:
    return sum(each.path == path for each in list(engine.requests))


@pytest.fixture
def mute() -> Iterator[str]:
    """A listener that takes connections and never says a byte."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_what_takes_connections_and_never_says_a_byte_gets_no_user(site: Site, mute: str) -> None:
    sound = site.engine(**PACED)
    gateway = site.gateway([mute, sound], policies=site.routing(warmup=COLD, health=HEALTH), probe_interval=INTERVAL)
    with Load(gateway) as load:
        wait_until(lambda: state_of(gateway, mute) == "starting", "its silence seen", 15.0)
        load.more(5)
    assert load.failures == []
    assert replica_of(gateway, mute).open_connections == 0
