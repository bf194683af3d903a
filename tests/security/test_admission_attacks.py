"""Who wants the places of others, or all of the queue; what a wrong store says of other instances; and how it ends."""

from __future__ import annotations

import asyncio
import json
import math
import struct
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.admin.explainviews import DecisionView, decision_view
from gateway.admission.limit import places
from gateway.fleet.balance.estimate import Load, Quote
from gateway.fleet.balance.explained import Decision
from gateway.fleet.balance.hints import Hints
from gateway.fleet.balance.pace import Prior
from gateway.fleet.balance.shared import MAX_INSTANCES, MAX_REPORT, pack
from gateway.fleet.balance.workload import Workload
from gateway.loadshare import LoadShare, redis_load_share
from gateway.stateurl import redis_place
from gateway.stores.interfaces import StoreUnavailable
from gateway.stores.redis_load import HINTS, LOAD, Bounds, RedisLoad
from loadtests.rawclient import RawClient
from tests.conftest import COLD, RunningGateway, wait_until
from tests.redisserver import RedisServer, server_that_says

MODEL = "sim-model"
SECRET = "canary-7f3a"
STEADY = settings(deadline=None, suppress_health_check=list(HealthCheck))
ROLES = """
roles:
  calls: {aliases: ["*"]}
  urgent: {aliases: ["*"], priority: interactive}
  later: {aliases: ["*"], priority: bulk}
default_roles: [calls]
unlisted_tenants: allow
"""


def started(site: Any, engine: Any, models: Sequence[str] = (MODEL,), **admission: Any) -> RunningGateway:
    folder = site.routing(warmup=COLD, admission=admission)
    (folder / "access.yaml").write_text(ROLES)
    gateway = site.gateway([engine], policies=folder)
    for model in models:
        gateway.wait_ready(model)
    wait_until(lambda: gateway.gateway.core.registry.replicas[0].room == admission["in_flight"], "the bound")
    return gateway


def of_users(engine: Any) -> list[Any]:
    """What clients' requests have sent to the engine, in the order of their coming."""
    return [request for request in list(engine.requests) if request.path.endswith("/chat/completions")]


def waiting(gateway: RunningGateway) -> int:
    return sum(gateway.gateway.core.gate.depths().values())


async def drop(asked: Sequence[asyncio.Task[httpx.Response]]) -> None:
    for each in asked:
        each.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


class Crowd:
    """Callers of a gateway, each with a connection of its own."""

    def __init__(self, gateway: RunningGateway) -> None:
        self.gateway = gateway
        self.asked: list[asyncio.Task[httpx.Response]] = []

    def run(self, story: Any) -> Any:
        async def main() -> Any:
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(timeout=30, trust_env=False, limits=limits) as self.client:
                try:
                    return await story()
                finally:
                    await drop(self.asked)

        return asyncio.run(main())

    def ask(self, key: str, *, headers: dict[str, str] | None = None, **body: Any) -> asyncio.Task[httpx.Response]:
        asked = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "ignore_eos": True}
        sent = {"authorization": f"Bearer {key}", **(headers or {})}
        url = f"{self.gateway.base_url}/chat/completions"
        self.asked.append(asyncio.ensure_future(self.client.post(url, json={**asked, **body}, headers=sent)))
        return self.asked[-1]

    async def until(self, condition: Any) -> None:
        while not condition():
            await asyncio.sleep(0.002)

    async def end(self, asked: Sequence[asyncio.Task[httpx.Response]]) -> None:
        await drop(asked)
        await self.until(lambda: waiting(self.gateway) == 0 and self.gateway.in_flight() == 0)


# --- other tenants


def test_a_flood_of_one_model_leaves_places_to_another_on_the_same_engine(site: Any):
    """The engine lists the flooded one first, and each place that becomes free is wanted by both."""
    engine = site.engine(more_models=("adapter",), step_time=0.005, prefill_tokens_per_second=0.0)
    gateway = started(site, engine, (MODEL, "adapter"), in_flight=1)
    crowd, flooder, victim = Crowd(gateway), gateway.key("flooder", tenant="f"), gateway.key("victim", tenant="v")

    async def story() -> None:
        running = crowd.ask(flooder, max_tokens=100)
        await crowd.until(lambda: gateway.in_flight() == 1)
        flood = [crowd.ask(flooder) for _ in range(30)]
        await crowd.until(lambda: waiting(gateway) == 30)
        victims = [crowd.ask(victim, model="adapter") for _ in range(5)]
        await crowd.until(lambda: waiting(gateway) == 35)
        answers = await asyncio.gather(running, *flood, *victims)
        assert {answer.status_code for answer in answers} == {200}

    crowd.run(story)
    order = [json.loads(request.body)["model"] for request in of_users(engine)]
    assert order[1:11] == [MODEL, "adapter"] * 5


