"""Engines that die, come back, or come back as somebody else, under load: who notices, and what users see of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.fleet.life import State
from loadtests.engine.process import EngineProcess
from tests.conftest import COLD, RunningGateway, Site, wait_until
from tests.integration.conftest import (
    PACED,
    PATIENT,
    WARM,
    History,
    Load,
    Place,
    begin,
    inferences,
    of_users,
    replica_of,
    settled,
    stream_at,
    warmups,
)

Start = Callable[..., EngineProcess]
INTERVAL = 0.1
BREAKER = {"eject": 0.5, "eject_most": 4, "probation": 2}
NOTICED = 3.0
"""Seconds in which a death is noticed: a look at once by its closed connection, and much for a busy machine."""


def front(site: Site, *engines: Any, warmup: Any = COLD, **flags: Any) -> RunningGateway:
    policy = site.routing(warmup=warmup, breaker=BREAKER)
    flags = {"policies": policy, "probe_interval": INTERVAL, **PATIENT, **flags}
    gateway = site.gateway([each.url for each in engines], **flags)
    gateway.wait_ready("sim-model", len(engines))
    return gateway


def test_nobody_sees_a_replica_die_that_had_not_answered_yet(site: Site, process: Start) -> None:
    stuck = process("--step-time", "60", "--max-num-seqs", "2")  # two of its requests are in prefill, the others wait
    sound = process("--step-time", "0.005")
    gateway = front(site, stuck, sound)
    history = History(gateway)
    replica = replica_of(gateway, stuck.url)
    with Load(gateway, users=24, once=True) as load:
        wait_until(lambda: replica.in_flight >= 6 and gateway.in_flight() == replica.in_flight, "requests that wait")
        held = replica.in_flight
        stuck.kill()
    assert len(load.asked) == 24
    assert load.failures == []
    records = [gateway.records.last(request_id=each.request_id) for each in load.asked]
    assert sum(record["attempts"] == 2 for record in records) == held
    assert {record["replica"] for record in records} == {sound.url.partition("://")[2]}
    history.when(stuck.url, State.EJECTED, NOTICED)
    wait_until(lambda: settled(gateway), "nothing in flight")


def test_a_death_mid_stream_ends_the_streams_that_were_there_and_no_other(site: Site, process: Start) -> None:
    dying, sound = (process("--step-time", "0.05", "--prefill-tokens-per-second", "0") for _ in range(2))
    gateway = front(site, dying, sound)
    history = History(gateway)
    replica = replica_of(gateway, dying.url)
    with Load(gateway, users=12, once=True, tokens=60) as load:
        wait_until(lambda: load.begun == 6 and gateway.in_flight() == 12, "all streams to begin")
        assert replica.in_flight
        dying.kill()
        history.when(dying.url, State.EJECTED, NOTICED)
        with Load(gateway) as later:
            later.more(10)
    assert later.failures == []
    for each in load.asked:
        record = gateway.records.last(request_id=each.request_id)
        cut = each.stream and record["replica"] == replica.id
        assert each.fine is not cut, record
        if cut:
            assert (each.status, each.code, each.first > 0) == (200, "engine_error", True)
            assert "[DONE]" not in each.text
            assert (record["reason"], record["attempts"]) == ("reset", 1)
    wait_until(lambda: settled(gateway), "nothing in flight")


def test_another_process_at_the_same_port_is_warmed_up_before_users_reach_it(
    site: Site, place: Callable[..., Place]
) -> None:
    returning, other = place(**PACED), site.engine(**PACED)
    gateway = front(site, returning, other, warmup=WARM)
    history = History(gateway)
    with Load(gateway) as load:
        load.more(20)
        engine = returning.restart(gateway, **PACED)
        history.when(returning.url, State.READY)
        wait_until(lambda: of_users(engine), "a user there", 20.0)
        load.more(10)
    assert [each for each in load.failures if not each.begun] == []
    assert_warm_first(engine)
    assert {"warming", "ready"} <= set(history.of(returning.url))


def test_a_death_without_traffic_is_noticed_at_once_and_the_next_process_warmed_up(site: Site, process: Start) -> None:
    engine = process("--instant")
    gateway = front(site, engine, warmup=WARM, probe_interval=6)
    history = History(gateway)
    engine.kill()
    history.when(engine.url, State.EJECTED, 2.0)  # by its closed connection, not by the next look
    engine.restart()
    history.when(engine.url, State.WARMING)
    history.when(engine.url, State.READY)
    with Load(gateway, once=True) as load:
        pass
    assert load.failures == []
    assert history.of(engine.url)[-1] == "ready"


def assert_warm_first(engine: Any) -> None:
    """No user's request was there before the last one of the warmup had ended."""
    users, asked = of_users(engine), inferences(engine)
    assert warmups(engine) >= 2
    assert users
    first = asked.index(users[0])
    assert first >= warmups(engine)
    assert all(each.state == "finished" for each in asked[:first])


