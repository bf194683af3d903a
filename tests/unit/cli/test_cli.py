"""The commands: what they print where, their exit codes, where they act."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from click.testing import Result
from typer.testing import CliRunner

from gateway.admin.build import build_admin
from gateway.admin.presence import Presence
from gateway.admin.state import AdminState
from gateway.cli.main import app
from gateway.identity.keys import digest, well_formed
from gateway.identity.secrets import Secrets, load_secrets
from gateway.server import bind
from gateway.stores.sqlite import SqliteStore


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
    return Cli(tmp_path / "home")


@dataclass
class Running:
    """An admin plane that answers on a socket, over the state that the commands find by default."""

    url: str
    secrets: Secrets


@pytest.fixture
def running(cli: Cli) -> Iterator[Running]:
    secrets = load_secrets(cli.folder, {}, random.Random(7))
    bound = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    servers: list[uvicorn.Server] = []
    up = threading.Event()

    async def nothing() -> None:
        return None

    async def serve() -> None:
        store = await SqliteStore.open(cli.folder / "state.db")
        state = AdminState(
            store=store,
            pepper=secrets.pepper,
            admin_token=secrets.admin_token,
            changed=nothing,
            render_metrics=lambda: b"",
            ready=lambda: True,
            served_models=lambda: ["model-a"],
        )
        config = uvicorn.Config(build_admin(state), log_config=None, lifespan="off", ws="none")
        servers.append(uvicorn.Server(config))
        serving = asyncio.create_task(servers[0].serve(sockets=[bound]))
        while not servers[0].started and not serving.done():
            await asyncio.sleep(0.005)
        up.set()
        await serving
        await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert up.wait(10)
        yield Running(url, secrets)
    finally:
        servers[0].should_exit = True
        thread.join(10)
        bound.close()


def stored(cli: Cli, key: str, pepper: str) -> Any:
    async def find() -> Any:
        store = await SqliteStore.open(cli.folder / "state.db")
        try:
            return await store.find_key(digest(pepper.encode(), key))
        finally:
            await store.close()

    return asyncio.run(find())


def test_version_and_help(cli: Cli) -> None:
    assert cli.ok("--version") == f"gateway {version('gateway')}\n"
    shown = cli.ok("--help")
    for word in ("serve", "keys", "alias", "base_url", "Exit code"):
        assert word in shown
    for command in (("serve",), ("keys", "create"), ("keys", "list"), ("alias", "set"), ("keys", "revoke")):
        assert "Example:" in cli.ok(*command, "--help")


def test_a_key_alone_is_on_stdout_and_works_under_the_gateways_pepper(cli: Cli) -> None:
    result = cli("keys", "create", "app1", "--tenant", "t1", "--role", "a", "--role", "b", "--alias", "chat-*")
    key = result.stdout.rstrip("\n")
    assert result.stdout == key + "\n"
    assert well_formed(key)
    assert key not in result.stderr
    assert "app1" in result.stderr
    record = stored(cli, key, (cli.folder / "pepper").read_text().strip())
    assert (record.name, record.tenant, record.roles, record.aliases) == ("app1", "t1", ("a", "b"), ("chat-*",))
    assert record.expires_at is None


def test_json_gives_the_whole_object(cli: Cli) -> None:
    made = json.loads(cli.ok("keys", "create", "app1", "--expires", "90d", "--json"))
    key = made.pop("key")
    assert well_formed(key)
    assert made["expires_at"] - made["created_at"] == pytest.approx(90 * 86_400)
    assert json.loads(cli.ok("keys", "list", "--json")) == [made]
    assert json.loads(cli.ok("keys", "show", "app1", "--json")) == made
    revoked = json.loads(cli.ok("keys", "revoke", "app1", "--json"))
    assert revoked["state"] == "revoked"
    assert key not in cli.ok("keys", "list", "--json")


def test_lists_in_a_pipe_are_lines_of_fields(cli: Cli) -> None:
    cli.ok("keys", "create", "app1")
    header, line = cli.ok("keys", "list").splitlines()
    assert header.split("\t") == ["ID", "NAME", "TENANT", "ROLES", "ALIASES", "CREATED", "EXPIRES", "STATE"]
    assert line.split("\t")[1:5] == ["app1", "default", "-", "*"]
    assert line.split("\t")[6:] == ["-", "live"]
    assert "app1" in cli.ok("keys", "show", "app1")


def test_aliases_are_set_listed_and_shown(cli: Cli) -> None:
    assert cli.ok("alias", "set", "team/chat", "--model", "m1", "--note", "first") == ""
    set_again = json.loads(cli.ok("alias", "set", "team/chat", "--model", "m2", "--expect-revision", "1", "--json"))
    assert (set_again["revision"], set_again["source"], set_again["note"]) == (2, "cli", "")
    assert set_again["author"].startswith("cli:")
    assert json.loads(cli.ok("alias", "list", "--json")) == [set_again]
    assert json.loads(cli.ok("alias", "show", "team/chat", "--json")) == set_again
    assert cli.ok("alias", "list").splitlines()[1].split("\t")[:3] == ["team/chat", "2", "m2"]
    assert "m2" in cli.ok("alias", "show", "team/chat")


def test_refusals_say_what_to_do(cli: Cli) -> None:
    assert "'gateway keys create' makes it" in cli.refused("keys", "list")
    assert not cli.folder.exists()
    cli.ok("keys", "create", "app1")
    assert "Revoke it, or choose another name" in cli.refused("keys", "create", "app1")
    assert "no key has that id or name" in cli.refused("keys", "show", "none")
    assert "no key has that id or name" in cli.refused("keys", "revoke", "none")
    assert "no alias has that name" in cli.refused("alias", "show", "none")
    cli.ok("alias", "set", "chat", "--model", "m1")
    assert "revision 1 (m1, set by cli:" in cli.refused(
        "alias", "set", "chat", "--model", "m2", "--expect-revision", "0"
    )
    assert "expected sqlite:///PATH" in cli.refused("keys", "list", "--state", "redis://:hunter2@h/0")
    assert "not both" in cli.refused("keys", "list", "--state", "sqlite:///x/y", "--admin-url", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    "args",
    [
        ("keys", "create"),
        ("keys", "create", "a b"),
        ("keys", "create", "app1", "--expires", "soon"),
        ("keys", "create", "app1", "--expires", "90"),
        ("keys", "create", "app1", "--expires", "0d"),
        ("keys", "create", "app1", "--alias", "a b"),
        ("keys", "create", "app1", "--rpm", "5"),
        ("keys", "show", "gw_live_AAAAAAAA_" + "x" * 49),
        ("keys", "show", "../x"),
        ("keys", "nonsense"),
        ("alias", "set", "chat"),
        ("alias", "set", "chat@1", "--model", "m"),
        ("alias", "set", "a/../b", "--model", "m"),
        ("alias", "set", "chat", "--model", "m", "--note", "a\x1b[31m"),
        ("alias", "set", "chat", "--model", "m", "--expect-revision", "-1"),
        ("serve", "--nonsense"),
    ],
)
def test_wrong_usage_is_2_and_changes_nothing(cli: Cli, args: tuple[str, ...]) -> None:
    said = cli.refused(*args, code=2)
    assert "x" * 49 not in said
    assert not cli.folder.exists()


def test_a_key_is_not_made_under_a_pepper_that_the_gateway_does_not_use(cli: Cli) -> None:
    cli.env["GATEWAY_PEPPER"] = "p" * 40
    key = cli.ok("keys", "create", "app1").strip()
    assert stored(cli, key, "p" * 40).name == "app1"
    assert not (cli.folder / "pepper").exists()
    del cli.env["GATEWAY_PEPPER"]
    assert "Set GATEWAY_PEPPER" in cli.refused("keys", "create", "app2")
    assert not (cli.folder / "pepper").exists()


def test_a_damaged_store_or_secret_is_refused_in_words(cli: Cli) -> None:
    cli.ok("keys", "create", "app1")
    (cli.folder / "pepper").chmod(0o644)
    assert "chmod 600" in cli.refused("keys", "create", "app2")
    (cli.folder / "state.db").write_bytes(b"x" * 10_000)
    assert "damaged" in cli.refused("keys", "list")


def test_state_names_the_store(cli: Cli, tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path / 'other' / 'state.db'}"
    cli.ok("keys", "create", "app1", "--state", url)
    assert not cli.folder.exists()
    assert (tmp_path / "other" / "pepper").exists()
    cli.env["GATEWAY_STATE"] = url
    assert [key["name"] for key in json.loads(cli.ok("keys", "list", "--json"))] == ["app1"]


def test_every_command_works_through_a_gateway(cli: Cli, running: Running) -> None:
    cli.env["GATEWAY_ADMIN_URL"] = running.url
    made = json.loads(cli.ok("keys", "create", "app1", "--expires", "1h", "--json"))
    assert stored(cli, made.pop("key"), running.secrets.pepper.reveal()).name == "app1"
    assert json.loads(cli.ok("keys", "list", "--json")) == [made]
    assert json.loads(cli.ok("keys", "show", made["id"], "--json")) == made
    assert json.loads(cli.ok("keys", "revoke", "app1", "--json"))["state"] == "revoked"
    alias = json.loads(cli.ok("alias", "set", "team/chat", "--model", "model-a", "--json"))
    assert (alias["author"], alias["source"]) == ("admin-token", "cli")
    assert json.loads(cli.ok("alias", "list", "--json")) == [alias]
    assert json.loads(cli.ok("alias", "show", "team/chat", "--json")) == alias
    assert "Served: model-a" in cli.refused("alias", "set", "chat", "--model", "model-b")
    cli.ok("alias", "set", "chat", "--model", "model-b", "--force")
    assert "revision 1" in cli.refused("alias", "set", "chat", "--model", "model-a", "--expect-revision", "0")
    assert "No key has that id or name" in cli.refused("keys", "show", "none")


def test_a_running_gateway_is_found_by_itself(cli: Cli, running: Running) -> None:
    presence = Presence(cli.folder, running.url)
    try:
        assert json.loads(cli.ok("alias", "set", "chat", "--model", "model-a", "--json"))["author"] == "admin-token"
    finally:
        presence.close()
    assert json.loads(cli.ok("alias", "set", "chat", "--model", "model-a", "--json"))["author"].startswith("cli:")


def test_the_token_is_asked_for_kept_and_never_shown(cli: Cli, running: Running, tmp_path: Path) -> None:
    token = running.secrets.admin_token.reveal()
    wrong = "gwadmin_wrong" + "x" * 40
    said = cli.refused("keys", "list", "--admin-url", running.url, "--admin-token", wrong)
    assert "refused the admin token" in said
    assert wrong not in said
    elsewhere = Cli(tmp_path / "elsewhere")
    assert "Set GATEWAY_ADMIN_TOKEN" in elsewhere.refused("keys", "list", "--admin-url", running.url)
    elsewhere.env["GATEWAY_ADMIN_TOKEN"] = token
    assert elsewhere.ok("keys", "list", "--admin-url", running.url, "--json") == "[]\n"
    assert "Set GATEWAY_ADMIN_TOKEN" in cli.refused("keys", "list", "--admin-url", "http://gateway.example:9090")


def test_a_gateway_that_does_not_answer_is_said_so(cli: Cli, running: Running) -> None:
    bound = bind("127.0.0.1", 0)
    port = bound.getsockname()[1]
    bound.close()
    assert f"No gateway answers at http://127.0.0.1:{port}" in cli.refused(
        "keys", "list", "--admin-url", f"http://127.0.0.1:{port}"
    )
    for bad in ("127.0.0.1:9090", "ftp://x", "http://user:hunter2@h:1", "http://", "http://h:99999"):
        said = cli.refused("keys", "list", "--admin-url", bad)
        assert "expected http://HOST:PORT" in said
        assert "hunter2" not in said


def test_serve_check_judges_the_configuration(cli: Cli, tmp_path: Path) -> None:
    result = cli("serve", "--check", "--engine", "http://127.0.0.1:1")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "The configuration is valid.\n")
    config = tmp_path / "gateway.yaml"
    config.write_text("lisen: 1\nattempts: 0\n")
    said = cli.refused("serve", "--check", "--config", str(config), "--listen", "x")
    for fault in (f"{config}:1: unknown setting", f"{config}:2: attempts: expected", "--listen: listen: expected"):
        assert fault in said
    (tmp_path / "guards.yaml").write_text("nonsense: 1\n")
    assert "guards.yaml:1:" in cli.refused("serve", "--check", "--policies", str(tmp_path))
    (tmp_path / "guards.yaml").unlink()
    assert "guards.yaml: No such file or directory" in cli.refused("serve", "--check", "--policies", str(tmp_path))
    assert not cli.folder.exists()


@pytest.mark.parametrize(
    ("args", "code"),
    [(("keys", "create", "app1"), 0), (("keys", "list"), 1), (("keys", "create"), 2)],
)
def test_a_real_process_keeps_the_same_rules(tmp_path: Path, args: tuple[str, ...], code: int) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    done = subprocess.run(
        [sys.executable, "-m", "gateway", *args],
        env={**env, "XDG_STATE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code
    assert done.stderr
    assert "Traceback" not in done.stderr
    if code == 0:
        assert well_formed(done.stdout.removesuffix("\n"))
    else:
        assert done.stdout == ""