def test_a_flood_of_the_highest_class_leaves_the_others_their_part_of_the_queue(site: Any):
    engine = site.engine(step_time=0.005, prefill_tokens_per_second=0.0)
    gateway = started(site, engine, in_flight=1, queue=8, starve={"standard": 0.1, "bulk": 0.1})
    roles = {"urgent": ("urgent",), "later": ("later",), "calls": ("calls",)}
    keys = {name: gateway.key(name, roles=role, tenant=name) for name, role in roles.items()}
    crowd = Crowd(gateway)

    async def flooded(until: int) -> None:
        flood = [crowd.ask(keys["urgent"], max_tokens=20) for _ in range(20)]
        await crowd.until(lambda: sum(each.done() for each in flood) >= until)

    async def story() -> None:
        crowd.ask(keys["urgent"], max_tokens=60)
        await crowd.until(lambda: gateway.in_flight() == 1)
        await flooded(12)
        victims = [crowd.ask(keys[name]) for name in ("later", "calls")]
        while not all(each.done() for each in victims):
            await flooded(12)
        assert [each.result().status_code for each in victims] == [200, 200]

    crowd.run(story)


def test_many_keys_aliases_and_tiny_requests_of_a_tenant_are_one_tenant(site: Any):
    engine = site.engine(step_time=0.005, prefill_tokens_per_second=0.0)
    gateway = started(site, engine, in_flight=1, queue=20)
    aliases = [f"alias-{number}" for number in range(4)]
    for alias in aliases:
        gateway.alias(alias, MODEL)
    keys = [gateway.key(f"key-{number}", tenant="flooder") for number in range(12)]
    crowd, victim = Crowd(gateway), gateway.key("victim", tenant="victim")

    async def story() -> None:
        running = crowd.ask(keys[0], max_tokens=200)
        await crowd.until(lambda: gateway.in_flight() == 1)
        flood = [crowd.ask(key, model=alias, max_tokens=1) for key in keys for alias in aliases for _ in range(2)]
        await crowd.until(lambda: sum(each.done() for each in flood) == 96 - 80)
        victims = [crowd.ask(victim, model=alias, max_tokens=3) for alias in aliases]
        await crowd.until(lambda: sum(each.done() for each in flood) == 96 - 76)  # each queue is full, and makes room
        answers = await asyncio.gather(running, *victims)
        assert {answer.status_code for answer in answers} == {200}
        assert {each.result().status_code for each in flood if each.done()} <= {200, 429}

    crowd.run(story)
    order = [json.loads(request.body)["max_tokens"] for request in of_users(engine)]
    assert order.count(3) == 4
    # Each of the flood is taken for more than 20 tokens, so that no more than 25 of its 76 are one turn of a tenant.
    assert 3 not in order[1 + 25 + 4 :]


def test_nobody_gets_a_class_by_asking_for_it(site: Any):
    engine = site.engine(step_time=0.005, prefill_tokens_per_second=0.0)
    gateway = started(site, engine, in_flight=1)
    crowd, later, urgent = Crowd(gateway), gateway.key("l", roles=("later",)), gateway.key("u", roles=("urgent",))
    spoofs: list[dict[str, Any]] = [
        {"headers": {"x-priority": "interactive", "x-gateway-priority": "interactive", "priority": "u=0"}},
        {"service_tier": "priority"},
        {"priority": -100},
        {"metadata": {"priority": "interactive"}},
    ]

    async def story() -> None:
        running = crowd.ask(urgent, max_tokens=60)
        await crowd.until(lambda: gateway.in_flight() == 1)
        spoofed = [crowd.ask(later, **spoof) for spoof in spoofs]
        await asyncio.wait(spoofed, timeout=0.2)
        left = [each for each in spoofed if not each.done()]
        assert all(each.result().status_code == 400 for each in spoofed if each.done())
        assert left
        served = crowd.ask(urgent)
        assert (await served).status_code == 200
        assert not any(each.done() for each in left)
        await running
        assert {answer.status_code for answer in await asyncio.gather(*left)} == {200}

    crowd.run(story)
    for record in gateway.records.lines:
        if record["endpoint"] == "chat" and record["priority"] is not None:
            assert record["priority"] in {"interactive", "bulk"}
    assert not any(b"priority" in request.body for request in list(engine.requests))


