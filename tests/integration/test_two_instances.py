"""Two gateways on one Redis in front of one fleet: each knows what the other has, and both lead a prompt alike."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import COLD, RunningGateway, Site, wait_until
from tests.integration.conftest import begin, held, replica_of
from tests.redisserver import RedisServer

MODEL = "sim-model"
ENGINE: dict[str, Any] = {"step_time": 0.01, "prefill_tokens_per_second": 50_000.0, "prompt_tokens_details": True}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    """A host that stands still is no lost store here."""
    for name in ("gateway.stores.redis_load._TIMEOUT", "gateway.stores.redis_load._DEADLINE"):
        monkeypatch.setattr(name, 10.0)
    with RedisServer(tmp_path / "redis") as server:
        yield server


class Pair:
    """Two instances, and requests to each."""

    def __init__(self, site: Site, server: RedisServer, folder: Path, engines: int, **admission: Any) -> None:
        self.site = site
        self.engines = [site.engine(**ENGINE) for _ in range(engines)]
        policies = site.routing(warmup=COLD, admission=admission)
        self.gateways = [
            site.gateway(self.engines, state=server.url(), state_folder=folder / "state", policies=policies)
            for _ in range(2)
        ]
        for gateway in self.gateways:
            gateway.wait_ready(MODEL, engines)
        self.headers = {"authorization": f"Bearer {self.gateways[0].key()}"}
        # Each has heard of the key's making, after which it forgets what it read of the key before.
        for gateway in self.gateways:
            site.run(gateway.gateway.core.keys.refresh())

    def ask(self, number: int, *said: str, tokens: int = 2) -> Any:
        """An answer of one of the instances, later."""
        roles = ("user", "assistant")
        messages = [{"role": roles[place % 2], "content": one} for place, one in enumerate(said)]
        body = {"model": MODEL, "messages": messages, "max_tokens": tokens, "ignore_eos": True, "stream": True}

        async def post() -> httpx.Response:
            async with httpx.AsyncClient(timeout=30, trust_env=False, headers=self.headers) as client:
                return await client.post(f"{self.gateways[number].base_url}/chat/completions", json=body)

        return begin(self.site, post())

    def others(self, number: int) -> int:
        """What an instance believes the other one to have, at all replicas."""
        return sum(each.work.others_in_flight for each in self.gateways[number].gateway.core.registry.replicas)


def figure(gateway: RunningGateway, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", gateway.metrics(), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def test_each_knows_what_the_other_has_and_forgets_it_when_it_ends(site, server, tmp_path):
    pair = Pair(site, server, tmp_path, 2)
    with held(site, *pair.engines):
        asked = [pair.ask(0, f"question {number}", tokens=5) for number in range(5)]
        wait_until(lambda: pair.others(1) == 5, "the other one's requests")
        assert pair.others(0) == 0
        assert figure(pair.gateways[1], "gateway_load_share_instances") == 1
        assert figure(pair.gateways[1], "gateway_load_share_age_seconds") < 2
    assert [answer.result(30).status_code for answer in asked] == [200] * 5
    wait_until(lambda: pair.others(1) == 0, "nothing of the other one")


def test_together_they_keep_to_the_limit_of_a_replica(site, server, tmp_path):
    pair = Pair(site, server, tmp_path, 1, in_flight=4)
    replicas = [replica_of(gateway, pair.engines[0].url) for gateway in pair.gateways]
    wait_until(lambda: [each.room for each in replicas] == [4, 4], "bounds")
    with held(site, *pair.engines):
        asked = [pair.ask(0, f"question {number}", tokens=5) for number in range(3)]
        wait_until(lambda: replicas[1].room == 2, "its part")
    assert [answer.result(30).status_code for answer in asked] == [200] * 3
    wait_until(lambda: replicas[1].room == 4, "all of it")


def test_a_conversation_stays_at_its_replica_whoever_is_asked(site, server, tmp_path):
    pair = Pair(site, server, tmp_path, 3)
    said = ["the beginning of a long conversation " * 120]
    places = []
    for turn in range(6):
        answer = pair.ask(turn % 2, *said).result(30)
        assert answer.status_code == 200
        record = pair.gateways[turn % 2].records.last(request_id=answer.headers["x-request-id"])
        places.append(record["replica"])
        said += [f"answer {turn}", f"question {turn} " * 20]
        # What one has sent is told with its next step.
        wait_until(lambda turn=turn: knows(pair.gateways[(turn + 1) % 2]) > turn, "the other one's hint")
    assert len(set(places)) == 1


def knows(gateway: RunningGateway) -> int:
    """How many prompts' blocks an instance has heard of or sent."""
    return len(gateway.gateway.core.balancer.hints) + len(gateway.gateway.core.balancer._pool(MODEL).table)


def test_without_the_store_what_others_told_fades_and_requests_go_on(site, server, tmp_path):
    pair = Pair(site, server, tmp_path, 2)
    assert pair.ask(1, "a key that it knows").result(30).status_code == 200
    with held(site, *pair.engines):
        asked = [pair.ask(0, f"question {number}", tokens=5) for number in range(5)]
        wait_until(lambda: pair.others(1) == 5, "the other one's requests")
        server.kill()
        wait_until(lambda: pair.others(1) == 0, "what was told to fade")
    assert pair.ask(1, "hello").result(30).status_code == 200
    assert [answer.result(30).status_code for answer in asked] == [200] * 5
    server.start()
    with held(site, *pair.engines):
        later = [pair.ask(0, f"question {number}", tokens=5) for number in range(4)]
        wait_until(lambda: pair.others(1) == 4, "the other one's requests again")
    assert [answer.result(30).status_code for answer in later] == [200] * 4


def test_an_instance_that_stops_takes_back_what_it_told(site, server, tmp_path):
    pair = Pair(site, server, tmp_path, 1)
    asked = [pair.ask(0, f"question {number}", tokens=1_000) for number in range(3)]
    wait_until(lambda: pair.others(1) == 3, "the other one's requests")
    site.run(asyncio.wait_for(pair.gateways[0].gateway.close(), 20))
    wait_until(lambda: pair.others(1) == 0, "nothing of it")
    for answer in asked:
        answer.exception(30)


def test_an_instance_that_comes_later_gets_its_part_of_a_fleet_that_is_full(site, server, tmp_path):
    pair = Pair(site, server, tmp_path, 1, in_flight=6)
    replicas = [replica_of(gateway, pair.engines[0].url) for gateway in pair.gateways]
    wait_until(lambda: [each.room for each in replicas] == [6, 6], "bounds")
    first = [pair.ask(0, f"question {number}", tokens=150) for number in range(18)]
    wait_until(lambda: replicas[1].room == 3, "its part")
    later = [pair.ask(1, f"question {number}", tokens=150) for number in range(9)]
    wait_until(lambda: [each.in_flight for each in replicas] == [3, 3], "equal parts")
    assert {answer.result(30).status_code for answer in (*first, *later)} == {200}
