"""The engine as a whole: life and death, limits, other endpoints, the command line."""

import asyncio
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest

from loadtests.engine.__main__ import fault_of, main, parser, spec_of
from loadtests.engine.harness import until, with_engine
from loadtests.engine.server import SimulatedEngine
from loadtests.engine.spec import TASKS, EngineSpec, instant_spec
from loadtests.engine.wireclient import EOF, Answer, WireClient, ask, get, post

BODY = {"messages": [{"role": "user", "content": "hello world"}], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
PATH = "/v1/chat/completions"
DIED = b"EngineCore encountered an issue. See stack trace (above) for the root cause."
ERROR_EVENT = (
    b'a9\r\ndata: {"error": {"message": "%s", "type": "InternalServerError", "param": null, "code": 500}}\n\n\r\n'
    b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n" % DIED
)


def chat(**changes: object) -> bytes:
    return post(PATH, json.dumps({**BODY, **changes}).encode())


def answer_to(request: bytes, spec: EngineSpec | None = None) -> Answer:
    got: list[Answer] = []

    async def check(engine: SimulatedEngine) -> None:
        got.append(await ask(engine.port, request))

    with_engine(check, spec)
    return got[0]


def result(path: str, body: dict[str, object], **settings: object) -> dict[str, object]:
    answer = answer_to(post(path, json.dumps(body).encode()), instant_spec(tasks=TASKS, **settings))
    assert answer.status == 200, answer.body
    return json.loads(answer.body)  # type: ignore[no-any-return]


SLOW = EngineSpec(step_time=0.005, max_num_seqs=2, drain_linger=0.0)


def test_shutdown_without_drain_fails_everything_at_once() -> None:
    async def check(engine: SimulatedEngine) -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(WireClient(engine.port)) for _ in range(4)]
            running, _, queued, whole = clients
            for client in clients[:3]:
                client.send(chat(max_tokens=2000, stream=True))
                await client.read_until(b"\r\n\r\n")
            whole.send(chat(max_tokens=2000))
            await running.read_until(b'"content":"gari"')
            await until(lambda: (engine.running, engine.waiting) == (2, 2))
            await engine.shutdown()
            assert (await running.read_to_end()).endswith(ERROR_EVENT)
            assert (await queued.read_to_end()).partition(b"\r\n\r\n")[2] == ERROR_EVENT
            answer = await whole.answer()
            assert (answer.status, json.loads(answer.body)["error"]["message"]) == (500, DIED.decode())
            assert answer.header("vary") == "Origin"
            with pytest.raises(ConnectionRefusedError):
                await ask(engine.port, chat())
            assert {client.state for client in (running, queued)} == {EOF}

    with_engine(check, SLOW)


def test_drain_finishes_what_is_in_flight_and_refuses_the_rest() -> None:
    async def check(engine: SimulatedEngine) -> None:
        async with WireClient(engine.port) as client:
            client.send(chat(max_tokens=30, stream=True))
            await client.read_until(b"data: ")
            draining = asyncio.create_task(engine.shutdown(5.0))
            await asyncio.sleep(0)
            refused = await ask(engine.port, chat())
            assert refused.status == 500
            assert json.loads(refused.body)["error"]["message"] == "cannot schedule new futures after shutdown"
            assert refused.header("vary") is None
            assert (await ask(engine.port, get("/health"))).status == 200
            await client.read_until(b"0\r\n\r\n")
            assert client.received.count(b'"finish_reason":"length"') == 1
            await draining
            with pytest.raises(ConnectionRefusedError):
                await ask(engine.port, get("/health"))

    with_engine(check, SLOW)


def test_drain_that_takes_too_long_ends_as_without() -> None:
    async def check(engine: SimulatedEngine) -> None:
        async with WireClient(engine.port) as client:
            client.send(chat(max_tokens=2000, stream=True))
            await client.read_until(b"data: ")
            await engine.shutdown(0.05)
            assert (await client.read_to_end()).endswith(ERROR_EVENT)

    with_engine(check, SLOW)


def test_close_is_idempotent_and_leaves_no_connection() -> None:
    async def body() -> None:
        engine = SimulatedEngine(SLOW)
        await engine.start()
        async with WireClient(engine.port) as client:
            client.send(chat(max_tokens=2000, stream=True))
            await client.read_until(b"data: ")
            await engine.close()
            await engine.close()
            await client.read_to_end()
            assert client.state == EOF
        assert engine.open_connections == 0

    asyncio.run(body())