def test_waiting_streams_that_nobody_reads_cost_their_place_in_the_queue_alone(site: Any):
    engine = site.engine(step_time=0.01, prefill_tokens_per_second=0.0)
    gateway = started(site, engine, in_flight=1, comments=1, wait={"standard": 3})
    key = gateway.key()
    body = json.dumps({"model": MODEL, "messages": [], "max_tokens": 400, "ignore_eos": True, "stream": True})
    body = body.replace("[]", '[{"role":"user","content":"hi"}]')
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: gw\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n"
    whole = f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(gateway.address, receive_buffer=4096)) for _ in range(10)]
        for client in clients:
            client.send(whole)
        wait_until(lambda: waiting(gateway) == 9, "all but one to wait")
        wait_until(lambda: waiting(gateway) == 0, "their time to be over")
        texts = [client.rest() if client.head() else b"" for client in clients]
    late = [text for text in texts if b"queue_timeout" in text]
    assert len(late) == 9
    assert all(2 <= text.count(b": waiting\n\n") <= 4 and b"[DONE]" not in text for text in late)
    wait_until(lambda: gateway.in_flight() == 0, "nothing in flight")


# --- the end


@pytest.mark.parametrize("comments", [0, 1])
def test_a_full_queue_is_told_when_the_gateway_stops(site: Any, comments: int):
    engine = site.engine(step_time=0.01, prefill_tokens_per_second=0.0)
    folder = site.routing(warmup=COLD, admission={"in_flight": 1, "queue": 40, "comments": comments})
    gateway = site.gateway([engine], policies=folder, timeouts_drain=1.5)
    gateway.wait_ready(MODEL)
    wait_until(lambda: gateway.gateway.core.registry.replicas[0].room == 1, "the bound")
    crowd, key = Crowd(gateway), gateway.key()

    async def story() -> list[httpx.Response]:
        asked = [crowd.ask(key, max_tokens=5_000, stream=True) for _ in range(41)]
        await crowd.until(lambda: waiting(gateway) == 40)
        await asyncio.to_thread(gateway.site.run, gateway.gateway.drain())
        return list(await asyncio.gather(*asked))

    answers = crowd.run(story)
    assert all('"code":"draining"' in answer.text for answer in answers)
    assert all("[DONE]" not in answer.text for answer in answers)
    if not comments:
        assert sorted(answer.status_code for answer in answers) == [200] + [503] * 40
        assert {answer.headers.get("retry-after") for answer in answers} == {None, "5"}
    assert len(of_users(engine)) == 1
    assert (waiting(gateway), gateway.in_flight()) == (0, 0)


# --- other instances


def shares(full: int, have: list[int], rounds: int = 200) -> list[int]:
    """What instances have that are always busy, once they have told each other often; a twentieth ends each time."""
    for _ in range(rounds):
        told = list(have)
        for each in range(len(have)):
            busy = sum(count > 0 for other, count in enumerate(told) if other != each)
            room = places(full, None, 1.0, sum(told) - told[each], instances=busy)
            have[each] = max(have[each] - max(1, have[each] // 20), room)
    return have


@pytest.mark.parametrize("have", [[100, 0], [0, 100], [100, 100], [100, 0, 0], [1, 99, 40], [100] + [0] * 7])
def test_an_instance_that_starts_anew_gets_its_part_of_what_others_hold(have: list[int]):
    parts = shares(100, have)
    assert min(parts) >= 100 // len(parts)
    assert sum(parts) <= 100 + len(parts)


def test_one_that_is_less_busy_leaves_the_rest_to_others():
    assert places(100, None, 1.0, 10, instances=1) == 90
    assert places(100, None, 1.0, 60, instances=1) == 50
    assert places(None, 64, 1.0, 60, 2, instances=1) == 33
    assert places(100, None, 1.0, 100, instances=0) == 1  # nobody knows of how many they are


@pytest.mark.parametrize("instances", [1, 3, MAX_INSTANCES])
def test_whoever_lies_about_its_load_takes_no_more_than_the_parts_it_says_to_be(instances: int):
    assert places(640, None, 1.0, 64 * 10**6, instances=instances) == 640 // (1 + instances)


class Busy:
    def __init__(self, number: int) -> None:
        self.id = f"10.0.0.{number}:8000"
        self.point = number
        self.in_flight = 0
        self.work = Workload(Prior())


class Liar:
    """An exchange that says anything."""

    def __init__(self, told: Any) -> None:
        self.told = told

    async def exchange(self, report: bytes, hints: bytes) -> Any:
        return self.told

    async def close(self) -> None:
        pass


RECORDS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 2, 2**64 - 1]),
        st.sampled_from([0, 1, 10**6, 10**6 + 1, 2**32 - 1]),
        st.sampled_from([0, 5, 10**12, 10**12 + 1, 2**64 - 1]),
    ),
    max_size=5,
).map(lambda rows: b"\x01" + b"".join(struct.pack("<QIQ", *row) for row in rows))
REPORTS = RECORDS | st.binary(max_size=60) | st.just(b"\x01" + b"\xff" * MAX_REPORT)
AGES = st.sampled_from([0.0, 0.2, 0.9, 1.0, -1.0, -math.inf, math.inf, math.nan, 1e300])
HINT_TEXTS = st.binary(max_size=50) | st.just(b"\x01" + b"\xff" * 16) | st.just(b"\x01" + struct.pack("<QQ", 5, 1))


