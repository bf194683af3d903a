"""Each strategy in front of engines: what it is to keep together and apart, and that nothing is left of any request."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from gateway.fleet.signals import Signal
from gateway.policy.balancing import NAMES
from loadtests.engine.server import SimulatedEngine
from tests.conftest import COLD, RunningGateway, Site, wait_until
from tests.integration.conftest import PACED, Load, Place, begin, of_users, replica_of, set_fault

INSTANT: dict[str, Any] = {"step_time": 0.0, "prefill_tokens_per_second": 0.0}
SLOW_PREFILL: dict[str, Any] = {"step_time": 0.002, "prefill_tokens_per_second": 4_000.0}
MODEL = "sim-model"


def policies(site: Site, *, isolation: str = "tenant", **balancing: Any) -> Path:
    """A policy folder with this section."""
    folder = site.routing(warmup=COLD, balancing=balancing)
    guards = folder / "guards.yaml"
    text = guards.read_text()
    assert text.count("\nisolation: tenant") == 1
    guards.write_text(text.replace("\nisolation: tenant", f"\nisolation: {isolation}"))
    return folder


def started(site: Site, engines: Sequence[SimulatedEngine], strategy: str, **policy: Any) -> RunningGateway:
    """A gateway with this strategy, all its engines ready."""
    folder = policies(site, strategy=strategy, **policy)
    gateway = site.gateway(engines, policies=folder)
    gateway.wait_ready(MODEL, len(engines))
    return gateway


def text(name: object, size: int) -> str:
    """A text of about this size that begins like no other one."""
    return (f"{name}: " + "all the words of this text and then " * (size // 36 + 1))[:size]


def body(*said: str, stream: bool = True, tokens: int = 2, model: str = MODEL) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": one} for place, one in enumerate(said)]
    return {"model": model, "messages": messages, "max_tokens": tokens, "ignore_eos": True, "stream": stream}


class Users:
    """Asks a gateway with one key, and says which replica answered."""

    def __init__(self, gateway: RunningGateway, key: str | None = None) -> None:
        self.gateway = gateway
        self._headers = {"authorization": f"Bearer {key or gateway.key()}"}
        self._client: httpx.AsyncClient | None = None

    def run(self, story: Any) -> Any:
        """Run a coroutine function that may ``ask``."""

        async def main() -> Any:
            async with httpx.AsyncClient(timeout=30, trust_env=False, headers=self._headers) as self._client:
                return await story()

        return asyncio.run(main())

    async def ask(self, wanted: dict[str, Any]) -> str:
        """The replica that answered, by its record."""
        assert self._client is not None
        answer = await self._client.post(f"{self.gateway.base_url}/chat/completions", json=wanted)
        assert answer.status_code == 200, answer.text
        assert not wanted["stream"] or answer.text.endswith("data: [DONE]\n\n")
        while True:
            for record in self.gateway.records.lines:
                if record["request_id"] == answer.headers["x-request-id"]:
                    return str(record["replica"])
            await asyncio.sleep(0.002)

    def asked(self, *wanted: dict[str, Any], at_once: int = 8) -> list[str]:
        """Ask all these, so many at once."""

        async def story() -> list[str]:
            turns = asyncio.Semaphore(at_once)

            async def one(each: dict[str, Any]) -> str:
                async with turns:
                    return await self.ask(each)

            return list(await asyncio.gather(*map(one, wanted)))

        return list(self.run(story))


def loads(gateway: RunningGateway) -> list[tuple[float, float, float]]:
    """Of each replica: requests in flight, and tokens that are taken to be waiting there."""
    found = []
    for replica in gateway.gateway.core.registry.replicas:
        load = replica.load(gateway.gateway.core.balancer.now())
        found.append((replica.in_flight, load.unanswered, load.sent))
    return found


def empty(gateway: RunningGateway) -> bool:
    """Whether nothing is left of any request."""
    return all(load == (0, 0, 0) for load in loads(gateway))


def blocks(gateway: RunningGateway) -> int:
    """How many blocks of prompts are known of."""
    return len(gateway.gateway.core.balancer._pool(MODEL).table)


def held(gateway: RunningGateway, engine_url: str) -> float:
    """Bytes of prompts that a replica is believed to hold."""
    found = gateway.gateway.core.balancer._pool(MODEL)._held.get(replica_of(gateway, engine_url).id)
    return 0 if found is None else found.index.size


# --- all of them


@pytest.mark.parametrize("strategy", NAMES)
def test_every_strategy_serves_from_all_replicas_and_leaves_nothing(site, strategy):
    engines = [site.engine(**SLOW_PREFILL) for _ in range(3)]
    gateway = started(site, engines, strategy, dry_run="estimate")
    users = Users(gateway)
    places = users.asked(*(body(text(number, 600), stream=number % 3 > 0) for number in range(36)))
    assert len(set(places)) == 3
    assert sum(len(of_users(engine)) for engine in engines) == 36
    wait_until(lambda: empty(gateway), "nothing left")
    counts = re.findall(r'gateway_balancing_dry_run_total{.*strategy="estimate".*} (\d+)', gateway.metrics())
    assert sum(map(int, counts)) == 36


@pytest.mark.parametrize("fault", ["status_burst", "reset_before_response"])
@pytest.mark.parametrize("strategy", NAMES)
def test_another_replica_answers_where_the_first_cannot(site, strategy, fault):
    engines = [site.engine(**SLOW_PREFILL) for _ in range(2)]
    gateway = started(site, engines, strategy)
    users = Users(gateway)
    said = [body(text(number, 1_200)) for number in range(6)]
    home = users.asked(*said, at_once=1)[0]
    failing, other = sorted(engines, key=lambda engine: replica_of(gateway, engine.url).id != home)
    set_fault(site, failing, fault)

    def retried() -> bool:
        assert set(users.asked(*said, at_once=2)) == {replica_of(gateway, other.url).id}
        return any(record["attempts"] == 2 for record in gateway.records.lines)

    wait_until(retried, "a request that was first sent to the one that fails")
    assert {record["attempts"] for record in gateway.records.lines} == {1, 2}
    wait_until(lambda: empty(gateway), "nothing left")


@pytest.mark.parametrize("strategy", ["power-of-two", "estimate"])
@pytest.mark.parametrize("begun", [False, True])
def test_a_client_that_leaves_leaves_nothing(site, strategy, begun):
    fields = {"step_time": 0.02, "prefill_tokens_per_second": 0.0} if begun else {"step_time": 30.0}
    engines = [site.engine(**fields) for _ in range(2)]
    gateway = started(site, engines, strategy)
    users = Users(gateway)

    async def one(number: int) -> None:
        assert users._client is not None
        wanted = body(text(number, 2_000), tokens=1_000)
        async with users._client.stream("POST", f"{gateway.base_url}/chat/completions", json=wanted) as answer:
            async for _ in answer.aiter_text():
                if begun:
                    return

    async def story() -> None:
        asking = [asyncio.create_task(one(number)) for number in range(6)]
        if begun:
            await asyncio.gather(*asking)
            return
        while gateway.in_flight() < 6:
            await asyncio.sleep(0.002)
        assert empty(gateway) is False
        for each in asking:
            each.cancel()
        await asyncio.wait(asking)

    users.run(story)
    wait_until(lambda: empty(gateway), "nothing left")


# --- what is kept together


# With two at once, the bound of a session's replica is a single request.
@pytest.mark.parametrize(
    ("strategy", "speed", "at_once"),
    [("estimate", SLOW_PREFILL, 3), ("session", INSTANT, 1)],
    ids=["estimate", "session"],
)
def test_the_turns_of_a_conversation_go_to_one_replica_and_many_conversations_to_all(site, strategy, speed, at_once):
    engines = [site.engine(**speed) for _ in range(3)]
    gateway = started(site, engines, strategy)
    users = Users(gateway)

    async def story() -> list[list[str]]:
        turns = asyncio.Semaphore(at_once)

        async def conversation(number: int) -> list[str]:
            said, places = [text(f"conversation {number}", 2_400)], []
            async with turns:
                for turn in range(4):
                    places.append(await users.ask(body(*said)))
                    said += [f"answer {turn}", text(f"question {turn}", 200)]
            return places

        return list(await asyncio.gather(*map(conversation, range(15))))

    told = users.run(story)
    kept = sum(len(set(places)) == 1 for places in told)
    assert kept >= (13 if at_once > 1 else 15), told  # a replica that was busy for a moment may lose one
    first = Counter(places[0] for places in told)
    assert len(first) == 3
    assert max(first.values()) <= 11
    wait_until(lambda: empty(gateway), "nothing left")


def test_what_engines_hold_is_used_where_prompts_share_a_beginning(site):
    """One document, many questions: the replicas that have computed it answer, and little is computed twice."""
    engines = [site.engine(prompt_tokens_details=True, **SLOW_PREFILL) for _ in range(3)]
    gateway = started(site, engines, "estimate")
    users = Users(gateway)
    document = text("a document", 12_000)
    places = users.asked(*(body(f"{document} {number}") for number in range(12)), at_once=1)
    assert len(set(places)) == 1
    cached = [record["cached_tokens"] or 0 for record in gateway.records.lines]
    assert cached[0] == 0
    assert min(cached[1:]) > 1_500


def test_a_busy_replica_loses_a_conversation(site):
    engines = [site.engine(**SLOW_PREFILL) for _ in range(2)]
    gateway = started(site, engines, "estimate")
    users = Users(gateway)
    said = [text("mine", 3_000)]
    home = users.asked(body(*said))[0]
    said += ["well", text("and", 100)]
    assert users.asked(body(*said)) == [home]
    engine = next(each for each in engines if replica_of(gateway, each.url).id == home)
    with _others_at(site, engine, 10):
        work = replica_of(gateway, engine.url)
        wait_until(lambda: work.load(0.0).waiting >= 5, "a scrape that shows them")
        said += ["yes", text("so", 100)]
        assert users.asked(body(*said)) != [home]
    assert len(of_users(engine)) == 2 + 10


@contextmanager
def _others_at(site: Site, engine: SimulatedEngine, count: int):
    """Long prompts that reach an engine past this gateway, as those of another one do; cut off in the end."""

    async def main() -> None:
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            wanted = [body(text(f"other {number}", 24_000)) for number in range(count)]
            await asyncio.gather(*(client.post(f"{engine.url}/v1/chat/completions", json=each) for each in wanted))

    running = begin(site, main())
    try:
        yield
        assert not running.done()
    finally:
        running.cancel()


def test_a_replica_that_is_half_as_fast_gets_less(site):
    fast = site.engine(step_time=0.001, prefill_tokens_per_second=20_000.0)
    slow = site.engine(step_time=0.001, prefill_tokens_per_second=10_000.0)
    gateway = started(site, [fast, slow], "estimate")
    users = Users(gateway)
    users.asked(*(body(text(number, 8_000)) for number in range(16)), at_once=6)
    before = len(of_users(fast)), len(of_users(slow))
    users.asked(*(body(text(f"then {number}", 8_000)) for number in range(45)), at_once=6)
    got = len(of_users(fast)) - before[0], len(of_users(slow)) - before[1]
    assert sum(got) == 45
    assert got[1] >= 5
    assert got[0] > 1.3 * got[1], got
    paces = [replica_of(gateway, engine.url).pace.prefill for engine in (fast, slow)]
    assert paces[0] > paces[1]


# --- what is kept apart


@pytest.mark.parametrize(("isolation", "shared"), [("tenant", False), ("none", True)])
def test_tenants_share_what_engines_hold_only_where_their_caches_are_not_kept_apart(site, isolation, shared):
    engines = [site.engine(prompt_tokens_details=True, **INSTANT) for _ in range(2)]
    gateway = started(site, engines, "estimate", isolation=isolation)
    wanted, seen = body(text("the same", 8_000)), []
    for tenant in ("one", "one", "other"):
        key = gateway.key(f"app-{len(seen)}", tenant=tenant)
        Users(gateway, key).asked(wanted)
        seen.append(blocks(gateway))
    assert seen[0] == seen[1] > 8
    assert seen[2] == (seen[0] if shared else 2 * seen[0])
    assert [bool(record["cached_tokens"]) for record in gateway.records.lines] == [False, True, shared]


def test_an_engine_that_has_restarted_holds_nothing(site, place):
    places: list[Place] = [place(**SLOW_PREFILL) for _ in range(2)]
    gateway = started(site, [each.engine for each in places], "estimate")
    users = Users(gateway)
    users.asked(*(body(text(number, 2_000)) for number in range(12)))
    gone, other = places
    assert held(gateway, gone.url) > 0
    kept = held(gateway, other.url)
    assert kept > 0
    core = gateway.gateway.core
    site.run(core.balancer.level(core.registry.replicas))  # what a new process there is supposed to be
    seen = replica_of(gateway, gone.url)
    wait_until(lambda: seen.reading.values[Signal.PROMPT_TOKENS] > 0, "counters that a new process begins anew")
    gone.restart(gateway, **SLOW_PREFILL)
    gateway.wait_ready(MODEL, 2)
    assert (held(gateway, gone.url), held(gateway, other.url)) == (0, kept)
    assert set(users.asked(*(body(text(f"new {number}", 2_000)) for number in range(12)))) == {
        replica_of(gateway, each.url).id for each in places
    }
    wait_until(lambda: empty(gateway), "nothing left")


# --- what is told of it


class Operator:
    """Asks a gateway's admin plane."""

    def __init__(self, gateway: RunningGateway) -> None:
        self._gateway = gateway

    def explained(self, path: str) -> httpx.Response:
        held = self._gateway.gateway.core.held
        headers = {"authorization": f"Bearer {held.admin_token.reveal()}"}
        return httpx.get(f"{self._gateway.admin_url}/admin/fleet-explain{path}", headers=headers, trust_env=False)


