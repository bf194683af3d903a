import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from loadtests.bench.procs import StartFailed
from loadtests.engine.process import EngineProcess
from loadtests.routing import instances, targets
from loadtests.routing.instances import knows, sharing
from loadtests.routing.place import Place

CORES = frozenset({0})


@pytest.fixture
def engines() -> Iterator[list[EngineProcess]]:
    with ExitStack() as stack:
        started = []
        for _ in range(2):
            started.append(EngineProcess.start())
            stack.callback(started[-1].close)
        yield started


def ask(port: int, key: str) -> int:
    body = b'{"model": "sim-model", "max_tokens": 2, "messages": [{"role": "user", "content": "hello"}]}'
    head = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body, head)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=10) as answer:
        return int(answer.status)


def test_two_gateways_share_one_key_and_all_engines(tmp_path: Path, engines: list[EngineProcess]) -> None:
    place = Place([engine.url for engine in engines], tmp_path, CORES, instances=2)
    with sharing(targets.routing("round-robin"), place) as (one, two):
        assert one.key == two.key
        assert one.port != two.port
        assert [ask(each.port, each.key) for each in (one, two)] == [200, 200]
        assert not knows(one.port, "sk-unknown")
    assert not knows(one.port, one.key)


def test_a_redis_that_does_not_start_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(instances, "_READY_SECONDS", 0.5)
    place = Place(["http://127.0.0.1:1"], tmp_path, CORES, instances=2)
    with pytest.raises(StartFailed, match="redis was not ready"), sharing(targets.routing("estimate"), place):
        pass