@STEADY
@given(
    st.lists(st.tuples(REPORTS, AGES), max_size=6),
    st.lists(HINT_TEXTS, max_size=5),
    st.integers(0, 2**32),
    st.lists(st.sampled_from([0.1, -50.0, 1e9]), max_size=4),
)
def test_whatever_others_are_said_to_have_it_is_a_bounded_number_that_ends(reports, hints, unfit, jumps):
    clock, replicas = SimpleNamespace(now=1_000.0), [Busy(1), Busy(2)]
    board = Liar(SimpleNamespace(reports=reports, hints=hints, unfit=unfit))
    share = LoadShare(board, lambda: replicas, Hints(), lambda text: None, now=lambda: clock.now)
    for jump in (0.1, *jumps):
        clock.now += jump
        asyncio.run(share.step())
        assert share.instances <= MAX_INSTANCES
        assert share.refused >= 0
        for each in replicas:
            assert type(each.work.others_in_flight) is int
            assert 0 <= each.work.others_in_flight <= MAX_INSTANCES * 10**6
            quote = Quote()
            quote.renew(each.work.load(0, 1.0, clock.now), each.work.pace, clock.now)
            assert 0.0 <= quote.seconds(1_000.0, clock.now) < math.inf
    board.told = SimpleNamespace(reports=(), hints=(), unfit=0)
    clock.now += 2.0
    asyncio.run(share.step())
    assert (share.instances, {each.work.others_in_flight for each in replicas}) == (0, {0})


# --- the store


BOUNDS = Bounds(expiry=30.0, report=MAX_REPORT, hints=100, instances=MAX_INSTANCES)
LAST = 2**64 - 1


@contextmanager
def hostile(tmp_path: Path):
    with RedisServer(tmp_path / "redis") as server:
        yield server


async def told_by_two(server: RedisServer) -> list[list[bytes]]:
    """What two instances hear of each other's hints, each step's apart."""
    ours, theirs = (RedisLoad(redis_place(server.url()), name, BOUNDS) for name in ("ours", "theirs"))
    heard: list[list[bytes]] = []
    try:
        for step in range(6):
            for each, name in ((ours, b"ours"), (theirs, b"theirs")):
                try:
                    heard.append([*(await each.exchange(name, b"%b %d" % (name, step))).hints])
                except StoreUnavailable:
                    heard.append([b"failed"])
    finally:
        await ours.close()
        await theirs.close()
    return heard


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("number", [f"{LAST}-{LAST}", f"{LAST}-1", f"{10**13}-0"])
def test_a_hint_of_the_end_of_time_does_not_end_all_others(tmp_path: Path, number: str, removed: bool):
    """No server gives an id after the last one: no instance could tell or hear a hint any more, nor its load."""
    with hostile(tmp_path) as server:
        server.command("XADD", HINTS, number, "broken", "x")
        if removed:
            server.command("XDEL", HINTS, number)
        heard = asyncio.run(told_by_two(server))
        assert [b"failed"] not in heard[4:]
        assert [b"theirs 4"] in heard
        assert [b"ours 5"] in heard
        assert 0 < server.command("PTTL", HINTS) <= 600_000


