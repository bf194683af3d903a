"""SGLang, which behaves otherwise than vLLM where a gateway looks: played from its captures."""

from __future__ import annotations

import orjson

from gateway.fleet.life import State
from tests.conftest import COLD, RunningGateway, Site, wait_until
from tests.integration.conftest import (
    PACED,
    PATIENT,
    WARM,
    History,
    Load,
    begin,
    of_users,
    replica_of,
    settled,
    state_of,
    stream_at,
    warmups,
)

INTERVAL = 0.1
SGLANG = {"persona": "sglang", "client_poll": 0.2, "drain_linger": 0.2, **PACED}


def front(site: Site, *urls: str, warmup: object = COLD, ready: int) -> RunningGateway:
    policy = site.routing(warmup=warmup, health={"misses": 1})
    gateway = site.gateway(urls, policies=policy, probe_interval=INTERVAL, **PATIENT)
    gateway.wait_ready("sim-model", ready)
    wait_until(lambda: "sim-model" in gateway.gateway.core.aliases.table.current, "its alias, made once it is met")
    return gateway


def health_looks(engine: object) -> int:
    return sum(each.path == "/health" and each.state == "finished" for each in list(engine.requests))


def test_its_slow_health_check_is_no_fault(site: Site) -> None:
    engine = site.engine(**SGLANG)
    gateway = front(site, engine.url, warmup=WARM, ready=1)
    history = History(gateway)
    assert replica_of(gateway, engine.url).adapter.name == "sglang"
    assert warmups(engine) >= 2
    with Load(gateway) as load:
        seen = health_looks(engine)
        wait_until(lambda: health_looks(engine) >= seen + 2, "two more looks")
        load.more(10)
    assert load.failures == []
    assert history.steps == []


def test_one_that_goes_on_serving_to_its_end_gets_nothing_new_and_loses_no_stream(site: Site) -> None:
    leaving, other = (site.engine(**SGLANG) for _ in range(2))
    gateway = front(site, leaving.url, other.url, ready=2)
    history = History(gateway)
    with Load(gateway) as load:
        with stream_at(gateway, leaving.url, 600) as running:
            ending = begin(site, leaving.shutdown())
            history.when(leaving.url, State.EJECTED)
            load.more(3)  # what was on its way then has arrived
            left = len(of_users(leaving))
            load.more(20)
            assert len(of_users(leaving)) == left
        ending.result(20)
        load.more(10)
    assert running.failures == []
    assert load.failures == []
    assert state_of(gateway, leaving.url) == "ejected"
    wait_until(lambda: settled(gateway), "nothing in flight")


def test_a_full_queue_told_inside_a_stream_is_tried_elsewhere_and_ejects_nobody(site: Site) -> None:
    full, free = site.engine(max_num_queued_requests=0, **SGLANG), site.engine(**SGLANG)
    gateway = front(site, full.url, free.url, ready=2)
    history = History(gateway)
    with Load(gateway, users=3) as load:  # as many as the budget for retries always covers
        wait_until(lambda: len(of_users(full)) >= 12, "requests that find it full", 20.0)
    assert load.failures == []
    assert {"busy"} == {record["reason"] for record in gateway.records.lines if record["attempts"] == 2}
    assert {each.stream for each in load.asked} == {True, False}
    assert history.steps == []


def test_names_that_it_would_serve_but_are_another_pools_never_reach_it(site: Site) -> None:
    engine, other = site.engine(**PACED), site.engine(model="other-model", **SGLANG)
    gateway = front(site, engine.url, other.url, ready=1)
    gateway.wait_ready("other-model")
    history = History(gateway)
    with Load(gateway, users=4) as load:
        load.more(10)
        site.run(engine.close())
        gone = history.when(engine.url, State.EJECTED)
        wait_until(lambda: len([each for each in load.failures if each.began > gone]) > 4, "refusals")
    assert {each.code for each in load.failures if each.began > gone} == {"no_ready_replica"}
    assert {orjson.loads(each.body)["model"] for each in of_users(other)} <= {"other-model"}
    with Load(gateway, once=True, model="other-model") as load:
        pass
    assert load.failures == []