def test_another_model_at_the_same_port_never_gets_what_was_for_the_one_before(
    site: Site, place: Callable[..., Place]
) -> None:
    returning = place(**PACED)
    gateway = front(site, returning, warmup=WARM)
    with Load(gateway, users=4) as load:
        load.more(10)
        engine = returning.restart(gateway, model="other-model", **PACED)
        gateway.wait_ready("other-model")
        refused = len(load.failures)
        wait_until(lambda: len(load.failures) > refused + 4, "refusals")
    assert of_users(engine) == []
    assert warmups(engine) >= 2
    assert {(each.status, each.code) for each in load.failures[-4:]} == {(503, "no_ready_replica")}
    assert all(1 <= (each.retry_after or 0) <= 60 for each in load.failures if each.status == 503)
    wait_until(lambda: "other-model" in gateway.gateway.core.aliases.table.current, "an alias for the new model")
    with Load(gateway, once=True, model="other-model") as load:
        pass
    assert load.failures == []


def test_with_all_gone_the_answers_say_for_how_long_and_it_heals_by_itself(site: Site, process: Start) -> None:
    engines = [process("--step-time", "0.01", "--prefill-tokens-per-second", "0") for _ in range(2)]
    gateway = front(site, *engines, warmup=WARM)
    history = History(gateway)
    with Load(gateway, users=4) as load:
        load.more(10)
        for engine in engines:
            engine.kill()
        for engine in engines:
            history.when(engine.url, State.EJECTED, NOTICED)
        dead = len(load.failures)
        wait_until(lambda: len(load.failures) >= dead + 8, "refusals")
        for engine in engines:
            engine.restart()
        back = min(history.when(engine.url, State.READY) for engine in engines)
        before = len(load.asked)
        gateway.wait_ready("sim-model", 2)
        load.more(20)
    refused = [each for each in load.failures if each.status == 503]
    assert {each.code for each in refused} == {"no_ready_replica"}
    assert len(refused) >= 8
    assert all(1 <= (each.retry_after or 0) <= 2 * BREAKER["eject_most"] for each in refused)
    # Whoever came back when the last answers before the return had said would have been served, and soon.
    assert all(-NOTICED <= each.began + (each.retry_after or 0) - back <= NOTICED for each in refused[-4:])
    assert [each for each in load.asked[before:] if not each.fine and each.began > back] == []
    wait_until(lambda: settled(gateway), "nothing in flight")
    assert sum("ready" in history.of(engine.url) for engine in engines) == 2


def test_a_vllm_that_drains_is_sent_nothing_after_its_first_refusal(site: Site) -> None:
    leaving, other = site.engine(step_time=0.02, prefill_tokens_per_second=0.0, drain_linger=0.0), site.engine(**PACED)
    gateway = front(site, leaving, other)
    history = History(gateway)
    with stream_at(gateway, leaving.url, 250) as running:
        ending = begin(site, leaving.shutdown(20.0))
        wait_until(lambda: leaving._draining, "the drain")
        with Load(gateway, users=3) as load:
            history.when(leaving.url, State.EJECTED)
            load.more(3)  # what was on its way then has arrived
            left = len(of_users(leaving))
            load.more(20)
        assert load.failures == []
        assert 1 < left == len(of_users(leaving)) <= 1 + 3
        retried = [record for record in gateway.records.lines if record["attempts"] == 2]
        assert [record["reason"] for record in retried] == ["closing"] * (left - 1)
    ending.result(20)
    assert running.failures == []
    assert running.asked[0].text.count("data: {") >= 250
    wait_until(lambda: settled(gateway), "nothing in flight")