def test_an_operator_is_told_why_a_request_went_where_it_went(site):
    engines = [site.engine(**SLOW_PREFILL) for _ in range(3)]
    gateway = started(site, engines, "estimate", aliases={"special": "round-robin"})
    gateway.alias("special", MODEL)
    users, operator = Users(gateway), Operator(gateway)
    said = [text("hunter2", 4_000)]
    home = users.asked(body(*said))[0]
    first = operator.explained("").json()
    assert (first["replica"], first["alias"], first["why"], first["pool"]) == (home, MODEL, "anchor", 3)
    assert users.asked(body(*said, "well", text("and", 100)))[0] == home
    second = gateway.records.lines[-1]
    told = operator.explained(f"/{second['request_id']}").json()
    assert (told["replica"], told["why"], told["strategy"], told["attempt"]) == (home, "soonest", "estimate", 1)
    by_id = {one["replica"]: one for one in told["candidates"]}
    assert by_id.keys() == {replica_of(gateway, engine.url).id for engine in engines}
    assert by_id[home]["holds"] > 3_500
    assert by_id[home]["terms"]["total"] == min(one["terms"]["total"] for one in by_id.values())
    assert abs(told["at"] - second["time"]) < 5.0
    assert "hunter2" not in operator.explained(f"/{second['request_id']}").text
    users.asked(body("x", model="special"))
    other = operator.explained("?alias=special").json()
    assert (other["why"], {one["terms"] for one in other["candidates"]}.pop()) == ("round-robin", None)
    assert operator.explained("/req_" + "0" * 24).status_code == 404
    assert operator.explained("/hunter2").json() == operator.explained("/req_" + "0" * 24).json()


