"""What the SGLang persona does, beside its bytes: health, SIGTERM, stalls, clients that leave (all captured)."""

import asyncio
import contextlib
import json

import pytest

from loadtests.engine.acts import Look, Reply
from loadtests.engine.exchange import Exchange, ReceivedRequest
from loadtests.engine.harness import until, with_engine
from loadtests.engine.server import SimulatedEngine
from loadtests.engine.spec import TASKS, EngineSpec, instant_spec
from loadtests.engine.wireclient import EOF, WireClient, ask, get, post

BODY = {"messages": [{"role": "user", "content": "hello world"}], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
PATH = "/v1/chat/completions"
SLOW = EngineSpec(persona="sglang", step_time=0.005, max_num_seqs=2, drain_linger=0.01)
INSTANT = instant_spec(persona="sglang")


def chat(**changes: object) -> bytes:
    return post(PATH, json.dumps({**BODY, **changes}).encode())


class FakeWire:
    """Takes what an exchange writes."""

    def __init__(self) -> None:
        self.written = b""
        self.done = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.written += data

    def shut(self) -> None: ...

    def reset(self) -> None: ...

    def date_line(self) -> bytes:
        return b""

    def exchange_done(self, exchange: Exchange) -> None:
        self.done.set()


@pytest.mark.parametrize(("good_at", "looks", "status"), [(1, 1, b"200"), (3, 3, b"200"), (9, 4, b"503")])
def test_a_look_is_repeated_until_it_is_good_or_there_were_enough(good_at: int, looks: int, status: bytes) -> None:
    asked = []

    def good() -> bool:
        asked.append(1)
        return len(asked) == good_at

    async def body() -> None:
        wire = FakeWire()
        request = ReceivedRequest("GET", "/health", b"/health", [], b"", 0.0)
        exchange = Exchange(request, wire, [], persistent=True, request_id=None, on_end=lambda _: None)
        exchange.do(Look(0.001, 4, good, Reply(200), Reply(503)))
        await asyncio.wait_for(wire.done.wait(), 5)
        assert wire.written.startswith(b"HTTP/1.1 " + status)
        assert len(asked) == looks

    asyncio.run(body())


def test_health_gives_no_answer_while_the_engine_is_frozen() -> None:
    async def check(engine: SimulatedEngine) -> None:
        engine.faults.set("health_ok_generation_hangs")
        async with WireClient(engine.port) as client:
            client.send(get("/health"))
            assert await client.read_some(1.3) == b""
            assert (await ask(engine.port, get("/ping"))).status == 200
            assert (await ask(engine.port, get("/v1/models"))).status == 200
            engine.faults.clear()
            assert (await client.answer()).status == 200

    with_engine(check, SLOW)


def test_health_says_503_at_once_while_it_starts() -> None:
    async def check(engine: SimulatedEngine) -> None:
        answer = await ask(engine.port, get("/health"))
        assert answer.status == 503

    with_engine(check, instant_spec(persona="sglang", startup_time=60.0))


def test_vllm_does_not_listen_while_it_starts() -> None:
    async def body() -> None:
        engine = SimulatedEngine(instant_spec(startup_time=0.05))
        starting = asyncio.create_task(engine.start())
        await asyncio.sleep(0)
        assert engine.port == 0
        await starting
        assert (await ask(engine.port, get("/health"))).status == 200
        await engine.close()

    asyncio.run(body())


def test_told_to_end_it_serves_old_and_new_requests_and_says_503() -> None:
    async def check(engine: SimulatedEngine) -> None:
        async with WireClient(engine.port) as old, WireClient(engine.port) as new:
            old.send(chat(max_tokens=60, stream=True))
            await old.read_until(b"data: ")
            ending = asyncio.create_task(engine.shutdown())
            await asyncio.sleep(0)
            for path in ("/health", "/ping"):
                assert (await ask(engine.port, get(path))).status == 503
            new.send(chat(max_tokens=120, stream=True))
            for client in (old, new):
                answer = await client.answer()
                assert answer.body.count(b'"finish_reason":"length"') == 1
            await ending
            with pytest.raises(ConnectionRefusedError):
                await ask(engine.port, get("/health"))

    with_engine(check, SLOW)


def test_an_ending_engine_that_is_closed_ends_at_once() -> None:
    async def check(engine: SimulatedEngine) -> None:
        async with WireClient(engine.port) as client:
            client.send(chat(max_tokens=2000, stream=True))
            await client.read_until(b"data: ")
            ending = asyncio.create_task(engine.shutdown())
            await asyncio.sleep(0)
            await engine.close()
            await asyncio.wait_for(ending, 2)

    with_engine(check, SLOW)


def test_the_head_of_a_stream_comes_with_its_first_event() -> None:
    async def check(engine: SimulatedEngine) -> None:
        engine.faults.set("health_ok_generation_hangs")
        async with WireClient(engine.port) as client:
            client.send(chat(stream=True))
            assert await client.read_some(0.15) == b""
            engine.faults.clear()
            assert b"data: " in await client.read_until(b"data: ")

    with_engine(check, SLOW)


def test_when_it_dies_connections_break_without_a_word() -> None:
    async def check(engine: SimulatedEngine) -> None:
        async with contextlib.AsyncExitStack() as stack:
            running, whole = [await stack.enter_async_context(WireClient(engine.port)) for _ in range(2)]
            running.send(chat(max_tokens=2000, stream=True))
            await running.read_until(b'"content":"gari"')
            whole.send(chat(max_tokens=2000))
            await until(lambda: engine.running == 2)
            engine.fail_in_flight()
            assert b'"error"' not in await running.read_to_end()
            assert not running.received.endswith(b"0\r\n\r\n")
            assert await whole.read_to_end() == b""
            assert (running.state, whole.state) == (EOF, EOF)

    with_engine(check, SLOW)


@pytest.mark.parametrize(("stream", "begun"), [(True, True), (False, False)])
def test_a_client_that_left_is_noticed_at_once_only_in_a_stream_that_has_begun(stream: bool, begun: bool) -> None:
    async def check(engine: SimulatedEngine) -> None:
        async with WireClient(engine.port) as client:
            client.send(chat(max_tokens=2000, stream=stream))
            await until(lambda: engine.running == 1)
            if begun:
                await client.read_until(b"data: ")
            client.close()
            await until(lambda: engine.open_connections == 0)
            assert engine.running == (0 if begun else 1)
            await until(lambda: engine.running == 0)

    with_engine(check, EngineSpec(persona="sglang", step_time=0.005, client_poll=0.2))


@pytest.mark.parametrize("name", ["other-model", None])
def test_any_model_name_is_served_and_echoed(name: str | None) -> None:
    async def check(engine: SimulatedEngine) -> None:
        answer = await ask(engine.port, chat(**({} if name is None else {"model": name})))
        assert (answer.status, json.loads(answer.body)["model"]) == (200, name or "default")

    with_engine(check, INSTANT)


def test_the_client_s_request_id_is_not_taken_over() -> None:
    async def check(engine: SimulatedEngine) -> None:
        answer = await ask(engine.port, post(PATH, json.dumps(BODY).encode(), "x-request-id: mine"))
        assert len(json.loads(answer.body)["id"]) == 32
        assert answer.header("x-request-id") is None

    with_engine(check, INSTANT)


def test_the_limit_of_the_queue_does_not_count_what_runs() -> None:
    async def check(engine: SimulatedEngine) -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(WireClient(engine.port)) for _ in range(3)]
            for number, client in enumerate(clients):
                client.send(chat(max_tokens=2000))
                await until(lambda number=number: engine.running + engine.waiting == number + 1)  # type: ignore[misc]
                await until(lambda number=number: engine.running == min(2, number + 1))  # type: ignore[misc]
            assert (await ask(engine.port, chat())).status == 503
            refused = await ask(engine.port, chat(stream=True))
            assert (refused.status, refused.body.count(b"[DONE]")) == (200, 1)

    with_engine(check, EngineSpec(persona="sglang", step_time=0.005, max_num_seqs=2, max_num_queued_requests=1))


