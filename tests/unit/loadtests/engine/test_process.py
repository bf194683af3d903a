"""An engine as a process: frozen, killed, ended and started again at the same port."""

import json
import socket
import urllib.request

import pytest

from loadtests.bench.procs import StartFailed
from loadtests.engine.process import EngineProcess
from loadtests.engine.wireclient import get


def model_of(engine: EngineProcess) -> str:
    with urllib.request.urlopen(f"{engine.url}/v1/models", timeout=10) as answer:
        return str(json.load(answer)["data"][0]["id"])


def started_at(engine: EngineProcess) -> float:
    with urllib.request.urlopen(f"{engine.url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("process_start_time_seconds "))


def test_frozen_it_takes_connections_and_says_nothing_until_thawed() -> None:
    with EngineProcess.start("--instant", "--model", "one") as engine:
        engine.freeze()
        with socket.create_connection(("127.0.0.1", engine.port), timeout=0.2) as client:
            client.sendall(get("/health"))
            with pytest.raises(TimeoutError):
                client.recv(1)
            engine.thaw()
            client.settimeout(10)
            assert client.recv(12) == b"HTTP/1.1 200"


def test_restarted_it_is_another_process_at_the_same_url() -> None:
    with EngineProcess.start("--instant", "--model", "one") as engine:
        before = (engine.url, engine.pid, started_at(engine))
        engine.restart("--model", "two")
        assert model_of(engine) == "two"
        engine.restart()
        assert (engine.url, model_of(engine)) == (before[0], "two")
        assert engine.pid != before[1]
        assert started_at(engine) > before[2]


def test_terminated_even_frozen_it_ends_in_order_and_can_start_again() -> None:
    with EngineProcess.start("--instant", "--model", "one") as engine:
        engine.freeze()
        engine.terminate()
        assert engine.wait() == 0
        assert engine.wait() is None
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", engine.port), timeout=1)
        engine.restart()
        assert model_of(engine) == "one"


def test_kill_and_close_are_idempotent_and_reach_a_frozen_one() -> None:
    engine = EngineProcess.start("--instant")
    engine.freeze()
    engine.kill()
    engine.kill()
    engine.close()
    engine.close()


def test_a_mistake_in_the_options_is_told() -> None:
    with pytest.raises(StartFailed, match="max_model_len"):
        EngineProcess.start("--kv-blocks", "3")
