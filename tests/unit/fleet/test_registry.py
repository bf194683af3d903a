"""Who can serve what: a snapshot that follows each replica's life, and one replica's accounting."""

from __future__ import annotations

import asyncio
from types import MappingProxyType

import pytest

from gateway.errors import EngineReset, EngineUnreachable
from gateway.fleet.registry import Registry
from gateway.fleet.replica import Observation, State
from gateway.model import EngineSpec
from gateway.policy.engines import Floor
from gateway.wire.answer import UpstreamLimits
from gateway.wire.deadline import Sweeper

GONE = Observation(healthy=False)


def with_registry(body, *, urls=("http://127.0.0.1:1", "http://127.0.0.1:2"), changes=None, floors=None):
    async def main():
        loop = asyncio.get_running_loop()
        sweeper = Sweeper(loop)
        told = changes.append if changes is not None else lambda _: None
        specs = [EngineSpec(url) for url in urls]
        registry = Registry(loop, sweeper, specs, UpstreamLimits(connect=0.2), lambda: told(None), floors=floors or {})
        try:
            await body(registry)
        finally:
            registry.close()
            registry.close()
            sweeper.close()

    asyncio.run(main())


def serving(*models):
    return Observation(True, models, 4096)


def test_only_ready_replicas_are_offered_and_only_for_what_they_serve():
    async def body(registry):
        one, two = registry.replicas
        assert (registry.any_ready(), registry.served_models(), list(registry.ready("a"))) == (False, [], [])
        one.observe(serving("a", "b"))
        two.observe(serving("b"))
        assert list(registry.ready("a")) == [one]
        assert list(registry.ready("b")) == [one, two]
        assert list(registry.ready("c")) == []
        assert registry.served_models() == ["a", "b"]
        one.observe(GONE)
        assert list(registry.ready("b")) == [two]
        assert registry.served_models() == ["b"]

    with_registry(body)


def test_the_shortest_context_of_the_ready_replicas_counts():
    async def body(registry):
        one, two = registry.replicas
        assert registry.max_model_len("a") is None
        one.observe(Observation(True, ("a", "b"), 4096))
        two.observe(Observation(True, ("a", "c"), 2048))
        assert [registry.max_model_len(model) for model in "abcd"] == [2048, 4096, 2048, None]
        two.observe(GONE)
        assert [registry.max_model_len(model) for model in "abc"] == [4096, 4096, None]
        one.observe(Observation(True, ("a",)))
        assert registry.max_model_len("a") is None
        two.observe(Observation(True, ("a",), 1024))
        assert registry.max_model_len("a") == 1024

    with_registry(body)


def test_an_engine_below_the_floor_gets_no_traffic_until_it_is_newer():
    async def body(registry):
        one, _ = registry.replicas
        for version, state in (("0.10.1", State.FOUND), ("0.23.1", State.READY), ("0.9.0", State.EJECTED)):
            one.observe(Observation(True, ("a",), 4096, version, "vllm"))
            assert one.life.state is state
            assert bool(registry.ready("a")) is (state is State.READY)
            assert ("is older than 0.23.1" in one.life.reason) is (state is not State.READY)

    with_registry(body, floors={"vllm": Floor("0.23.1", refuse=True)})


def test_other_floors_hold_from_the_next_look_on():
    async def body(registry):
        one, _ = registry.replicas
        old = Observation(True, ("a",), 4096, "0.10.1", "vllm")
        one.observe(old)
        assert one.life.state is State.READY
        registry.adopt({"vllm": Floor("0.23.1", refuse=True)})
        assert one.life.state is State.READY
        one.observe(old)
        assert one.life.state is State.EJECTED
        registry.adopt({})
        one.observe(old)
        assert (one.life.state, one.life.reason) == (State.READY, "")

    with_registry(body)


def test_a_snapshot_that_was_read_does_not_change():
    async def body(registry):
        one, _ = registry.replicas
        one.observe(serving("a"))
        before = registry.ready("a")
        one.observe(GONE)
        assert list(before) == [one]
        assert list(registry.ready("a")) == []

    with_registry(body)


def test_only_a_change_is_told():
    changes = []

    async def body(registry):
        one, _ = registry.replicas
        for seen in (GONE, serving("a"), serving("a"), serving("a", "b"), GONE, GONE):
            one.observe(seen)
        assert len(changes) == 3

    with_registry(body, changes=changes)


def test_a_refused_connection_takes_a_replica_out_at_once_and_nothing_else_does():
    async def body(registry):
        one, _ = registry.replicas
        one.observe(serving("a"))
        one.note_failure(EngineReset())
        assert one.life.state is State.READY
        one.note_failure(EngineUnreachable())
        assert one.life.state is State.EJECTED
        one.observe(serving("a"))
        assert one.life.state is State.READY

    with_registry(body)


def test_what_is_in_flight_is_counted():
    async def body(registry):
        one, _ = registry.replicas
        one.enter()
        one.enter()
        one.leave()
        assert one.in_flight == 1
        assert one.open_connections == 0

    with_registry(body)


def test_an_engine_gets_headers_of_ours_alone():
    seen = []

    async def answer(reader, writer):
        seen.append(await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(2))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    async def main():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        sweeper = Sweeper(loop)
        spec = EngineSpec(f"http://127.0.0.1:{port}", MappingProxyType({}))
        registry = Registry(loop, sweeper, [spec], UpstreamLimits())
        reply = await registry.replicas[0].send("/v1/x", b"application/json", b"{}", "req_1-1", total=None)
        assert await reply.read(10) == b"ok"
        reply.close()
        registry.close()
        sweeper.close()
        server.close()
        await server.wait_closed()
        return port

    port = asyncio.run(main())
    assert seen == [
        b"POST /v1/x HTTP/1.1\r\nhost: 127.0.0.1:%d\r\naccept-encoding: identity\r\n"
        b"content-type: application/json\r\ncontent-length: 2\r\nx-request-id: req_1-1\r\n\r\n{}" % port
    ]


def test_after_close_nothing_is_sent():
    async def body(registry):
        registry.close()
        with pytest.raises(EngineUnreachable):
            await registry.replicas[0].send("/v1/x", b"application/json", b"{}", "req_1-1", total=None)

    with_registry(body)
