"""Replicas that are named no more, drained, let in again, or added while it is busy."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.fleet.discover.dns import DnsSource
from gateway.fleet.life import State
from loadtests.engine.server import SimulatedEngine
from loadtests.engine.spec import EngineSpec
from tests.conftest import COLD, RunningGateway, Site, wait_until
from tests.integration.conftest import (
    PACED,
    PATIENT,
    WARM,
    History,
    Load,
    inferences,
    of_users,
    replica_of,
    settled,
    state_of,
    stream_at,
    warmups,
)

INTERVAL = 0.1
LOOKED = 2.0
"""Seconds in which whatever is ordered or listed otherwise is followed everywhere."""


def front(site: Site, *urls: str, warmup: Any = COLD, ready: int, **flags: Any) -> RunningGateway:
    policy = site.routing(warmup=warmup)
    flags = {"policies": policy, "probe_interval": INTERVAL, "discovery_interval": INTERVAL, **PATIENT, **flags}
    gateway = site.gateway(urls, **flags)
    gateway.wait_ready("sim-model", ready)
    return gateway


class Name:
    """What a name leads to, as a resolver would say: addresses, or that it cannot be told."""

    def __init__(self, *addresses: str) -> None:
        self.addresses: Sequence[str] | None = addresses
        self.asked = 0

    async def __call__(self, name: str) -> Sequence[str]:
        assert name == "localhost"
        self.asked += 1
        if self.addresses is None:
            raise OSError
        return self.addresses

    def again(self) -> None:
        """Wait until what it says now has been heard."""
        before = self.asked
        wait_until(lambda: self.asked >= before + 3, "three more looks")


@pytest.fixture
def pods(site: Site) -> Any:
    """Engines at several addresses of this host and one port of all of them."""
    made: list[SimulatedEngine] = []

    async def start() -> None:
        for address in ("127.0.0.2", "127.0.0.3"):
            made.append(SimulatedEngine(EngineSpec(model="sim-model", **PACED)))
            await made[-1].start(port=made[0].port if made[:-1] else 0, host=address)

    async def stop() -> None:
        for engine in made:
            await engine.close()

    site.run(start())
    yield made
    site.run(stop())


def test_a_name_that_leads_nowhere_keeps_its_pool_and_one_that_leads_to_fewer_drains_the_rest(
    site: Site, pods: list[SimulatedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    staying, leaving = pods
    name = Name("127.0.0.2", "127.0.0.3")
    monkeypatch.setattr("gateway.fleet.discover.open.DnsSource", lambda at: DnsSource(at, name))
    gateway = front(site, ready=2, discovery_dns=f"localhost:{staying.port}")
    history = History(gateway)
    with Load(gateway) as load:
        for told, answer in (("names no engines", ()), ("cannot be looked up", None)):
            name.addresses = answer
            wait_until(lambda told=told: any(told in line for line in gateway.reports), told)
            name.again()
            assert sum(told in line for line in gateway.reports) == 1
            load.more(10)
            assert history.steps == []
        name.addresses = ("127.0.0.2", "127.0.0.3")
        name.again()
        with stream_at(gateway, leaving.url, 300) as running:
            name.addresses = ("127.0.0.2",)
            history.when(leaving.url, State.DRAINING)
            load.more(3)  # what was on its way then has arrived
            left = len(of_users(leaving))
            load.more(10)
            assert len(of_users(leaving)) == left
        wait_until(lambda: replica_of(gateway, leaving.url) is None, "it is forgotten")
    assert running.failures == []
    assert load.failures == []
    assert history.of(staying.url) == []
    wait_until(lambda: settled(gateway) and leaving.open_connections == 0, "nothing open")


def write(path: Path, *urls: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps([{"url": url} for url in urls]))
    fresh.replace(path)


def test_an_engine_that_is_taken_out_of_the_file_drains_and_is_forgotten(site: Site, tmp_path: Path) -> None:
    staying, leaving = (site.engine(**PACED) for _ in range(2))
    listed = tmp_path / "engines.yaml"
    write(listed, staying.url, leaving.url)
    gateway = front(site, ready=2, discovery_file=listed, warmup=WARM)
    history, warmed = History(gateway), warmups(leaving)
    with Load(gateway) as load:
        with stream_at(gateway, leaving.url, 200) as running:
            write(listed, staying.url)
            history.when(leaving.url, State.DRAINING)
            load.more(3)  # what was on its way then has arrived
            left = len(of_users(leaving))
            load.more(10)
            assert len(of_users(leaving)) == left
        wait_until(lambda: replica_of(gateway, leaving.url) is None, "it is forgotten")
        write(listed, staying.url, leaving.url)
        wait_until(lambda: state_of(gateway, leaving.url) == "ready", "a replica like any other")
        wait_until(lambda: len(of_users(leaving)) > left, "users there")
    assert warmups(leaving) > warmed
    assert running.failures == []
    assert load.failures == []


def test_a_drain_is_followed_by_every_gateway_and_lifting_it_warms_the_engine_again(site: Site, tmp_path: Path) -> None:
    staying, leaving = (site.engine(**PACED) for _ in range(2))
    state = f"sqlite://{tmp_path / 'both' / 'state.db'}"
    urls = (staying.url, leaving.url)
    one, other = (front(site, *urls, ready=2, state=state, warmup=WARM) for _ in range(2))
    gateways = (one, other)
    histories = [History(gateway) for gateway in gateways]

    def order(draining: bool) -> float:
        store = one.gateway.core.store
        site.run(store.drain_engine(leaving.url, draining=draining, author="test", at=time.time()))
        return time.monotonic()

    with Load(one, users=3) as load, Load(other, users=3) as others:
        with stream_at(other, leaving.url, 300) as running:
            ordered = order(draining=True)
            for history in histories:
                assert history.when(leaving.url, State.DRAINING) - ordered <= LOOKED
            load.more(3)  # what was on its way then has arrived
            left = len(of_users(leaving))
            load.more(10)
            others.more(10)
            assert len(of_users(leaving)) == left
        for gateway in gateways:
            wait_until(lambda gateway=gateway: state_of(gateway, leaving.url) == "gone", "all of it gone")
        warmed = warmups(leaving)
        order(draining=False)
        for history in histories:
            history.when(leaving.url, State.WARMING)
            history.when(leaving.url, State.READY)
        wait_until(lambda: len(of_users(leaving)) > left, "users there again")
    assert warmups(leaving) >= warmed + 2 * len(gateways)
    assert [*load.failures, *others.failures, *running.failures] == []
    for gateway in gateways:
        wait_until(lambda gateway=gateway: settled(gateway), "nothing in flight")


def test_no_user_meets_an_engine_that_is_added_cold(site: Site) -> None:
    cold_for = 4
    policy = {**WARM, "concurrency": 2, "rounds": 2, "ratio": 3, "limit": 30}
    warm = site.engine(**PACED)
    gateway = front(site, warm.url, ready=1, warmup=policy)
    history = History(gateway)
    with Load(gateway) as load:
        load.more(10)
        cold = site.engine(cold_factor=60, cold_requests=cold_for, **PACED)
        store = gateway.gateway.core.store
        site.run(store.add_engine(cold.url, labels={}, author="test", at=time.time()))
        history.when(cold.url, State.READY, 40.0)
        wait_until(lambda: len(of_users(cold)) > 10, "users there", 20.0)
    assert load.failures == []
    asked, users = inferences(cold), of_users(cold)
    before = asked[: asked.index(users[0])]
    assert sum(each.state == "finished" for each in before) >= cold_for
    assert max(each.ended - each.began for each in load.asked) < 60 * PACED["step_time"] * 8