def test_priority_is_higher_first() -> None:
    async def check(engine: SimulatedEngine) -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(WireClient(engine.port)) for _ in range(3)]
            engine.faults.set("paused")
            for client, priority in zip(clients, (0, 1, 5), strict=True):
                client.send(chat(priority=priority, max_tokens=4))
            await until(lambda: engine.requests_seen == 3)
            engine.faults.clear()
            await until(lambda: sum(each.state == "finished" for each in engine.requests) == 1)
            assert [each.state for each in engine.requests] == ["running", "running", "finished"]
            await asyncio.gather(*(client.answer() for client in clients))

    with_engine(check, EngineSpec(persona="sglang", step_time=0.02, max_num_seqs=1, scheduling_policy="priority"))


def test_token_counters_move_at_the_end_and_the_realtime_ones_before() -> None:
    def value(engine: SimulatedEngine, series: str) -> float:
        lines = engine.metrics_text().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"sglang:{series}"))

    async def check(engine: SimulatedEngine) -> None:
        async with WireClient(engine.port) as client:
            client.send(chat(max_tokens=90, stream=True))
            await client.read_until(b"data: ")
            assert value(engine, "num_running_reqs{") == 1
            await until(lambda: value(engine, 'realtime_tokens_total{engine_type="unified",mode="decode"') >= 41)
            assert value(engine, "generation_tokens_total{") == 0
            await client.answer()
            assert value(engine, 'generation_tokens_total{engine_type="unified",is_streaming="true"') == 90

    with_engine(check, EngineSpec(persona="sglang", step_time=0.002))


def test_a_fault_that_writes_an_error_writes_it_flat() -> None:
    async def check(engine: SimulatedEngine) -> None:
        engine.faults.set("status_burst", status=503, message="busy", type="503")
        body = json.loads((await ask(engine.port, chat())).body)
        assert body == {"object": "error", "message": "busy", "type": "503", "param": None, "code": 503}

    with_engine(check, INSTANT)


@pytest.mark.parametrize("settings", [{"tasks": TASKS}, {"api_key": "k"}, {"persona": "llama"}])
def test_what_is_not_modelled_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"persona|SGLang"):
        instant_spec(**{"persona": "sglang", **settings})


def test_token_ids_are_a_prompt_and_zero_tokens_an_answer() -> None:
    async def check(engine: SimulatedEngine) -> None:
        body = json.dumps({"prompt": [[300, 301, 302], [5]], "max_tokens": 0}).encode()
        usage = json.loads((await ask(engine.port, post("/v1/completions", body))).body)["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (4, 0)

    with_engine(check, INSTANT)
