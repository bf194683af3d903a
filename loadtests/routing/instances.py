"""Several gateways over one Redis, in front of the same engines."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from loadtests.bench.install import last_line
from loadtests.bench.procs import Process, StartFailed, free_port
from loadtests.bench.targets import KEY_SECONDS, Stage, gateway_command, python_path
from loadtests.routing.place import Endpoint, Place
from loadtests.routing.waiting import fetched, until

_READY_SECONDS = 60.0
_REPLICA_READY = b" -> ready"
_REDIS_READY = b"Ready to accept connections"


@contextmanager
def sharing(routing: Mapping[str, Any], place: Place) -> Iterator[Sequence[Endpoint]]:
    """Gateways that share their state, all engines ready at each, and one key that each of them knows.

    ``routing`` is their ``routing.yaml``. Raises `StartFailed`.
    """
    with ExitStack() as stack:
        state = stack.enter_context(_redis(place))
        stages = [_stage(place, number) for number in range(place.instances)]
        running = [stack.enter_context(_gateway(stage, routing, state, place)) for stage in stages]
        for stage, process in zip(stages, running, strict=True):
            process.wait_until_ready(f"http://127.0.0.1:{stage.port}/readyz", _READY_SECONDS)
            until(partial(_all_ready, stage, len(place.engines)), process, _READY_SECONDS)
        key = _key(state, place.folder)
        for stage, process in zip(stages, running, strict=True):
            until(partial(knows, stage.port, key), process, _READY_SECONDS)
        yield tuple(Endpoint(each.port, key, process.pid) for each, process in zip(stages, running, strict=True))
        for stage, process in zip(stages, running, strict=True):
            if not knows(stage.port, key):
                raise StartFailed(f"{process.name} does not serve any more: {process.last_words()}")


def _all_ready(stage: Stage, count: int) -> bool:
    """By the lines that it writes about its replicas: asking it would add to the work that is measured."""
    return (stage.folder / f"{stage.folder.name}.stderr").read_bytes().count(_REPLICA_READY) >= count


def _stage(place: Place, number: int) -> Stage:
    folder = place.folder / f"instance-{number}"
    folder.mkdir()
    return Stage(place.engines[0], free_port(), free_port(), folder, folder)


@contextmanager
def _redis(place: Place) -> Iterator[str]:
    """A redis-server that keeps nothing on disk, on the cores of the target. Gives its URL."""
    port = free_port()
    folder = place.folder / "redis"
    folder.mkdir()
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)]
    with Process("redis", [*command, "--save", "", "--appendonly", "no"], folder, place.cores) as process:
        until(lambda: _REDIS_READY in (folder / "redis.stdout").read_bytes(), process, _READY_SECONDS)
        yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def _gateway(stage: Stage, routing: Mapping[str, Any], state: str, place: Place) -> Iterator[Process]:
    more = [word for url in place.engines[1:] for word in ("--engine", url)]
    command = [*gateway_command(stage), *more, "--state", state]  # of an option that comes twice the last one counts
    (stage.folder / "policies" / "routing.yaml").write_bytes(orjson.dumps(dict(routing)))
    environ = {**python_path(), "XDG_STATE_HOME": str(place.folder / "secrets")}  # which instances of one state share
    with Process(stage.folder.name, command, stage.folder, place.cores, environ=environ) as process:
        yield process


def _key(state: str, folder: Path) -> str:
    """A key without limits, made as an operator makes one. Raises `StartFailed`."""
    command = [sys.executable, "-m", "gateway", "keys", "create", "routing", "--state", state]
    environ = {**os.environ, **python_path(), "XDG_STATE_HOME": str(folder / "secrets")}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environ, capture_output=True, text=True, timeout=KEY_SECONDS, check=True
        )
    except subprocess.CalledProcessError as error:
        raise StartFailed(f"gateway keys create: {last_line(error.stderr)}") from error
    except subprocess.TimeoutExpired as error:
        raise StartFailed(f"gateway keys create: no end after {KEY_SECONDS:.0f} s") from error
    return done.stdout.strip()


def knows(port: int, key: str) -> bool:
    """Whether the gateway at a port serves the holder of a key, and has a model for it."""
    return bool(fetched(port, "/v1/models", key).get("data"))
