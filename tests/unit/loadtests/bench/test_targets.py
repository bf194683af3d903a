import shlex
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from gateway.policy.live import load_policy
from loadtests.bench import install, targets
from loadtests.bench.procs import StartFailed
from loadtests.bench.targets import TARGETS, Stage, Target


def stage(tmp_path: Path) -> Stage:
    return Stage("http://127.0.0.1:7001", 7002, 7003, tmp_path, tmp_path / "home")


@pytest.mark.parametrize("target", [each for each in TARGETS if each.command], ids=lambda target: target.name)
def test_every_target_is_started_for_the_engine_and_on_loopback_only(target: Target, tmp_path: Path) -> None:
    assert target.command is not None
    command = shlex.join(target.command(stage(tmp_path)))
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert "127.0.0.1:7001" in command + written
    assert "7002" in command + written
    assert "0.0.0.0" not in command + written


def test_the_gateway_is_benched_with_the_shipped_policies_but_for_the_brake_on_failed_attempts(tmp_path: Path) -> None:
    benched = load_policy(targets.gateway_policies(stage(tmp_path)))
    shipped = load_policy(Path(str(files("policies"))))
    assert benched.access.failures == 1_000_000
    assert replace(benched.access, failures=shipped.access.failures) == shipped.access
    assert benched.routing == shipped.routing


def test_peers_are_measured_only_when_asked_for() -> None:
    assert [each.name for each in targets.select([], peers=False)] == ["direct", "gateway"]
    assert targets.select([], peers=True) == TARGETS
    assert [each.name for each in targets.select(["nginx", "direct"], peers=False)] == ["direct", "nginx"]
    with pytest.raises(targets.UnknownTarget, match="litellm"):
        targets.select(["haproxy"], peers=True)


def test_the_baseline_is_a_target() -> None:
    assert targets.BASELINE in {target.name for target in TARGETS}


def test_the_proxy_extra_is_taken_without_its_makers_own_packages() -> None:
    requires = [
        "httpx>=0.23",
        "litellm-proxy==1.0 ; extra == 'proxy'",
        "uvloop>=0.22.1,<1.0 ; sys_platform != 'win32' and extra == 'proxy'",
        'fastapi>=0.136 ; extra == "proxy"',
        "prisma>=0.11 ; extra == 'extra-proxy'",
    ]
    assert install.proxy_extra(requires) == ["uvloop>=0.22.1,<1.0 ; sys_platform != 'win32'", "fastapi>=0.136"]


def test_peers_go_to_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder, complete = install.fresh("smg-1")
    assert folder == tmp_path / "gateway-loadtests" / "smg-1"
    assert not complete
    (folder / "half").touch()
    assert install.fresh("smg-1") == (folder, False)
    assert not (folder / "half").exists(), "the rest of a failed attempt is removed"
    (folder / install.DONE).touch()
    assert install.fresh("smg-1") == (folder, True)


def test_a_failed_command_is_named_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(install.InstallFailed, match=r"sh -c.*: no space left"):
        install.run(["sh", "-c", "echo first >&2; echo no space left >&2; exit 3"], tmp_path)
    with pytest.raises(install.InstallFailed, match="no-such-command"):
        install.run(["no-such-command"], tmp_path)


def test_a_key_may_have_a_role_of_the_target_s_own_policy(tmp_path: Path) -> None:
    access = targets.gateway_policies(stage(tmp_path)) / "access.yaml"
    access.write_text("roles: {nightly: {aliases: ['*']}}\ndefault_roles: []\n")
    assert targets.gateway_key(stage(tmp_path), "night", ["--role", "nightly"])
    with pytest.raises(StartFailed, match="expected roles of the access policy"):
        targets.gateway_key(stage(tmp_path), "day", ["--role", "daily"])
