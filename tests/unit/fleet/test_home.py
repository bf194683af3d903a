"""What is on one host's loopback is not what is on another's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.fleet.home import home, place_of
from gateway.model import EngineSpec


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000", "http://127.8.0.1:8000", "http://[::1]:8000", "http://localhost:8000"]
)
def test_an_engine_on_loopback_is_another_one_on_each_host(url: str) -> None:
    spec = EngineSpec(url)
    assert place_of(spec, "one") == place_of(EngineSpec(url), "one")
    assert place_of(spec, "one") != place_of(spec, "other")


def test_an_engine_elsewhere_is_the_same_one_for_all() -> None:
    spec = EngineSpec("https://gpu-1.test:8443")
    assert place_of(spec, "one") == place_of(spec, "other") == spec.id


def test_processes_of_one_host_have_one_home() -> None:
    asked = subprocess.run(
        [sys.executable, "-c", "from gateway.fleet.home import home; print(home())"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout.strip() == home() != ""


def test_another_boot_and_another_network_are_other_homes(tmp_path: Path) -> None:
    def proc(name: str, boot: str) -> Path:
        folder = tmp_path / name
        (folder / "sys/kernel/random").mkdir(parents=True)
        (folder / "sys/kernel/random/boot_id").write_text(boot + "\n")
        (folder / "self/ns").mkdir(parents=True)
        (folder / "self/ns/net").touch()
        return folder

    first, network, boot = proc("first", "b1"), proc("network", "b1"), proc("boot", "b2")
    (boot / "self/ns/net").unlink()
    os.link(first / "self/ns/net", boot / "self/ns/net")
    assert len({home(first), home(network), home(boot)}) == 3


def test_where_the_system_does_not_tell_the_hosts_name_has_to_do(tmp_path: Path) -> None:
    assert home(tmp_path) == socket.gethostname()