def test_what_a_client_names_is_kept_together(site):
    engines = [site.engine(**INSTANT) for _ in range(3)]
    gateway = started(site, engines, "session")
    places = {}
    for name in ("one", "two", "three", "four", "five", "six"):
        users = Users(gateway, gateway.key(f"app-{name}"))
        users._headers["x-session-id"] = name
        places[name] = set(users.asked(*(body(text((name, each), 600)) for each in range(4)), at_once=1))
    assert all(len(found) == 1 for found in places.values()), places
    assert len(set.union(*places.values())) > 1


def test_where_one_engine_serves_alone_prompts_are_not_looked_at(site):
    gateway = started(site, [site.engine(**INSTANT)], "estimate")
    core = gateway.gateway.core
    Users(gateway).asked(body(text(1, 4_000)))
    known = blocks(gateway)
    site.run(core.balancer.level(core.registry.replicas))
    Users(gateway, gateway.key("other")).asked(body(text(2, 4_000)))
    assert blocks(gateway) == known


# --- policy


def test_an_alias_has_its_own_strategy(site):
    engines = [site.engine(**INSTANT) for _ in range(3)]
    gateway = started(site, engines, "session", aliases={"special": "round-robin"})
    gateway.alias("special", MODEL)
    users = Users(gateway)
    same = text("the same", 600)
    assert len(set(users.asked(*[body(same)] * 6, at_once=1))) == 1
    in_turn = users.asked(*[body(same, model="special")] * 6, at_once=1)
    assert Counter(in_turn) == dict.fromkeys(set(in_turn), 2)
    assert in_turn[:3] == in_turn[3:]


def test_another_strategy_takes_over_while_requests_are_on_their_way(site):
    engines = [site.engine(**PACED) for _ in range(2)]
    folder = policies(site, strategy="power-of-two")
    gateway = site.gateway(engines, policies=folder)
    gateway.wait_ready(MODEL, 2)
    paces = [replica_of(gateway, engine.url).pace for engine in engines]
    with Load(gateway, users=4) as load:
        load.more(10)
        assert not any(pace._heard for pace in paces)
        for strategy, learns in (("estimate", True), ("least-in-flight", False)):
            sections = {"warmup": COLD, "balancing": {"strategy": strategy}}
            (folder / "routing.yaml").write_bytes(orjson.dumps(sections))
            balancing = lambda: gateway.gateway.core.policies.policy.routing.balancing  # noqa: E731
            wait_until(lambda: balancing().strategy == strategy, strategy)  # noqa: B023 - waited for at once
            load.more(10)
            if learns:  # once it is known how many bytes a token has
                wait_until(lambda: all(pace._heard for pace in paces), "what requests told")
        assert load.failures == []
    wait_until(lambda: empty(gateway), "nothing left")
