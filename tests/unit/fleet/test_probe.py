"""Probes of engines that are well, that are not, and that answer with whatever they like."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Callable
from dataclasses import replace

import httpx
import orjson
import pytest

from gateway.fleet.probe import new_client, probe, probe_all, read_models
from gateway.fleet.registry import Registry
from gateway.fleet.replica import Observation, State
from gateway.model import EngineSpec
from gateway.wire.deadline import Sweeper
from gateway.wire.upstream import UpstreamLimits
from loadtests.scripted import Act, Asked, ScriptedServer, Step, chunked, ok

GONE = Observation(healthy=False)
MODELS = orjson.dumps({"object": "list", "data": [{"id": "m", "max_model_len": 2048}, {"id": "n"}]})
FINE = Observation(True, ("m", "n"), 2048)


def row(**fields: object) -> dict[str, object]:
    return {"id": "m", **fields}


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (orjson.loads(MODELS), FINE),
        ({"data": [row(max_model_len=9), row(id="n", max_model_len=5)]}, Observation(True, ("m", "n"), 5)),
        ({"data": [row(), row(), row(id="n"), row()]}, Observation(True, ("m", "n"))),
        (
            {"data": [row(max_model_len=True), row(max_model_len="9"), row(max_model_len=1.5)]},
            Observation(True, ("m",)),
        ),
        ({"data": []}, Observation(healthy=True)),
        ({"data": [None, 7, "m", [], {}, row(id=None), row(id=7), row(id=["m"]), row(id="")]}, Observation(True)),
        (
            {"data": [row(id="x" * 257), row(id="a\nb"), row(id="\x1b[31m"), row(id="\u2028"), row()]},
            Observation(True, ("m",)),
        ),
        (
            {"data": [row(id=f"m{number}") for number in range(1000)]},
            Observation(True, tuple(f"m{n}" for n in range(256))),
        ),
        ({"data": [row(owned_by="vllm"), row(id="n", owned_by="x")]}, Observation(True, ("m", "n"), engine="vllm")),
        ({"data": [row(owned_by=["vllm"])]}, Observation(True, ("m",))),
        ({"data": [row(owned_by="a\nb")]}, Observation(True, ("m",))),
        ({"data": {"id": "m"}}, GONE),
        ({"data": None}, GONE),
        ({}, GONE),
        ([], GONE),
        ("m", GONE),
        (None, GONE),
        (7, GONE),
    ],
)
def test_a_list_of_models_is_read_with_distrust(answer, wanted):
    assert read_models(answer) == wanted


NO_VERSION: list[Step] = [ok(b"{}").replace(b"200 OK", b"404 No")]


def engine(health: list[Step], models: list[Step], version: list[Step] = NO_VERSION) -> Callable[[Asked], list[Step]]:
    answers = {b"/health": health, b"/v1/models": models, b"/version": version}
    return lambda asked: answers[asked.head.split(b" ")[1]]


async def look(
    health: list[Step], models: list[Step], patience: float = 3.0, version: list[Step] = NO_VERSION
) -> Observation:
    async with ScriptedServer(engine(health, models, version)) as server, new_client() as client:
        seen = await probe(client, f"http://127.0.0.1:{server.port}", patience)
        assert all(asked.head.count(b"accept-encoding: identity") for asked in server.asked)
        return seen


LATER: list[Step] = [b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n", *[b" ", 0.02] * 500]
BIG = b'{"data":[{"id":"m"}],"x":"' + b"x" * (2 << 20) + b'"}'


@pytest.mark.parametrize(
    ("health", "models", "wanted"),
    [
        ([ok(b"")], [ok(MODELS)], FINE),
        ([ok(b"")], [chunked(MODELS[:9], MODELS[9:])], FINE),
        ([ok(b"").replace(b"200 OK", b"503 No")], [ok(MODELS)], GONE),
        ([ok(b"").replace(b"200 OK", b"307 Go\r\nlocation: /v1/models")], [ok(MODELS)], GONE),
        ([ok(b"")], [ok(MODELS).replace(b"200 OK", b"401 No")], GONE),
        ([ok(b"")], [ok(b"")], GONE),
        ([ok(b"")], [ok(b"<html>")], GONE),
        ([ok(b"")], [ok(b'{"data":[{"id":"\xff"}]}')], GONE),
        ([ok(b"")], [ok(b'{"data":[{"id":"\\ud800"}]}')], GONE),
        ([ok(b"")], [ok(b"[" * 500_000)], GONE),
        ([ok(b"")], [ok(BIG)], GONE),
        ([ok(b"")], [chunked(BIG)], GONE),
        ([ok(b"x" * (2 << 20))], [ok(MODELS)], GONE),
        ([ok(b"")], [ok(gzip.compress(BIG), b"content-encoding: gzip")], GONE),
        ([ok(b"")], [Act.RESET], GONE),
        ([ok(b"")], [ok(MODELS)[:-5], Act.CLOSE], GONE),
        ([b"nonsense\r\n\r\n", Act.CLOSE], [ok(MODELS)], GONE),
        ([b"HTTP/1.1 200 OK\r\nx: " + b"y" * 500_000], [ok(MODELS)], GONE),
    ],
)
def test_a_probe_sees_only_a_sound_engine_as_sound(health, models, wanted):
    assert asyncio.run(look(health, models)) == wanted


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ([ok(b'{"version":"0.32.0"}')], "0.32.0"),
        (NO_VERSION, None),
        ([ok(b"")], None),
        ([ok(b"<html>")], None),
        ([ok(b"null")], None),
        ([ok(b'["0.32.0"]')], None),
        ([ok(b'{"version":32}')], None),
        ([ok(b'{"version":"0.1\\u001b[31m"}')], None),
        ([ok(b'{"version":"%b"}' % (b"1" * 300))], None),
    ],
)
def test_a_version_is_read_with_distrust(answer, version):
    assert asyncio.run(look([ok(b"")], [ok(MODELS)], version=answer)) == replace(FINE, version=version)


def test_an_engine_whose_version_never_comes_is_gone():
    assert asyncio.run(look([ok(b"")], [ok(MODELS)], patience=0.2, version=[Act.HANG])) == GONE


def test_the_version_is_asked_for_with_the_models_and_not_with_health_alone():
    async def body() -> list[bytes]:
        async with ScriptedServer(engine([ok(b"")], [ok(MODELS)])) as server, new_client() as client:
            url = f"http://127.0.0.1:{server.port}"
            seen = await probe(client, url)
            assert await probe(client, url, known=seen) is seen
            return [asked.head.split(b" ")[1] for asked in server.asked]

    assert asyncio.run(body()) == [b"/health", b"/v1/models", b"/version", b"/health"]


@pytest.mark.parametrize(
    ("health", "models"),
    [([Act.HANG], [ok(MODELS)]), ([ok(b"")], [Act.HANG]), (LATER, [ok(MODELS)]), ([ok(b"")], LATER)],
    ids=["health hangs", "models hang", "health drips", "models drip"],
)
def test_a_probe_ends_in_time_however_slowly_it_is_answered(health, models):
    begin = time.monotonic()
    assert asyncio.run(look(health, models, patience=0.2)) == GONE
    assert time.monotonic() - begin < 3


def test_an_engine_that_is_not_there_is_gone():
    async def body() -> Observation:
        async with ScriptedServer(lambda _: []) as server:
            port = server.port
        async with new_client() as client:
            return await probe(client, f"http://127.0.0.1:{port}")

    assert asyncio.run(body()) == GONE


def test_each_look_is_a_connection_of_its_own():
    async def body() -> int:
        async with ScriptedServer(engine([ok(b"")], [ok(MODELS)])) as server, new_client() as client:
            for _ in range(2):
                assert await probe(client, f"http://127.0.0.1:{server.port}") == FINE
            return server.accepted

    assert asyncio.run(body()) == 6


def test_the_client_of_probes_goes_nowhere_but_where_it_is_sent(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")

    async def body() -> Observation:
        async with ScriptedServer(engine([ok(b"")], [ok(MODELS)])) as server, new_client() as client:
            assert client.timeout == httpx.Timeout(3.5)
            return await probe(client, f"http://127.0.0.1:{server.port}")

    assert asyncio.run(body()) == FINE


def test_every_replica_is_looked_at_whatever_another_does():
    async def body() -> list[State]:
        loop = asyncio.get_running_loop()
        sweeper = Sweeper(loop)
        async with (
            ScriptedServer(engine([ok(b"")], [ok(b"[" * 9)])) as bad,
            ScriptedServer(engine([ok(b"")], [ok(MODELS)])) as good,
            new_client() as client,
        ):
            specs = [EngineSpec(f"http://127.0.0.1:{each.port}") for each in (bad, good)]
            registry = Registry(loop, sweeper, specs, UpstreamLimits())
            await probe_all(client, registry)
            registry.close()
            sweeper.close()
            return [replica.life.state for replica in registry.replicas]

    assert asyncio.run(body()) == [State.FOUND, State.READY]
