"""``gateway demo``: three simulated engines, a real gateway in front of them, a key, a streamed answer.

Everything runs as processes of its own on free ports of loopback, with its state in a temporary folder, and ends with
this command. It is also the smoke test of an installation: ``--once`` makes it check and exit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any

import httpx
import orjson
import typer
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.live import Live
from rich.table import Table

from gateway.cli.output import fail, note, plain

_MODEL = "demo-model-7b"
_ALIAS = "internal-general"
_ENGINES = 3
_PATIENCE = 30.0
_ENGINE_FLAGS = ("--max-num-seqs", "8", "--step-time", "0.02", "--prefill-tokens-per-second", "4000")


class DemoFault(Exception):
    """Something of the demo did not come up. The text says what, with the end of its log, whose folder ends with it."""


class Demo:
    """The processes of one demo. A context manager; leaving it ends them all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self.url = ""
        self.admin_url = ""
        self.key = ""

    def __enter__(self) -> Demo:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        engines = [self._engine(number) for number in range(_ENGINES)]
        note(f"started {_ENGINES} simulated engines that serve {_MODEL}")
        state = f"sqlite://{self._folder / 'state.db'}"
        flags = [part for url in engines for part in ("--engine", url)]
        listening = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
        gateway = self._spawn("gateway", "gateway", "serve", "--state", state, *listening, *flags)
        self.admin_url = self._said(gateway, "gateway", "admin:")
        self.url = self._said(gateway, "gateway", "inference:").removesuffix("/v1")
        note(f"started the gateway at {self.url}; it warms the engines up")
        self._await_warm()
        _command(state, "alias", "set", _ALIAS, "--model", _MODEL)
        self.key = _command(state, "keys", "create", "demo")
        note(f"made the alias {_ALIAS} and a key")

    def _await_warm(self) -> None:
        """Wait until an engine is ready: an alias is not assigned to a model that nobody serves."""
        deadline = time.monotonic() + _PATIENCE
        with httpx.Client(trust_env=False, timeout=5) as client:
            while client.get(f"{self.url}/readyz").status_code != 200:
                if time.monotonic() > deadline:
                    raise DemoFault(f"no engine was warm in {_PATIENCE:.0f} s; {self._last_words('gateway')}")
                time.sleep(0.02)

    def _engine(self, number: int) -> str:
        flags = ("--port", "0", "--model", _MODEL, "--seed", str(number), *_ENGINE_FLAGS)
        process = self._spawn(f"engine-{number}", "loadtests.engine", *flags, stdout=subprocess.PIPE)
        line = process.stdout.readline() if process.stdout else b""
        if not line:
            raise DemoFault(f"a simulated engine did not start; {self._last_words(f'engine-{number}')}")
        return str(orjson.loads(line)["url"])

    def _spawn(self, name: str, module: str, *args: str, stdout: int | None = None) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self._folder / f"{name}.log").open("wb"))
        out: int | IO[bytes] = stdout if stdout is not None else subprocess.DEVNULL
        # A signal between the start of a process and its registration would leave it running.
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            process = subprocess.Popen(  # noqa: S603 - our own modules, by our own interpreter
                [sys.executable, "-m", module, *args],
                env=_plain_environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, held),  # noqa: PLW1509 - one thread
            )
            self._stack.callback(_end, process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        return process

    def _said(self, process: subprocess.Popen[bytes], name: str, label: str) -> str:
        """The first word behind ``label`` in a process's log, waited for."""
        path = self._folder / f"{name}.log"
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            for line in path.read_text().splitlines():
                if line.startswith(label):
                    return line.removeprefix(label).split()[0]
            time.sleep(0.02)
            if process.poll() is not None:
                raise DemoFault(f"the {name} ended at once; {self._last_words(name)}")
        raise DemoFault(f"the {name} did not start in {_PATIENCE:.0f} s; {self._last_words(name)}")

    def _last_words(self, name: str) -> str:
        lines = (self._folder / f"{name}.log").read_text(errors="replace")[-500:].splitlines()
        return "its last words:\n" + "\n".join(f"  {plain(line)}" for line in lines or ["(none)"])


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout:
        process.stdout.close()


def _plain_environment() -> dict[str, str]:
    """This one without what is meant for another gateway, whose token or policies the demo's would take for its own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}


def _command(state: str, *args: str) -> str:
    """What a ``gateway`` command prints, acting through the gateway that runs on this state."""
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "gateway", *args],
        env={**_plain_environment(), "GATEWAY_STATE": state},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DemoFault(f"gateway {' '.join(args[:2])}: {done.stderr.strip()}")
    return done.stdout.strip()


def ask(demo: Demo) -> Iterator[str]:
    """The pieces of a streamed answer. Raises ``DemoFault`` when it does not come whole."""
    body = {
        "model": _ALIAS,
        "messages": [{"role": "user", "content": "Why is the sky blue?"}],
        "max_tokens": 48,
        "stream": True,
    }
    headers = {"authorization": f"Bearer {demo.key}"}
    finished = done = False
    with (
        httpx.Client(trust_env=False, timeout=30) as client,
        client.stream("POST", f"{demo.url}/v1/chat/completions", json=body, headers=headers) as answer,
    ):
        if answer.status_code != 200:
            raise DemoFault(f"the gateway answered {answer.status_code}: {answer.read().decode()}")
        for line in answer.iter_lines():
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                done = True
            elif data:
                choice = orjson.loads(data)["choices"][0]
                finished = finished or choice["finish_reason"] is not None
                yield choice["delta"].get("content") or ""
    if not (finished and done):
        raise DemoFault("the stream ended early")


def demo(
    once: Annotated[bool, typer.Option("--once", help="Check one streamed answer, then stop everything.")] = False,
) -> None:
    """Try it out: three simulated engines, a gateway, a key, a streamed answer; then a live table until Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with tempfile.TemporaryDirectory(prefix="gateway-demo-") as folder, Demo(Path(folder)) as running:
            typer.echo("answer: ", nl=False)
            for piece in ask(running):
                typer.echo(piece, nl=False)
            typer.echo("")
            if not once:
                _invite(running)
                _watch(running)
    except DemoFault as fault:
        fail(str(fault))
    except KeyboardInterrupt:
        note("stopped")


def _invite(running: Demo) -> None:
    note("\nThe gateway serves on. In another shell:\n")
    note(
        f"  curl {running.url}/v1/chat/completions -H 'authorization: Bearer {running.key}' \\\n"
        "    -H 'content-type: application/json' \\\n"
        f"""    -d '{{"model": "{_ALIAS}", "stream": true, "messages": [{{"role": "user", "content": "hello"}}]}}'\n"""
    )
    note(f"Metrics: {running.admin_url}/metrics. Ctrl-C stops it.\n")


def _watch(running: Demo) -> None:
    """Show the fleet until interrupted; without a terminal, just wait."""
    with httpx.Client(trust_env=False, timeout=5) as client:
        console = Console()
        if not console.is_terminal:
            signal.pause()
        with Live(console=console, refresh_per_second=4) as live:
            while True:
                live.update(_table(client.get(f"{running.admin_url}/metrics").text))
                time.sleep(0.5)


def _table(text: str) -> Table:
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    table = Table("replica", "state", "in flight", "connections", title=f"pid {os.getpid()}", caption=_caption(samples))
    states = {s.labels["replica"]: s.labels["state"] for s in samples if s.name == "gateway_replica_state" and s.value}
    for replica, state in sorted(states.items()):
        numbers = [_value(samples, name, replica) for name in ("gateway_in_flight", "gateway_upstream_connections")]
        table.add_row(replica, state, *numbers)
    return table


def _value(samples: list[Any], name: str, replica: str) -> str:
    return next((f"{s.value:.0f}" for s in samples if s.name == name and s.labels.get("replica") == replica), "-")


def _caption(samples: list[Any]) -> str:
    answered = sum(s.value for s in samples if s.name == "gateway_requests_total")
    return f"{answered:.0f} requests answered"
