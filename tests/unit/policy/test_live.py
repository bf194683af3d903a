"""The policy in force: whatever editors, deployments and accidents do to its files, a whole policy stands."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Awaitable, Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from gateway.model import Principal
from gateway.policy.access import parse_access
from gateway.policy.document import PolicyFault
from gateway.policy.guards import parse_guards
from gateway.policy.live import Policies, Policy, _look, load_policy, open_policies

SHIPPED = Path(str(resources.files("policies")))
ACCESS = (SHIPPED / "access.yaml").read_text(encoding="utf-8")
GUARDS = (SHIPPED / "guards.yaml").read_text(encoding="utf-8")
WHO = Principal("key-1", "default")
DENIED = "roles: {user: {}}\ndefault_roles: [user]\n"
ALLOWED = 'roles: {user: {aliases: ["*"]}}\ndefault_roles: [user]\n'
PARSED = Policy(parse_guards(GUARDS, "guards.yaml"), parse_access(ALLOWED, "access.yaml"))
BROKEN = "roles: {user: {aliases: [CANARY]}\n"


class Scene:
    """A folder of policy files and the policy read from it. ``between`` runs in each wait between two looks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copy(SHIPPED / "guards.yaml", folder)
        (folder / "access.yaml").write_text(ALLOWED, encoding="utf-8")
        self.reports: list[str] = []
        self.changes: list[Policy] = []
        self.waits = 0
        self.between: Callable[[int], None] = lambda wait: None
        self.policies = Policies(folder, _look(folder), PARSED, self.reports.append, sleep=self.sleep)
        self.policies.on_change(self.changes.append)

    async def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= 1
        self.waits += 1
        self.between(self.waits)

    def write(self, text: str, name: str = "access.yaml") -> None:
        """As an editor that writes in place."""
        (self.folder / name).write_text(text, encoding="utf-8")

    def replace(self, text: str) -> None:
        """As an editor that writes beside and renames."""
        beside = self.folder / ".access.yaml.swp"
        beside.write_text(text, encoding="utf-8")
        beside.replace(self.folder / "access.yaml")

    def reload(self, *, force: bool = False) -> bool:
        return asyncio.run(self.policies.reload(force=force))

    @property
    def allows(self) -> bool:
        return self.policies.policy.access.grant(WHO).may_call("a")

    @property
    def standing(self) -> tuple[int, int, bool, int]:
        """Epoch, faults, whether the files are valid, and how many changes were told."""
        return self.policies.epoch, self.policies.faults, self.policies.valid, len(self.changes)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


# --- at start


def test_the_shipped_folder_is_valid() -> None:
    policy = load_policy(SHIPPED)
    assert policy.access.grant(WHO).may_call("a")
    assert policy.guards.depth == 16


def test_a_folder_without_access_control_is_told_how_to_get_it(tmp_path: Path) -> None:
    folder = tmp_path / "my policies"
    folder.mkdir()
    shutil.copy(SHIPPED / "guards.yaml", folder)
    with pytest.raises(PolicyFault) as caught:
        open_policies(folder, print)
    assert str(caught.value) == (
        f"{folder}/access.yaml:0: file: expected this file; a folder made for a version without access control has "
        f"none; start from the shipped one: cp {SHIPPED}/access.yaml '{folder}'"
    )
    shutil.copy(SHIPPED / "access.yaml", folder)
    load_policy(folder)


def test_the_faults_of_all_files_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "access.yaml").write_text("roles: {}\ndefault_roles: [a]\nextra: 1\n", encoding="utf-8")
    with pytest.raises(PolicyFault) as caught:
        load_policy(tmp_path)
    lines = str(caught.value).splitlines()
    assert [line.partition(": expected")[0].partition(": not")[0] for line in lines] == [
        f"{tmp_path}/guards.yaml:0: file",
        f"{tmp_path}/access.yaml:3: extra",
        f"{tmp_path}/access.yaml:2: default_roles[0]",
    ]
    assert len(caught.value.faults) == 3
    assert caught.value.source == str(tmp_path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"roles: \xff", "expected UTF-8"),
        ("roles: {}".encode("utf-16"), "expected UTF-8"),
        (b"#" * ((1 << 20) + 1), "expected at most 1048576 bytes"),
        (b"- " * 1_000, "expected fewer levels"),
        (b"", "expected roles"),
        (b"a: 1\n---\nb: 2\n", "expected YAML"),
        (b"a: \x00\n", "expected YAML"),
    ],
)
def test_files_that_are_no_policy(scene: Scene, content: bytes, expected: str) -> None:
    (scene.folder / "access.yaml").write_bytes(content)
    with pytest.raises(PolicyFault, match=expected):
        load_policy(scene.folder)
    assert not scene.reload()
    assert scene.standing == (0, 1, False, 0)
    assert expected in scene.reports[0]


