"""What each command must not wait for: each runs in a process of its own, which tells all that it imported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# Of other stores than the one in use, of terminals, of issuers that there are not, and of extras.
NEVER = {"redis", "rich", "pygments", "cryptography", "jwt", "presidio_analyzer", "click"}
SCHEMAS = {"gateway.admin.schemas", "gateway.admin.rules"}  # pydantic itself comes with Typer's options
FRAMEWORK = {"fastapi", "starlette"}
SERVER = {"uvloop", "gateway.app", "gateway.proxy", "prometheus_client"}

COMMANDS = {
    ("--version",): NEVER | SCHEMAS | FRAMEWORK | SERVER | {"httpx", "pydantic", "yaml", "gateway.settings"},
    ("serve", "--check"): NEVER | SCHEMAS | FRAMEWORK | SERVER | {"httpx", "gateway.cli.keys"},
    ("policy", "check"): NEVER | FRAMEWORK | SERVER | {"httpx"},
    ("keys", "create", "app"): NEVER | FRAMEWORK | SERVER | {"httpx"},
    ("alias", "set", "a", "--model", "m"): NEVER | FRAMEWORK | SERVER | {"httpx"},
}

# The real start. It tells all that there is when the admin plane begins to come in.
SERVING = """
import json, sys
def looking(event, parts):
    if event == "import" and parts[0] == "gateway.admin.build":
        print(json.dumps(sorted(sys.modules)), flush=True)
sys.addaudithook(looking)
from gateway.__main__ import main
main()
"""


def _env(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    return {**kept, "XDG_STATE_HOME": str(home)}


def _held(loaded: set[str], unwanted: set[str]) -> set[str]:
    """Those of ``unwanted`` that were loaded; a package stands for its modules."""
    return unwanted & (loaded | {name.partition(".")[0] for name in loaded})


def _imported(importtime: str) -> set[str]:
    rows = (line.rpartition("|")[2].strip() for line in importtime.splitlines() if line.startswith("import time:"))
    return set(rows)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_imports_nothing_that_only_others_need(tmp_path, command):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "gateway", *command],
        env=_env(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    loaded = _imported(done.stderr)
    assert "gateway.cli.main" in loaded
    assert _held(loaded, COMMANDS[command]) == set()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A gateway on SQLite that tells its modules when it serves applications."""
    flags = ("serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    with (
        (tmp_path / "stderr").open("w") as told,
        subprocess.Popen(
            [sys.executable, "-X", "importtime", "-c", SERVING, *flags],
            env=_env(tmp_path),
            stdout=subprocess.PIPE,
            stderr=told,
            text=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def test_what_serves_applications_needs_no_schemas_and_no_framework(serving):
    loaded = set(json.loads(serving.stdout.readline()))
    assert "gateway.proxy" in loaded
    assert _held(loaded, NEVER | SCHEMAS | FRAMEWORK) == set()


def test_a_whole_start_imports_no_other_store_no_terminal_and_no_cryptography(tmp_path, serving):
    told = tmp_path / "stderr"
    deadline = time.monotonic() + 60
    while "first key:" not in told.read_text():
        assert serving.poll() is None, told.read_text()[-2_000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    serving.send_signal(signal.SIGTERM)
    serving.stdout.read()
    assert serving.wait(30) == 0
    loaded = _imported(told.read_text())
    assert {"gateway.admin.build", "fastapi"} <= loaded
    assert _held(loaded, NEVER) == set()
