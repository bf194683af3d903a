import itertools
import os
import sys
from pathlib import Path

import pytest
import yaml

from loadtests.bench.procs import Process, StartFailed
from loadtests.fleet import stand
from loadtests.fleet.stand import AdminFailed, Gateway, Plan

CORES = frozenset(os.sched_getaffinity(0))


@pytest.fixture
def played(tmp_path, monkeypatch):
    """A gateway whose process is a script in place of ``gateway serve``."""
    commands: list[list[str]] = []

    def start(script: str, routing=None, engines=("http://127.0.0.1:1", "http://127.0.0.1:2"), access=None) -> Gateway:
        def process(name, command, folder, cores, *, environ):
            commands.append(list(command))
            return Process(name, [sys.executable, "-c", script], folder, cores, environ=environ)

        monkeypatch.setattr(stand, "Process", process)
        gateway = Gateway(Plan(engines, routing or {}, CORES, access or {}), tmp_path)
        opened.append(gateway)
        return gateway

    opened: list[Gateway] = []
    start.commands = commands
    yield start
    for gateway in opened:
        gateway.close()
        gateway.close()


def test_it_is_started_with_every_engine_and_the_shipped_policies(played, tmp_path: Path) -> None:
    played("")
    (command,) = played.commands
    engines = [after for word, after in itertools.pairwise(command) if word == "--engine"]
    assert engines == ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    routing = yaml.safe_load((tmp_path / "policies" / "routing.yaml").read_text())
    assert routing["warmup"]["shapes"]


def test_sections_of_the_plan_take_the_place_of_the_shipped_ones(played, tmp_path: Path) -> None:
    played("", {"warmup": {"shapes": []}})
    assert yaml.safe_load((tmp_path / "policies" / "routing.yaml").read_text()) == {"warmup": {"shapes": []}}
    assert "unlisted_tenants" in yaml.safe_load((tmp_path / "policies" / "access.yaml").read_text())


def test_who_may_do_what_can_be_said_as_well(played, tmp_path: Path) -> None:
    played("", access={"roles": {}})
    assert yaml.safe_load((tmp_path / "policies" / "access.yaml").read_text()) == {"roles": {}}


def test_a_key_is_made_with_the_options_that_are_asked_for(played, monkeypatch) -> None:
    made = []
    monkeypatch.setattr(stand, "gateway_key", lambda stage, name, options: made.append((name, *options)) or "sk-x")
    gateway = played("")
    assert [gateway.key(), gateway.key("a", ["--tenant", "t"])] == ["sk-x", "sk-x"]
    assert made == [("gateway",), ("a", "--tenant", "t")]


def test_replicas_are_counted_by_the_lines_about_them(played) -> None:
    lines = "import sys; sys.stderr.write('replica a: warming -> ready: x\\nreplica b: warming -> ready\\n'"
    gateway = played(lines + "'replica c: ready -> ejected\\n'); sys.stderr.flush(); sys.stdin.read()")
    gateway.wait_for_replicas(2, 20.0)
    with pytest.raises(StartFailed, match="2 of 3 replicas"):
        gateway.wait_for_replicas(3, 0.0)


def test_a_gateway_that_ends_is_not_waited_for(played) -> None:
    gateway = played("raise SystemExit('a control loop failed')")
    with pytest.raises(StartFailed, match="0 of 1 replicas became ready: a control loop failed"):
        gateway.wait_for_replicas(1, 600.0)


def test_an_admin_plane_that_does_not_answer_is_told(played, tmp_path: Path) -> None:
    (tmp_path / "admin-token").write_text("token\n")
    with pytest.raises(AdminFailed, match="GET /admin/fleet: "):
        played("").admin("GET", "/admin/fleet")
