"""Replicas that come, go and come back, and how requests spread over those that are there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

CHAT = {"model": "sim-model", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
INSTANT = {"step_time": 0.0, "prefill_tokens_per_second": 0.0}


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=20, trust_env=False) as client:
        yield client


def asker(client: httpx.Client, gateway: Any) -> Callable[..., httpx.Response]:
    headers = {"authorization": f"Bearer {gateway.key()}"}
    return lambda **more: client.post(f"{gateway.url}/v1/chat/completions", json={**CHAT, **more}, headers=headers)


def generations(engine: Any) -> int:
    return sum(each.method == "POST" for each in list(engine.requests))


def set_fault(site: Any, engine: Any, name: str | None, **params: Any) -> None:
    async def change() -> None:
        engine.faults.clear()
        if name is not None:
            engine.faults.set(name, **params)

    site.run(change())


def states(gateway: Any) -> list[str]:
    return [replica.life.state.value for replica in gateway.gateway.core.registry.replicas]


def test_a_replica_that_dies_gets_no_traffic_and_comes_back(site, client, wait_until):
    engines = [site.engine(**INSTANT) for _ in range(2)]
    gateway = site.gateway(engines)
    gateway.wait_ready("sim-model", 2)
    ask = asker(client, gateway)
    set_fault(site, engines[0], "refuse")
    wait_until(lambda: states(gateway) == ["ejected", "ready"])
    before = generations(engines[0])
    assert {ask().status_code for _ in range(20)} == {200}
    assert generations(engines[0]) == before
    set_fault(site, engines[0], None)
    wait_until(lambda: states(gateway) == ["ready", "ready"])
    wait_until(lambda: ask().status_code == 200 and generations(engines[0]) > before)


def test_no_request_fails_while_a_replica_dies_under_load(site, wait_until):
    engines = [site.engine(step_time=0.001) for _ in range(2)]
    gateway = site.gateway(engines)
    gateway.wait_ready("sim-model", 2)
    headers = {"authorization": f"Bearer {gateway.key()}"}

    async def main() -> list[int]:
        async with httpx.AsyncClient(timeout=20, trust_env=False) as client:

            async def one() -> int:
                answer = await client.post(f"{gateway.url}/v1/chat/completions", json=CHAT, headers=headers)
                return answer.status_code

            first = [asyncio.create_task(one()) for _ in range(20)]
            set_fault(site, engines[0], "refuse")
            second = [asyncio.create_task(one()) for _ in range(20)]
            return await asyncio.gather(*first, *second)

    assert set(asyncio.run(main())) == {200}
    wait_until(lambda: states(gateway) == ["ejected", "ready"])


def test_one_that_refuses_a_request_is_out_before_the_next_probe(site, client, wait_until):
    engines = [site.engine(**INSTANT) for _ in range(2)]
    gateway = site.gateway(engines, probe_interval=3600)
    gateway.wait_ready("sim-model", 2)
    ask = asker(client, gateway)
    set_fault(site, engines[0], "refuse")
    wait_until(lambda: ask().status_code == 200 and states(gateway) == ["ejected", "ready"])


@pytest.mark.parametrize("fault", ["health_503", "refuse"])
def test_with_no_replica_left_the_answer_says_when_to_come_back(site, client, wait_until, fault):
    engine = site.engine(**INSTANT)
    gateway = site.gateway([engine])
    gateway.wait_ready("sim-model")
    ask = asker(client, gateway)
    set_fault(site, engine, fault)
    wait_until(lambda: states(gateway) == ["ejected"])
    answer = ask()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_ready_replica")
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert answer.headers["x-should-retry"] == "true"
    assert client.get(f"{gateway.url}/readyz").status_code == 503
    record = gateway.records.last(request_id=answer.headers["x-request-id"])
    assert (record["status"], record["attempts"]) == (503, 0)
    set_fault(site, engine, None)
    wait_until(lambda: states(gateway) == ["ready"])
    assert ask().status_code == 200


def test_an_engine_that_was_not_there_at_the_start_is_found(site, client, wait_until):
    engine = site.engine(**INSTANT)
    set_fault(site, engine, "refuse")
    gateway = site.gateway([engine])
    assert states(gateway) == ["found"]
    assert client.get(f"{gateway.url}/readyz").status_code == 503
    set_fault(site, engine, None)
    wait_until(lambda: states(gateway) == ["ready"])
    wait_until(lambda: client.get(f"{gateway.url}/readyz").status_code == 200)


def test_a_slow_health_check_costs_no_readiness(site, client, wait_until):
    engine = site.engine(**INSTANT)  # SGLang's health check takes a second (captured)
    gateway = site.gateway([engine])
    gateway.wait_ready("sim-model")
    seen = len(engine.requests)
    set_fault(site, engine, "health_slow", seconds=1.0)
    wait_until(lambda: sum(each.path == "/health" for each in list(engine.requests)[seen:]) >= 2)
    assert states(gateway) == ["ready"]
    assert asker(client, gateway)().status_code == 200


def test_requests_go_only_where_the_model_is_served(site, client):
    engines = [site.engine(model=name, **INSTANT) for name in ("one", "two", "two")]
    gateway = site.gateway(engines)
    ask = asker(client, gateway)
    for _ in range(6):
        assert ask(model="one").json()["model"] == "one"
        assert ask(model="two").json()["model"] == "two"
    assert generations(engines[0]) == 6
    assert generations(engines[1]) + generations(engines[2]) == 6


def test_two_choices_spread_the_load(site):
    engines = [site.engine(step_time=0.01, prefill_tokens_per_second=0.0) for _ in range(4)]
    gateway = site.gateway(engines)
    gateway.wait_ready("sim-model", 4)
    headers = {"authorization": f"Bearer {gateway.key()}"}

    async def main() -> None:
        limits = httpx.Limits(max_connections=40)
        async with httpx.AsyncClient(timeout=20, trust_env=False, limits=limits) as client:

            async def one() -> None:
                body = {**CHAT, "max_tokens": 20}
                answer = await client.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers)
                assert answer.status_code == 200

            await asyncio.gather(*(one() for _ in range(200)))

    asyncio.run(main())
    shares = [generations(engine) for engine in engines]
    assert sum(shares) == 200
    assert min(shares) > 35, shares
    assert max(shares) < 65, shares
    assert [replica.in_flight for replica in gateway.gateway.core.registry.replicas] == [0, 0, 0, 0]


def test_a_slow_replica_gets_less(site):
    slow = site.engine(step_time=0.05, prefill_tokens_per_second=0.0)
    fast = site.engine(step_time=0.001, prefill_tokens_per_second=0.0)
    gateway = site.gateway([slow, fast])
    gateway.wait_ready("sim-model", 2)
    headers = {"authorization": f"Bearer {gateway.key()}"}

    async def main() -> None:
        async with httpx.AsyncClient(timeout=20, trust_env=False) as client:
            left = iter(range(120))

            async def worker() -> None:
                for _ in left:
                    body = {**CHAT, "max_tokens": 20}
                    answer = await client.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers)
                    assert answer.status_code == 200

            await asyncio.gather(*(worker() for _ in range(8)))

    asyncio.run(main())
    assert generations(slow) * 2 < generations(fast)


def test_connections_to_engines_are_kept_and_used_again(site, client):
    engine = site.engine(**INSTANT)
    gateway = site.gateway([engine])
    ask = asker(client, gateway)
    for _ in range(10):
        assert ask().status_code == 200
    assert gateway.upstream_connections() == 1


def test_a_connection_that_the_engine_closed_while_idle_is_never_a_failure(site, client, wait_until):
    engine = site.engine(keep_alive_timeout=0.05, **INSTANT)
    gateway = site.gateway([engine], attempts=1)
    ask = asker(client, gateway)
    for _ in range(5):
        answer = ask()
        assert answer.status_code == 200
        wait_until(lambda: not gateway.upstream_connections(), "the engine's close")
    assert {each["attempts"] for each in gateway.records.lines} == {1}