def test_a_folder_or_a_pipe_in_the_place_of_a_file(scene: Scene) -> None:
    path = scene.folder / "access.yaml"
    path.unlink()
    path.mkdir()
    with pytest.raises(PolicyFault, match="expected a plain file"):
        load_policy(scene.folder)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(PolicyFault, match="expected a plain file"):
        load_policy(scene.folder)


# --- a change


def test_without_a_change_nothing_is_waited_for_or_told(scene: Scene) -> None:
    assert not scene.reload()
    assert (scene.waits, scene.standing) == (0, (0, 0, True, 0))
    assert not scene.reload(force=True)
    assert scene.standing == (0, 0, True, 0)


@pytest.mark.parametrize("how", ["write", "replace"])
def test_a_change_is_put_in_force_whole_and_told_once(scene: Scene, how: str) -> None:
    before = scene.policies.policy
    getattr(scene, how)(DENIED)
    assert scene.reload()
    assert scene.standing == (1, 0, True, 1)
    assert scene.changes == [scene.policies.policy]
    assert not scene.allows
    assert before.access.grant(WHO).may_call("a"), "a request keeps the policy it began with"
    assert not scene.reload()
    assert scene.standing == (1, 0, True, 1)


def test_a_change_that_keeps_size_and_times_is_seen(scene: Scene) -> None:
    path = scene.folder / "access.yaml"
    before = path.stat()
    scene.write(ALLOWED.replace('"*"', '"b"'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert scene.reload()
    assert not scene.allows


def test_both_files_change_together_or_not_at_all(scene: Scene) -> None:
    scene.write(DENIED)
    scene.write(GUARDS.replace("depth: 16 ", "depth: deep "), "guards.yaml")
    assert not scene.reload()
    assert scene.allows
    scene.write(GUARDS.replace("depth: 16 ", "depth: 12 "), "guards.yaml")
    assert scene.reload()
    assert (scene.allows, scene.policies.policy.guards.depth) == (False, 12)


def test_a_part_whose_file_did_not_change_stays_the_same_one(scene: Scene) -> None:
    scene.write(DENIED)
    assert scene.reload()
    assert scene.policies.policy.guards is PARSED.guards


def test_carriage_returns_and_a_byte_order_mark_make_no_other_policy(scene: Scene) -> None:
    before = scene.policies.policy.access
    (scene.folder / "access.yaml").write_bytes(b"\xef\xbb\xbf" + ALLOWED.replace("\n", "\r\n").encode())
    assert scene.reload()
    assert scene.policies.policy.access == before


def test_a_symlink_swap_changes_all_files_at_once(tmp_path: Path) -> None:
    """As Kubernetes updates a ConfigMap: files link to ``..data``, which is a link that is renamed over."""
    for version, access in (("..1", ALLOWED), ("..2", DENIED)):
        (tmp_path / version).mkdir()
        (tmp_path / version / "guards.yaml").write_text(GUARDS, encoding="utf-8")
        (tmp_path / version / "access.yaml").write_text(access, encoding="utf-8")
    (tmp_path / "..data").symlink_to("..1")
    for name in ("guards.yaml", "access.yaml"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    policies = open_policies(tmp_path, print)
    assert policies.policy.access.grant(WHO).callable
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").replace(tmp_path / "..data")
    shutil.rmtree(tmp_path / "..1")
    assert asyncio.run(policies.reload())
    assert not policies.policy.access.grant(WHO).callable


# --- accidents


def test_a_faulty_file_keeps_the_policy_and_is_told_once_per_content(scene: Scene) -> None:
    scene.write(BROKEN)
    for _ in range(3):
        assert not scene.reload()
    assert scene.standing == (0, 1, False, 0)
    assert scene.allows
    (report,) = scene.reports
    assert report.startswith(f"{scene.folder}/access.yaml:")
    assert "CANARY" not in report
    scene.write(BROKEN + "\n")
    scene.reload()
    assert (scene.policies.faults, len(scene.reports)) == (2, 2)


def test_who_asks_is_told_again(scene: Scene) -> None:
    scene.write(BROKEN)
    scene.reload()
    scene.reload(force=True)
    assert (scene.policies.faults, len(scene.reports)) == (2, 2)


def test_a_fault_ends_when_the_file_is_mended_or_put_back(scene: Scene) -> None:
    scene.write(BROKEN)
    scene.reload()
    scene.write(ALLOWED)
    assert not scene.reload(), "the policy in force was that one all along"
    assert scene.standing == (0, 1, True, 0)
    scene.write(BROKEN)
    scene.reload()
    scene.write(DENIED)
    assert scene.reload()
    assert scene.standing == (1, 2, True, 1)


def test_a_duplicate_key_is_a_fault_and_not_the_last_one(scene: Scene) -> None:
    scene.write(ALLOWED + "default_roles: []\n")
    scene.reload()
    assert "default_roles: written twice" in scene.reports[0]
    assert scene.allows


def test_half_a_file_is_waited_for_though_it_is_valid(scene: Scene) -> None:
    """The narrowing of a tenant stands in the half that is still to come."""
    whole = ALLOWED + 'tenants:\n  default: {aliases: ["b"]}\n'
    seen: list[bool] = []

    def write_on(wait: int) -> None:
        seen.append(scene.allows)
        scene.write(whole[: len(ALLOWED) + 9 * wait])

    scene.write(ALLOWED + "# ")
    scene.between = write_on
    assert scene.reload()
    assert scene.standing == (1, 0, True, 1)
    assert all(seen)
    assert not scene.allows


def test_a_file_that_never_rests_is_left_for_the_next_look(scene: Scene) -> None:
    scene.write(DENIED)
    scene.between = lambda wait: scene.write(DENIED + "#" * wait)
    assert not scene.reload()
    assert scene.standing == (0, 0, True, 0)
    scene.between = lambda wait: None
    assert scene.reload()


def test_a_file_that_vanishes_for_a_moment_is_no_fault(scene: Scene) -> None:
    path = scene.folder / "access.yaml"
    path.unlink()
    scene.between = lambda wait: scene.write(ALLOWED)
    assert not scene.reload()
    assert scene.standing == (0, 0, True, 0)
    path.unlink()
    scene.between = lambda wait: scene.write(DENIED)
    assert scene.reload()
    assert scene.standing == (1, 0, True, 1)


def test_a_file_that_stays_away_is_a_fault_until_it_is_back(scene: Scene) -> None:
    (scene.folder / "access.yaml").unlink()
    for _ in range(2):
        scene.reload()
    assert scene.standing == (0, 1, False, 0)
    assert "expected this file" in scene.reports[0]
    assert scene.allows
    scene.write(ALLOWED)
    scene.reload()
    assert scene.standing == (0, 1, True, 0)


def test_a_broken_file_that_vanishes_for_a_moment_is_not_told_again(scene: Scene) -> None:
    scene.write(BROKEN)
    scene.reload()
    (scene.folder / "access.yaml").unlink()
    scene.between = lambda wait: scene.write(BROKEN)
    scene.reload()
    assert (scene.policies.faults, len(scene.reports)) == (1, 1)


def test_a_report_is_bounded(scene: Scene) -> None:
    scene.write("\n".join(f"extra{n}: 1" for n in range(500)))
    scene.reload()
    lines = scene.reports[0].splitlines()
    assert len(lines) == 51
    assert lines[-1] == "and 452 more"


# --- how it is done


def test_nothing_is_read_or_parsed_on_the_event_loop(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    plain = asyncio.to_thread

    async def counted(work: Callable[..., object], *args: object) -> object:
        return await plain(lambda: (threads.add(threading.get_ident()), work(*args))[1])

    opened: list[int] = []
    real_open = Path.open

    def watched(path: Path, *args: Any) -> object:
        opened.append(threading.get_ident())
        return real_open(path, *args)

    scene.write(DENIED)
    monkeypatch.setattr(asyncio, "to_thread", counted)
    monkeypatch.setattr(Path, "open", watched)
    assert scene.reload()
    assert len(opened) == 6
    assert len(threads) > 0
    assert threading.get_ident() not in threads | set(opened)


def test_two_reloads_at_once_take_turns(scene: Scene) -> None:
    async def both() -> list[bool]:
        reloads: list[Awaitable[bool]] = [scene.policies.reload(), scene.policies.reload(force=True)]
        return list(await asyncio.gather(*reloads))

    scene.write(DENIED)
    assert asyncio.run(both()) == [True, False]
    assert scene.standing == (1, 0, True, 1)


def test_a_reload_that_is_cancelled_leaves_the_change_for_the_next(scene: Scene) -> None:
    async def cancelled() -> None:
        task = asyncio.current_task()
        assert task is not None
        scene.between = lambda wait: task.cancel()  # type: ignore[func-returns-value]
        await scene.policies.reload()

    scene.write(DENIED)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert scene.standing == (0, 0, True, 0)
    scene.between = lambda wait: None
    assert scene.reload()


def test_open_policies_reads_and_waits_for_real(scene: Scene) -> None:
    policies = open_policies(scene.folder, scene.reports.append)
    scene.write(DENIED)
    assert asyncio.run(policies.reload())
    assert not policies.policy.access.grant(WHO).may_call("a")
