"""Commands in an environment of their own, and an admin plane that answers on a socket."""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvicorn
from click.testing import Result
from typer.testing import CliRunner

from gateway.admin.build import build_admin
from gateway.admin.fleetshow import FleetHandle
from gateway.admin.rules import PolicyView
from gateway.admin.state import AdminState
from gateway.cli.main import app
from gateway.fleet.balance.explained import Decisions
from gateway.identity.keyring import KeyRing
from gateway.identity.secrets import Secrets, load_secrets
from gateway.policy.access import parse_access
from gateway.server import bind
from gateway.stores.sqlite import SqliteStore

T = TypeVar("T")

POLICY = """
roles:
  user: {aliases: ["*"], limits: {requests_per_minute: 60}}
  viewer: {admin: viewer}
  operator: {admin: operator}
  admin: {admin: admin}
default_roles: [user]
"""


@dataclass
class Cli:
    """Runs commands in an environment of their own."""

    home: Path
    env: dict[str, str | None] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.home / "gateway"

    def __call__(self, *args: str) -> Result:
        cleared: dict[str, str | None] = {name: None for name in os.environ if name.startswith("GATEWAY_")}
        env = {**cleared, "XDG_STATE_HOME": str(self.home), "COLUMNS": "200", **self.env}
        return CliRunner().invoke(app, list(args), env=env)

    def ok(self, *args: str) -> str:
        result = self(*args)
        assert result.exit_code == 0, result.output
        return result.stdout

    def refused(self, *args: str, code: int = 1) -> str:
        """The message of a command that ends with ``code``: on stderr alone, and not a traceback."""
        result = self(*args)
        assert (result.exit_code, result.stdout) == (code, ""), result.output
        assert "Traceback" not in result.stderr
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return " ".join(re.sub("[│╭╮╰╯─]", " ", result.stderr).split())


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Commands whose state and policies are the test's own."""
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "access.yaml").write_text(POLICY)
    shutil.copy(Path(str(files("policies"))) / "guards.yaml", folder)
    return Cli(tmp_path / "home", {"GATEWAY_POLICIES": str(folder)})


class Patience:
    """A failure gate that blocks nobody."""

    def blocked(self, source: str) -> int | None:
        return None

    def failed(self, source: str) -> None:
        pass


@dataclass
class Running:
    """An admin plane that answers on a socket, over the state that the commands find by default."""

    url: str
    secrets: Secrets
    served: list[str] = field(default_factory=lambda: ["model-a", "model-b"])
    tracks: dict[str, Any] = field(default_factory=dict)
    decisions: Decisions = field(default_factory=Decisions)


@pytest.fixture
def running(cli: Cli) -> Iterator[Running]:
    """An admin plane over the state that the commands find by default."""
    secrets = load_secrets(cli.folder, {}, random.Random(7))
    bound = bind("127.0.0.1", 0)
    plane = Running(f"http://127.0.0.1:{bound.getsockname()[1]}", secrets)
    servers: list[uvicorn.Server] = []
    up = threading.Event()

    access = parse_access(POLICY, "access.yaml")

    async def serve() -> None:
        store = await SqliteStore.open(cli.folder / "state.db")
        ring = KeyRing(store, secrets.peppers)
        await ring.refresh()
        state = AdminState(
            store=store,
            pepper=secrets.pepper,
            admin_token=secrets.admin_token,
            changed=ring.refresh,
            render_metrics=lambda: b"",
            ready=lambda: True,
            served_models=lambda: plane.served,
            callers=ring,
            failures=Patience(),
            access=lambda: access,
            policy=lambda: PolicyView(valid=True, epoch=0, loaded_at=1_000.0, faults=[]),
            compare=lambda name: plane.tracks,
            fleet=FleetHandle(decisions=plane.decisions),
        )
        config = uvicorn.Config(build_admin(state), log_config=None, lifespan="off", ws="none")
        servers.append(uvicorn.Server(config))
        serving = asyncio.create_task(servers[0].serve(sockets=[bound]))
        while not servers[0].started and not serving.done():
            await asyncio.sleep(0.005)
        up.set()
        await serving
        await ring.close()
        await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert up.wait(10)
        yield plane
    finally:
        servers[0].should_exit = True
        thread.join(10)
        bound.close()


@pytest.fixture(params=["a store", "a gateway"])
def anywhere(request: pytest.FixtureRequest, cli: Cli) -> Cli:
    """Commands once on a store of their own, once through a gateway."""
    if request.param == "a gateway":
        cli.env["GATEWAY_ADMIN_URL"] = request.getfixturevalue("running").url
    return cli


@pytest.fixture
def held(cli: Cli) -> Callable[[Callable[[SqliteStore], Awaitable[T]]], T]:
    """Does something with the store that the commands find by default."""

    def run(work: Callable[[SqliteStore], Awaitable[T]]) -> T:
        async def opened() -> T:
            store = await SqliteStore.open(cli.folder / "state.db")
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(opened())

    return run


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    """The state URL of a Redis of the test's own, with a password."""
    bound = bind("127.0.0.1", 0)
    port = bound.getsockname()[1]
    bound.close()
    flags = (
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--requirepass",
        "hunter2",
        "--dir",
        str(tmp_path),
    )
    with subprocess.Popen(["redis-server", *flags], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            assert any("Ready to accept" in line for line in server.stdout)
            yield f"redis://:hunter2@127.0.0.1:{port}/0"
        finally:
            server.terminate()
            server.communicate(timeout=10)