def test_a_new_engine_can_take_the_port_of_a_closed_one_and_is_another_process() -> None:
    def of(engine: SimulatedEngine, series: bytes) -> float:
        return next(float(line.split()[-1]) for line in engine.metrics_text().splitlines() if line.startswith(series))

    async def body() -> None:
        first = SimulatedEngine(instant_spec())
        await first.start()
        await ask(first.port, chat())
        await first.close()
        second = SimulatedEngine(instant_spec())
        await second.start(port=first.port)
        assert of(second, b"process_start_time_seconds ") > of(first, b"process_start_time_seconds ")
        assert of(first, b"vllm:generation_tokens_total{") == 8
        assert of(second, b"vllm:generation_tokens_total{") == 0
        assert (await ask(first.port, chat())).status == 200
        await second.close()

    asyncio.run(body())


@pytest.mark.parametrize("stream", [False, True])
def test_queue_limit_refuses_before_any_stream_begins(stream: bool) -> None:
    async def check(engine: SimulatedEngine) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(3):
                client = await stack.enter_async_context(WireClient(engine.port))
                client.send(chat(max_tokens=2000, stream=True))
                await client.read_until(b"\r\n\r\n")
            await until(lambda: (engine.running, engine.waiting) == (2, 1))
            refused = await ask(engine.port, chat(stream=stream))
            assert refused.status == 503
            error = json.loads(refused.body)["error"]
            assert (error["type"], error["code"], refused.header("retry-after")) == ("Service Unavailable", 503, None)
            assert len(refused.body) == 188
            series = b'vllm:admission_rejections_total{model_name="sim-model",reason="max_num_queued_reqs"} 1.0'
            assert series in engine.metrics_text()

    with_engine(check, EngineSpec(step_time=0.005, max_num_seqs=2, max_num_queued_requests=3))


def test_requests_are_remembered_with_bytes_and_state() -> None:
    async def check(engine: SimulatedEngine) -> None:
        raw = post(PATH, json.dumps(BODY).encode(), "X-Thing: a", "x-thing: b")
        await ask(engine.port, raw)
        request = engine.requests[0]
        assert (request.method, request.path, request.state) == ("POST", PATH, "finished")
        assert [value for name, value in request.headers if name == b"x-thing"] == [b"a", b"b"]
        assert json.loads(request.body) == BODY
        assert request.started_at == pytest.approx(time.time(), abs=5)
        assert engine.requests.maxlen == 1000

    with_engine(check)


def test_the_model_of_speed_holds_on_the_clock() -> None:
    async def check(engine: SimulatedEngine) -> None:
        took = [math.inf]
        while min(took) >= 0.6 and len(took) < 10:  # the quickest tells of the model, the others of a busy machine
            began = time.monotonic()
            await ask(engine.port, chat(max_tokens=50))
            took.append(time.monotonic() - began)
        assert 0.25 <= min(took) < 0.6

    with_engine(check, EngineSpec(step_time=0.005, prefill_tokens_per_second=0))


def test_ignore_eos_gives_exactly_so_many_tokens_and_no_limit_a_natural_length() -> None:
    exact = result(PATH, {**BODY, "max_tokens": 333})
    free = result(PATH, {"messages": BODY["messages"]}, mean_output_tokens=40)
    assert exact["usage"]["completion_tokens"] == 333  # type: ignore[index]
    assert 20 <= free["usage"]["completion_tokens"] < 60  # type: ignore[index]
    assert free["choices"][0]["finish_reason"] == "stop"  # type: ignore[index]


def test_output_is_cut_to_the_room_that_the_prompt_leaves() -> None:
    body = {**BODY, "max_tokens": 100}
    answer = result(PATH, body, max_model_len=100)
    assert answer["usage"]["total_tokens"] == 100  # type: ignore[index]


def test_streams_can_carry_several_tokens_in_an_event() -> None:
    answer = answer_to(chat(stream=True), instant_spec(tokens_per_event=3))
    assert answer.body.count(b'"token_ids":null') == 3
    assert b'"content":"gari legari"' in answer.body


