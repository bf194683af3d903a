"""What takes a replica out for its errors, what never does, and how it comes back."""

from __future__ import annotations

import socket
from typing import Any

import orjson
import pytest

from gateway.fleet.life import Sign, State
from tests.conftest import COLD, RunningGateway, Site, wait_until
from tests.integration.conftest import PACED, PATIENT, History, Load, of_users, replica_of, set_fault, settled, state_of

INTERVAL = 0.1
CONSECUTIVE, PROOFS, EJECT = 4, 10, 0.5
BREAKER = {"consecutive": CONSECUTIVE, "requests": 1000, "eject": EJECT, "eject_most": 30, "probation": PROOFS}
USERS = 6
CLIENTS_FAULT = {"status": 400, "message": "nonsense", "type": "BadRequestError"}


def front(site: Site, *engines: Any, **flags: Any) -> RunningGateway:
    policy = site.routing(warmup=COLD, breaker=BREAKER)
    gateway = site.gateway(engines, policies=policy, probe_interval=INTERVAL, **PATIENT, **flags)
    gateway.wait_ready("sim-model", len(engines))
    return gateway


def test_a_listener_that_flaps_is_out_for_longer_each_time_and_no_user_sees_it(site: Site) -> None:
    flapping, sound = (site.engine(keep_alive_timeout=0.2, **PACED) for _ in range(2))
    gateway = front(site, flapping, sound)
    history, replica = History(gateway), replica_of(gateway, flapping.url)
    with Load(gateway, USERS) as load:
        load.more(10)
        set_fault(site, flapping, "flapping", down=0.4, up=0.4)
        wait_until(lambda: replica.life.ejections >= 3, "three ejections", 40.0)
        set_fault(site, flapping, None)
        history.when(flapping.url, State.READY, 40.0)
        load.more(10)
    for at, step in history.steps:
        if step.after.state is State.EJECTED:  # twice as long each time, give or take a fifth and a busy machine
            assert step.after.until - at >= 0.6 * EJECT * 2 ** (step.after.ejections - 1)
    assert load.failures == []
    assert history.of(sound.url) == []
    wait_until(lambda: settled(gateway), "nothing in flight")


@pytest.mark.parametrize("stream", [True, False])
def test_requests_that_are_at_fault_eject_nobody(site: Site, stream: bool) -> None:
    engines = [site.engine(**PACED) for _ in range(2)]
    gateway = front(site, *engines)
    history = History(gateway)
    for engine in engines:
        set_fault(site, engine, "status_burst", **CLIENTS_FAULT)
    with Load(gateway, users=8 * CONSECUTIVE, once=True, streams=stream) as load:
        pass
    assert {(each.status, each.code) for each in load.asked} == {(400, "invalid_request")}
    assert sum(len(of_users(engine)) for engine in engines) == len(load.asked)
    assert history.steps == []


@pytest.mark.parametrize("tokens", [1, 4000], ids=["before the first byte", "mid-stream"])
def test_clients_that_leave_eject_nobody(site: Site, tokens: int) -> None:
    pace = {**PACED, "step_time": 30.0 if tokens == 1 else 0.01}
    engines = [site.engine(**pace) for _ in range(2)]
    gateway = front(site, *engines)
    history = History(gateway)
    key = gateway.key()
    messages = [{"role": "user", "content": "hello"}]
    data = orjson.dumps({"model": "sim-model", "messages": messages, "max_tokens": 4000, "stream": True})
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    for turn in range(4 * CONSECUTIVE):
        with socket.create_connection(gateway.address, timeout=20) as leaving:
            leaving.sendall(head.encode() + data)
            wait_until(lambda turn=turn: sum(map(len, map(of_users, engines))) > turn, "the request at an engine")
            if tokens > 1:
                assert leaving.recv(1)
    wait_until(lambda: settled(gateway) and len(gateway.records.lines) == 4 * CONSECUTIVE, "nothing in flight")
    assert {record["status"] for record in gateway.records.lines} <= {499, 200}
    assert history.steps == []


def test_a_storm_of_errors_ejects_one_and_it_proves_itself_request_by_request(site: Site) -> None:
    failing, sound = (site.engine(**PACED) for _ in range(2))
    gateway = front(site, failing, sound)
    history, replica = History(gateway), replica_of(gateway, failing.url)
    begun: list[tuple[State, int]] = []
    enter = replica.enter

    def note() -> None:
        enter()
        begun.append((replica.life.state, replica.in_flight))

    replica.enter = note
    with Load(gateway, users=3) as load:  # as many as the budget for retries always covers
        load.more(10)
        set_fault(site, failing, "status_burst")
        history.when(failing.url, State.EJECTED)
        load.more(3)  # what was on its way then has arrived
        left = len(of_users(failing))
        wait_until(lambda: replica.life.ejections >= 2, "a canary that fails")
        load.more(10)
        assert len(of_users(failing)) == left
        set_fault(site, failing, None)
        history.when(failing.url, State.PROBATION)
        history.when(failing.url, State.READY)
        load.more(10)
    assert load.failures == []  # each was tried elsewhere
    (ejection,) = [step for _, step in history.steps if step.after.state is State.EJECTED]
    assert (ejection.sign, ejection.after.for_errors) == (Sign.FAILING, True)
    assert f"{CONSECUTIVE} failures in a row" in ejection.after.reason
    assert {count for state, count in begun if state is State.PROBATION} <= {1}
    assert {state for state, _ in begun} <= {State.READY, State.PROBATION}
    assert history.of(failing.url) == ["ejected", "probation", "ready"]
    assert history.of(sound.url) == []
    wait_until(lambda: settled(gateway), "nothing in flight")


@pytest.mark.parametrize(("count", "most"), [(4, 2), (2, 1), (1, 0)])
def test_when_all_fail_only_the_stated_share_is_out(site: Site, count: int, most: int) -> None:
    engines = [site.engine(**PACED) for _ in range(count)]
    gateway = front(site, *engines)
    registry, out = gateway.gateway.core.registry, [0]
    registry.on_transition(lambda _: out.append(sum(each.life.state is not State.READY for each in registry.replicas)))
    for engine in engines:
        set_fault(site, engine, "status_burst")
    with Load(gateway, USERS) as load:
        wait_until(lambda: max(out) == most, "the share that may go")
        seen = len(load.asked)
        wait_until(lambda: len(load.asked) > seen + 20 * count, "many more failures", 30.0)
    assert max(out) == most
    assert {each.status for each in load.failures} == {502}
    for engine in engines:
        set_fault(site, engine, None)
    with Load(gateway, once=True) as load:
        pass
    assert load.failures == [], [gateway.records.last(request_id=each.request_id) for each in load.failures]
    assert "ready" in {state_of(gateway, engine.url) for engine in engines}
