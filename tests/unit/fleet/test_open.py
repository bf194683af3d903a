"""A whole fleet from settings, against engines that are real servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from gateway.fleet.life import State
from gateway.fleet.open import Fleet, open_fleet
from gateway.fleet.signals import Signal
from gateway.model import EngineOrder, EngineOrders
from gateway.policy.live import Policies, open_policies
from gateway.settings import load_settings
from gateway.supervise import Supervisor
from gateway.wire.deadline import Sweeper
from loadtests.engine.harness import running_engine, until
from loadtests.engine.server import SimulatedEngine
from loadtests.engine.spec import instant_spec

WARMUP = {"shapes": [{"prompt": 4, "output": 1}], "concurrency": 1, "rounds": 1, "ratio": 100, "slow_start": 0}
PATIENCE = 10.0


class Site:
    """A fleet and what it needs."""

    def __init__(self, fleet: Fleet, policies: Policies, said: list[str], supervisor: Supervisor) -> None:
        self.fleet = fleet
        self.policies = policies
        self.said = said
        self.supervisor = supervisor

    @property
    def states(self) -> dict[str, State]:
        return {replica.id: replica.life.state for replica in self.fleet.registry.replicas}


def _settings(folder: Path, engines: list[str], **env: str) -> Any:
    policies = folder / "policies"
    ignored = shutil.ignore_patterns("*.py", "__pycache__")
    shutil.copytree(str(files("policies")), policies, dirs_exist_ok=True, ignore=ignored)
    (policies / "routing.yaml").write_text(json.dumps({"warmup": WARMUP}))
    state = f"sqlite://{folder / 'state.db'}"
    told = {"state": state, "engines": engines or None, "policies": str(policies)}
    return load_settings(told, {"GATEWAY_PROBE_INTERVAL": "0.02", **env})


@contextlib.asynccontextmanager
async def opened(settings: Any) -> AsyncIterator[Site]:
    loop = asyncio.get_running_loop()
    sweeper, supervisor, said = Sweeper(loop), Supervisor(loop), []
    policies = open_policies(settings.policies, said.append)
    fleet = open_fleet(settings, policies, {}, sweeper=sweeper, supervisor=supervisor, report=said.append)
    try:
        yield Site(fleet, policies, said, supervisor)
        assert not supervisor.failed.done()
    finally:
        await supervisor.close()
        await fleet.close()
        await fleet.close()
        await until(lambda: not len(sweeper))
        sweeper.close()


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await body()

    asyncio.run(main())


def test_engines_of_the_configuration_are_found_warmed_and_ready_after_the_first_look(tmp_path):
    async def body():
        async with running_engine() as one, running_engine(instant_spec(model="other")) as other:
            async with opened(_settings(tmp_path, [one.url, other.url])) as site:
                assert site.states == {}
                await site.fleet.first(PATIENCE)
                assert set(site.states.values()) == {State.READY}
                assert list(site.fleet.registry.served_models()) == ["other", "sim-model"]
                assert {replica.origin for replica in site.fleet.registry.replicas} == {"configuration"}
                assert all(each.header(b"x-request-id").startswith(b"warmup-") for each in one.requests if each.body)
                assert [name for name, _, _ in site.fleet.loops] == ["discovery"]
            await until(lambda: not one.open_connections and not other.open_connections)

    run(body)


def test_the_first_look_does_not_wait_for_an_engine_that_is_not_there(tmp_path):
    async def body():
        async with running_engine() as gone:
            url = gone.url
        async with opened(_settings(tmp_path, [url])) as site:
            await site.fleet.first(PATIENCE)
            assert set(site.states.values()) == {State.FOUND}
            assert not site.fleet.registry.any_ready()

    run(body)


def test_a_drain_that_was_ordered_before_the_start_holds_from_its_first_moment(tmp_path):
    async def body():
        async with running_engine() as engine, opened(_settings(tmp_path, [engine.url])) as site:
            site.fleet.obey(EngineOrders(1, {engine.url: EngineOrder(engine.url, draining=True, author="ops")}))
            await site.fleet.first(PATIENCE)
            await until(lambda: set(site.states.values()) == {State.GONE})
            assert not engine.requests
            site.fleet.obey(EngineOrders(2))
            await until(lambda: set(site.states.values()) == {State.READY}, PATIENCE)

    run(body)


def test_an_engine_that_was_added_by_an_order_serves_until_the_order_is_taken_back(tmp_path):
    async def body():
        async with running_engine() as engine, opened(_settings(tmp_path, [])) as site:
            await site.fleet.first(PATIENCE)
            order = EngineOrder(engine.url, added=True, labels={"gpu": "a100"}, author="ops")
            site.fleet.obey(EngineOrders(1, {engine.url: order}))
            await until(lambda: set(site.states.values()) == {State.READY}, PATIENCE)
            (replica,) = site.fleet.registry.replicas
            assert (replica.origin, replica.spec.labels) == ("orders", {"gpu": "a100"})
            site.fleet.obey(EngineOrders(2))
            await until(lambda: site.states == {}, PATIENCE)
            await until(lambda: not engine.open_connections)

    run(body)


@pytest.mark.parametrize("url", ["https://gpu.example:8443", "http://192.0.2.1:8001"])
def test_an_order_for_an_engine_where_this_instance_may_send_no_prompts_is_not_followed(tmp_path, url):
    async def body():
        async with opened(_settings(tmp_path, [])) as site:
            await site.fleet.first(PATIENCE)
            site.fleet.obey(EngineOrders(1, {url: EngineOrder(url, added=True, author="ops")}))
            assert site.states == {}

    run(body)


def test_another_policy_is_followed_without_a_restart(tmp_path):
    async def body():
        async with running_engine() as engine, opened(_settings(tmp_path, [engine.url])) as site:
            await site.fleet.first(PATIENCE)
            (replica,) = site.fleet.registry.replicas
            policy = site.policies.policy
            fleet = policy.routing.fleet
            health = replace(fleet.health, canary_interval=0.05)
            routing = replace(policy.routing, fleet=replace(fleet, health=health))
            site.policies.policy = replace(policy, routing=routing)
            await until(lambda: any(b"canary-" in (each.header(b"x-request-id") or b"") for each in engine.requests))
            assert replica.life.state is State.READY

    run(body)


def test_the_engines_end_is_noticed_and_its_return_at_the_same_port_is_warmed_again(tmp_path):
    async def body():
        async with running_engine() as engine:
            port = engine.port
            async with opened(_settings(tmp_path, [engine.url])) as site:
                await site.fleet.first(PATIENCE)
                (replica,) = site.fleet.registry.replicas
                # So that its counters go back: two engines that begin within half a second may be one.
                await until(lambda: replica.reading and replica.reading.values[Signal.GENERATION_TOKENS] > 0)
                signs = []
                site.fleet.registry.on_transition(lambda step: signs.append(step.after.state))
                await engine.close()
                await until(lambda: set(site.states.values()) == {State.EJECTED}, PATIENCE)
                async with running_again(port):
                    await until(lambda: set(site.states.values()) == {State.READY}, PATIENCE)
                assert signs == [State.EJECTED, State.STARTING, State.WARMING, State.READY]

    run(body)


@contextlib.asynccontextmanager
async def running_again(port: int) -> AsyncIterator[None]:
    engine = SimulatedEngine(instant_spec())
    await engine.start(port=port)
    try:
        yield
    finally:
        await engine.close()


def test_what_discovery_names_no_more_is_drained_and_forgotten(tmp_path):
    async def body():
        async with running_engine() as engine:
            listed = tmp_path / "engines.yaml"
            listed.write_text(json.dumps([engine.url]))
            settings = _settings(tmp_path, [], GATEWAY_DISCOVERY_FILE=str(listed))
            async with opened(settings) as site:
                await site.fleet.first(PATIENCE)
                assert set(site.states.values()) == {State.READY}
                listed.write_text("[]")
                await site.fleet.discovery.step()
                await until(lambda: site.states == {}, PATIENCE)
                assert site.fleet.discovery.ages().keys() == {"file"}

    run(body)