def test_thousands_of_instances_that_do_not_exist_are_bounded_and_gone_when_nobody_renews_them(tmp_path: Path):
    async def play(server: RedisServer) -> None:
        replica, lines = Busy(1), list[str]()
        loop = asyncio.get_running_loop()
        share = redis_load_share(redis_place(server.url()), lambda: [replica], Hints(), lines.append, now=loop.time)
        seconds, micros = server.command("TIME")
        stamp = b"%013d" % (seconds * 1_000 + micros // 1_000)
        entry = stamp + pack({1: (1_000_000, 10**12)})
        server.command("HSET", LOAD, *[part for number in range(5_000) for part in (f"fake {number}", entry)])
        async with asyncio.timeout(20):
            while not share.instances:
                await share.step()
                await asyncio.sleep(0.01)
            assert share.instances <= MAX_INSTANCES
            assert replica.work.others_in_flight <= MAX_INSTANCES * 10**6
            while share.instances or server.command("EXISTS", LOAD):
                await share.step()
                await asyncio.sleep(0.01)
        assert replica.work.others_in_flight == 0
        assert lines == []
        await share.close()

    with hostile(tmp_path) as server:
        asyncio.run(play(server))


@pytest.mark.parametrize("count", [b":-1", b":" + b"9" * 400, b":99999999999"])
def test_a_count_that_no_store_has_is_no_answer(count: bytes):
    """It would be added to a gauge that can then not be shown."""

    async def play() -> None:
        async with server_that_says(b"*4\r\n" + count + b"\r\n$3\r\n0-0\r\n*0\r\n*0\r\n") as url:
            load = RedisLoad(redis_place(url), "ours", BOUNDS)
            with pytest.raises(StoreUnavailable):
                await load.exchange(b"", b"")
            await load.close()

    asyncio.run(play())


# --- what operators are shown


WILD = st.floats() | st.integers(-(10**30), 10**30)


@STEADY
@given(
    st.builds(Load, *[WILD] * 5, st.integers(-5, 10**12), st.none() | st.integers(-5, 10**12), *[WILD] * 8),
    st.floats(0, 1e12),
    st.integers(0, 1 << 30),
    st.integers(-5, 1 << 40),
    st.floats(-1e9, 1e9),
)
def test_an_explanation_of_nonsense_can_be_shown_and_read(load, tokens, size, holds, passed):
    said = (load, 8_000.0, 0.02, 1_000.0)
    decision = Decision(
        ("req_1", "general", MODEL), 1_000.0 + passed, "estimate", 1, tokens, size, {"a": holds}, True, 2,
        [("a", said, 1, 2), ("b", None, 0, 1 << 30)], "a",
    )  # fmt: skip
    text = decision_view(decision, 5.0).model_dump_json()
    shown = DecisionView.model_validate_json(text)
    for one in shown.candidates:
        assert one.terms is None or all(map(math.isfinite, one.terms.model_dump().values()))


def test_no_text_of_a_request_is_in_its_explanation(site: Any):
    engines = [site.engine() for _ in range(2)]
    gateway = site.gateway(engines)
    gateway.wait_ready(MODEL, 2)
    crowd, key = Crowd(gateway), gateway.key(f"name-{SECRET}", tenant="acme")

    async def story() -> httpx.Response:
        messages = [{"role": "system", "content": SECRET * 50}, {"role": "user", "content": SECRET}]
        return await crowd.ask(key, messages=messages, user=SECRET, headers={"x-session-id": SECRET})

    answer = crowd.run(story)
    assert answer.status_code == 200
    decisions = gateway.gateway.core.balancer.decisions
    found = decisions.of(answer.headers["x-request-id"])
    assert found is not None
    assert SECRET not in repr(found)
    assert "acme" not in decision_view(found, 0.0).model_dump_json()


def test_labels_of_the_queue_are_of_closed_sets(site: Any):
    engine = site.engine(step_time=0.01, prefill_tokens_per_second=0.0)
    gateway = started(site, engine, in_flight=1)
    crowd, keys = Crowd(gateway), [gateway.key(f"key-{number}", tenant=f"tenant-{number}") for number in range(8)]

    async def story() -> None:
        running = crowd.ask(keys[0], max_tokens=100)
        await crowd.until(lambda: gateway.in_flight() == 1)
        asked = [crowd.ask(key, model=f"{SECRET}-{number}") for number, key in enumerate(keys)]
        asked += [crowd.ask(key) for key in keys]
        await crowd.until(lambda: waiting(gateway) == 8)
        lines = [line for line in gateway.metrics().splitlines() if line.startswith("gateway_queue")]
        assert not [line for line in lines if "tenant-" in line or SECRET in line]
        assert sum(line.startswith("gateway_queue_depth") for line in lines) == 3
        await running
        await asyncio.gather(*asked)

    crowd.run(story)