def test_sse_keep_alive_interval() -> None:
    async def check(engine: SimulatedEngine) -> None:
        engine.faults.set("paused")
        async with WireClient(engine.port) as client:
            client.send(chat(stream=True))
            assert (await client.read_until(b": keep-alive\n\n")).endswith(b"\r\ne\r\n: keep-alive\n\n\r\n")

    with_engine(check, instant_spec(sse_keep_alive_interval=0.01))


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", PATH])
def test_error_after_the_head_has_the_form_of_its_interface(path: str) -> None:
    body = {**BODY, "input": "hello", "max_tokens": 500, "max_output_tokens": 500, "stream": True}

    async def check(engine: SimulatedEngine) -> None:
        async with WireClient(engine.port) as client:
            client.send(post(path, json.dumps(body).encode()))
            await client.read_until(b"data: ")
            engine.fail_in_flight()
            data = await client.read_until(b"0\r\n\r\n")
            marks = {"/v1/messages": b"event: error\n", "/v1/responses": b"event: response.failed\n"}
            assert data.count(marks.get(path, b'data: {"error": ')) == 1
            assert (b"[DONE]" in data) == (path == PATH)

    with_engine(check, EngineSpec(step_time=0.005))


def test_two_engines_with_one_seed_say_the_same() -> None:
    assert (
        answer_to(chat(), instant_spec(seed=3)).body.partition(b'"created"')[0]
        == (answer_to(chat(), instant_spec(seed=3)).body.partition(b'"created"')[0])
    )


@pytest.mark.parametrize("drain", [0, 5])
def test_command_line_announces_itself_and_ends_as_vllm_does(drain: int) -> None:
    options = ["--step-time", "0.005", "--shutdown-timeout", str(drain), "--drain-linger", "0", "--model", "m"]
    process = subprocess.Popen(
        [sys.executable, "-m", "loadtests.engine", *options, "--fault", "done_twice:count=1"], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        hello = json.loads(process.stdout.readline())
        assert (hello["pid"], hello["url"]) == (process.pid, f"http://127.0.0.1:{hello['port']}")

        async def talk() -> bytes:
            async with WireClient(hello["port"]) as client:
                client.send(chat(stream=True))
                assert (await client.answer()).body.count(b"[DONE]") == 2
                client.send(chat(max_tokens=40, stream=True))
                await client.read_until(b"data: ")
                os.kill(hello["pid"], signal.SIGTERM)
                return await client.read_to_end()

        data = asyncio.run(talk())
        assert data.endswith(ERROR_EVENT) == (drain == 0)
        assert data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert process.wait(5) == 0
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_options_become_the_spec() -> None:
    line = (
        "--persona sglang --max-queued-requests 2 --cold-factor 60 --cold-requests 3 --startup-time 1 --quiet-prefill"
    )
    spec = spec_of(parser().parse_args(line.split()))
    assert (spec.persona, spec.max_num_queued_requests, spec.startup_time) == ("sglang", 2, 1.0)
    assert (spec.cold_factor, spec.cold_requests, spec.quiet_prefill) == (60.0, 3, True)


def test_a_frozen_engine_counts_no_steps() -> None:
    async def check(engine: SimulatedEngine) -> None:
        def steps() -> bytes:
            lines = engine.metrics_text().splitlines()
            return next(line for line in lines if line.startswith(b"vllm:iteration_tokens_total_count"))

        async with WireClient(engine.port) as client:
            client.send(chat(max_tokens=2000, stream=True))
            await client.read_until(b'"content":"gari"')
            before = steps()
            await until(lambda: steps() != before)
            engine.faults.set("paused")
            still = steps()
            while await client.read_some(0.1):
                pass
            assert steps() == still

    with_engine(check, EngineSpec(step_time=0.005))


@pytest.mark.parametrize(
    "arguments", [["--kv-blocks", "3"], ["--fault", "nonsense"], ["--fault", "done_twice:times=2"]]
)
def test_command_line_explains_mistakes(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_help_lists_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "reset_mid_stream" in capsys.readouterr().out


def test_fault_option() -> None:
    assert fault_of("huge_line:bytes=5,after_events=2") == ("huge_line", {"bytes": 5, "after_events": 2})
    assert fault_of("wrong_content_type:content_type=text/html") == (
        "wrong_content_type",
        {"content_type": "text/html"},
    )
