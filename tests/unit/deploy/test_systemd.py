"""The service unit: by systemd's own tools where they are, and against what the gateway needs and has."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from gateway.identity.secrets import VARIABLES
from gateway.settings import Settings, Timeouts, load_settings

FOLDER = Path(__file__).parents[3] / "deploy" / "systemd"
UNIT = (FOLDER / "gateway.service").read_text()
SECRETS = (FOLDER / "secrets.conf").read_text()
ENVIRONMENT = (FOLDER / "gateway.env").read_text()
PROGRAM = "/opt/gateway/.venv/bin/gateway"
FILES = {f"{name}_FILE" for name in (*VARIABLES.values(), "GATEWAY_REDIS_PASSWORD", "GATEWAY_ENGINE_KEY")}

needs_analyze = pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="systemd-analyze is not here: deploy/apt-install systemd"
)


def _value(name: str, text: str = UNIT) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)


def _installed(folder: Path, *, drop_in: bool) -> Path:
    """The unit as installed, with a program that is there."""
    program = folder / "gateway"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = folder / "gateway.service"
    unit.write_text(UNIT.replace(PROGRAM, str(program)))
    if drop_in:
        (folder / "gateway.service.d").mkdir()
        (folder / "gateway.service.d" / "secrets.conf").write_text(re.sub(r"^# (?=Load|Env)", "", SECRETS, flags=re.M))
    return unit


def _analyze(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *args], capture_output=True, text=True, check=False, timeout=60)


@needs_analyze
@pytest.mark.parametrize("drop_in", [False, True])
def test_systemd_takes_the_unit(drop_in, tmp_path):
    done = _analyze("verify", "--man=no", _installed(tmp_path, drop_in=drop_in))
    assert (done.returncode, [line for line in done.stderr.splitlines() if "gateway" in line]) == (0, [])


@needs_analyze
def test_a_fault_in_the_unit_would_be_found(tmp_path):
    unit = _installed(tmp_path, drop_in=False)
    unit.write_text(unit.read_text().replace("TimeoutStopSec=60", "TimeoutStopSec=soon"))
    assert "Failed to parse time value" in _analyze("verify", "--man=no", unit).stderr


@needs_analyze
def test_systemd_finds_little_that_is_left_open(tmp_path):
    """The threshold is an exposure of 1.5, of 10."""
    done = _analyze("security", "--offline=true", "--threshold=15", "--no-pager", _installed(tmp_path, drop_in=False))
    assert done.returncode == 0, done.stdout


@needs_analyze
def test_without_the_sandbox_the_threshold_would_be_passed(tmp_path):
    unit = _installed(tmp_path, drop_in=False)
    unit.write_text(
        re.sub(r"^(SystemCallFilter|ProtectSystem|CapabilityBoundingSet)=.*$", "", unit.read_text(), flags=re.M)
    )
    assert _analyze("security", "--offline=true", "--threshold=15", "--no-pager", unit).returncode != 0


def test_it_has_time_to_finish_what_is_in_hand():
    (stop,) = _value("TimeoutStopSec")
    assert int(stop) >= Timeouts().drain + 20
    assert _value("KillSignal") == ["SIGTERM"]
    assert _value("ExecReload") == ["/bin/kill -HUP $MAINPID"]


def test_it_may_open_what_its_limits_allow():
    fields = Settings.__dataclass_fields__
    replicas = 32
    need = fields["max_connections"].default + replicas * fields["max_connections_per_replica"].default
    assert int(_value("LimitNOFILE")[0]) > need


def test_the_gateway_keeps_its_state_where_the_unit_lets_it_write():
    assert _value("StateDirectory") == ["gateway"]
    (home,) = re.findall(r"^Environment=(XDG_STATE_HOME=.*)$", UNIT, re.MULTILINE)
    settings = load_settings({}, dict([home.split("=", 1)]))
    assert settings.state == "sqlite:///var/lib/gateway/state.db"
    assert str(settings.state_folder) == "/var/lib/gateway"


def test_each_secret_is_a_credential_that_a_variable_of_the_gateway_names():
    """The lines in comments are meant to be used, too."""
    text = re.sub(r"^# (?=Load|Env)", "", SECRETS, flags=re.MULTILINE)
    loaded = {line.split(":")[0] for line in _value("LoadCredential", text)}
    named = dict(re.findall(r"^Environment=(\w+)=%d/(.*)$", text, re.MULTILINE))
    assert set(named.values()) == loaded
    assert set(named) <= FILES
    assert not re.search(r"(PEPPER|SALT|TOKEN|PASSWORD|KEY)=", ENVIRONMENT)


def test_the_example_of_an_environment_is_valid(tmp_path):
    variables = dict(re.findall(r"^#?(GATEWAY_\w+)=(.*)$", ENVIRONMENT, re.MULTILINE))
    (tmp_path / "gateway.yaml").write_text("attempts: 2\n")
    (tmp_path / "policies").mkdir()
    theirs = {"GATEWAY_CONFIG": tmp_path / "gateway.yaml", "GATEWAY_POLICIES": tmp_path / "policies"}
    settings = load_settings({}, {**variables, **{name: str(path) for name, path in theirs.items()}})
    assert set(theirs) < set(variables)
    assert [engine.url for engine in settings.engines] == ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]
    for name, given in (("listen", settings.listen), ("admin", settings.admin)):
        assert str(given) == variables[f"GATEWAY_{name.upper()}"]
    assert settings.timeouts.drain == float(variables["GATEWAY_TIMEOUTS_DRAIN"])


_PR_SET_MDWE = 65
_REFUSE = f"""
import ctypes, os, sys
if ctypes.CDLL(None).prctl({_PR_SET_MDWE}, 1, 0, 0, 0):
    sys.exit(77)
os.execv(sys.executable, [sys.executable, "-m", "gateway", *sys.argv[1:]])
"""


def _said(process: subprocess.Popen[str], label: str) -> str:
    """The word behind ``label`` in what the gateway says when it has started."""
    assert process.stderr
    for line in process.stderr:
        if line.startswith(label):
            return line.removeprefix(label).split()[0]
    if process.wait() == 77:
        pytest.skip("this kernel cannot refuse memory that is writable and executable (Linux 6.3 can)")
    pytest.fail("the gateway did not start")


def _environment(folder: Path) -> Mapping[str, str]:
    others = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    return {**others, "XDG_STATE_HOME": str(folder), "GATEWAY_LISTEN": "127.0.0.1:0", "GATEWAY_ADMIN": "127.0.0.1:0"}


def test_the_gateway_runs_where_memory_is_never_writable_and_executable(tmp_path):
    """As with MemoryDenyWriteExecute=yes; and it reloads and stops by the unit's signals."""
    assert _value("MemoryDenyWriteExecute") == ["yes"]
    with subprocess.Popen(
        [sys.executable, "-c", _REFUSE, "serve"],
        env=_environment(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            url = _said(process, "inference:").removesuffix("/v1")
            assert _said(process, "first key:") == "gateway"
            for number in (signal.SIGHUP, signal.SIGTERM):
                assert httpx.get(f"{url}/healthz", trust_env=False).status_code == 200
                process.send_signal(number)
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_a_kernel_that_refuses_such_memory_does_refuse_it():
    """What the test above stands on."""
    code = _REFUSE.split("os.execv", maxsplit=1)[0] + "import mmap; mmap.mmap(-1, 4096, prot=7)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("this kernel cannot refuse memory that is writable and executable (Linux 6.3 can)")
    assert "PermissionError" in done.stderr
