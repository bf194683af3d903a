"""The scripts against a real server: their sums are those of ``gcra``, and they keep to their own keys."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.limits import gcra
from gateway.limits.question import figures_of
from gateway.limits.scripts import ADMIT, DELIVER, RENEW, key_of
from gateway.model import Budget, Limits
from gateway.redislink import RedisLink
from gateway.stateurl import redis_place
from loadtests.vllm.engine import held_port
from tests.redisserver import RedisServer, port_of


@pytest.fixture
def evaluate(redis_server):
    redis_server.command("FLUSHALL")

    def run(script, keys, *values):
        async def once():
            link = RedisLink(redis_place(redis_server.url()), timeout=5.0)
            try:
                return await link.evaluate(script, keys, *values)
            finally:
                await link.close()

        return asyncio.run(once())

    return run


def admit(evaluate, budget, tokens, lease="a", *freed):
    figures = figures_of([budget], tokens)
    values = [value for f in figures for value in (f.units, f.spacing, f.period)]
    admitted, *numbers = evaluate(ADMIT, [f.key for f in figures], lease, 60, *values, *freed)
    return int(admitted), [float(number) for number in numbers]


@pytest.mark.parametrize("figure", [1, 7, 60, 997])
@pytest.mark.parametrize("units", [1, 3])
def test_a_rate_is_taken_as_gcra_takes_it(evaluate, figure, units):
    spaced = gcra.spacing(figure, gcra.MINUTE)
    tat = 0.0
    for _ in range(4):
        later = gcra.take(tat, 0.0, units, spaced, gcra.MINUTE)
        admitted, (ahead,) = admit(evaluate, Budget("a", Limits(tokens_per_minute=figure)), units)
        assert admitted == (later is not None)
        tat = tat if later is None else later
        assert ahead == pytest.approx(tat, abs=1.0)


def test_a_key_ends_when_its_limit_is_whole(evaluate, redis_server):
    admit(evaluate, Budget("a", Limits(6, 600, 86_400, 5)), 60)
    left = {kind: redis_server.command("PTTL", key_of(kind, "a")) for kind in ("requests", "tokens", "day", "places")}
    assert left["requests"] == pytest.approx(10_000, abs=2_000)
    assert left["tokens"] == pytest.approx(6_000, abs=2_000)
    assert left["day"] == pytest.approx(60_000, abs=2_000)
    assert left["places"] == pytest.approx(60_000, abs=2_000)


def test_a_refusal_changes_nothing(evaluate, redis_server):
    budget = Budget("a", Limits(60, 600, 86_400, 1))
    admit(evaluate, budget, 60)
    before = [redis_server.command("GET", key_of(kind, "a")) for kind in ("requests", "tokens", "day")]
    assert admit(evaluate, budget, 60, "b")[0] == 0
    assert [redis_server.command("GET", key_of(kind, "a")) for kind in ("requests", "tokens", "day")] == before
    assert redis_server.command("ZRANGE", key_of("places", "a"), 0, -1) == [b"a"]


def test_a_lease_that_ended_is_no_longer_counted(evaluate, redis_server):
    budget = Budget("a", Limits(concurrency=1))
    assert admit(evaluate, budget, 0, "dead") == (1, [0.0])
    redis_server.command("ZADD", key_of("places", "a"), 1.0, "dead")
    assert admit(evaluate, budget, 0, "next") == (1, [0.0])
    assert admit(evaluate, budget, 0, "third") == (0, [1.0])


def test_places_that_are_known_to_be_free_are_freed_first(evaluate):
    budget = Budget("a", Limits(requests_per_minute=60, concurrency=1))
    admit(evaluate, budget, 0, "gone")
    assert admit(evaluate, budget, 0, "next", 2, "gone")[0] == 1


def test_a_batch_counts_once(evaluate, redis_server):
    key = key_of("tokens", "a")
    admit(evaluate, Budget("a", Limits(tokens_per_minute=600)), 100)
    before = float(redis_server.command("GET", key))
    for _ in range(3):
        evaluate(DELIVER, [key_of("delivered", "i"), key], 1, "rate", 0.0, 5.0)
    assert float(redis_server.command("GET", key)) == pytest.approx(before + 5.0)
    evaluate(DELIVER, [key_of("delivered", "i"), key], 2, "rate", 4.0, 0.0)
    assert float(redis_server.command("GET", key)) == pytest.approx(before + 1.0)


def test_a_correction_is_that_of_gcra(evaluate, redis_server):
    key, mark = key_of("tokens", "a"), key_of("delivered", "i")
    # To a whole limit a refund is nothing and a charge counts from now on.
    evaluate(DELIVER, [mark, key], 1, "rate", 50.0, 0.0)
    assert redis_server.command("EXISTS", key) == 0
    evaluate(DELIVER, [mark, key], 2, "rate", 50.0, 70.0)
    assert redis_server.command("PTTL", key) == pytest.approx(70_000, abs=2_000)


def test_what_is_renewed_lasts_from_now_and_what_was_lost_is_back(evaluate, redis_server):
    first, second = key_of("places", "a"), key_of("places", "b")
    evaluate(RENEW, [first, second], 60, 2, "x", "y", 1, "z")
    assert redis_server.command("ZCARD", first) == 2
    assert redis_server.command("ZRANGE", second, 0, -1) == [b"z"]
    assert redis_server.command("PTTL", second) == pytest.approx(60_000, abs=2_000)
    assert admit(evaluate, Budget("a", Limits(concurrency=2)), 0) == (0, [2.0])


def test_a_node_of_a_cluster_takes_them(tmp_path):
    async def every_script(server):
        link = RedisLink(redis_place(server.url()), timeout=5.0)
        try:
            figures = figures_of([Budget("principal:{x}", Limits(60, 600, 600, 5)), Budget("tenant:y", Limits(60))], 50)
            values = [value for f in figures for value in (f.units, f.spacing, f.period)]
            assert int((await link.evaluate(ADMIT, [f.key for f in figures], "a", 60, *values))[0]) == 1
            places = [key_of("places", "principal:{x}"), key_of("places", "tenant:y")]
            assert await link.evaluate(RENEW, places, 60, 1, "a", 0) == 1
            assert (
                await link.evaluate(DELIVER, [key_of("delivered", "i"), *places], 1, "places", 1, "a", "places", 0) == 1
            )
        finally:
            await link.close()

    with (
        held_port() as bus,
        RedisServer(tmp_path, "--cluster-enabled", "yes", "--cluster-port", str(port_of(bus))) as server,
    ):
        server.command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        deadline = time.monotonic() + 10
        while b"cluster_state:ok" not in server.command("CLUSTER", "INFO"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        asyncio.run(every_script(server))
