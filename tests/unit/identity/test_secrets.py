"""Where secrets come from, and what is refused."""

from __future__ import annotations

import random
import stat
from pathlib import Path

import pytest

from gateway.identity.secrets import SecretFault, find_peppers, load_secrets, read_secret, tenant_salt
from gateway.secret import Secret

LONG = "s3cret-" * 6
RANDOM = random.Random(7)


def test_secrets_are_made_once_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    first = load_secrets(folder, {}, random.Random(7))
    assert load_secrets(folder, {}, random.Random(8)) == first
    assert {item.name for item in folder.iterdir()} == {"pepper", "salt", "admin-token"}
    assert {stat.S_IMODE(item.stat().st_mode) for item in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert first.admin_token.reveal().startswith("gwadmin_")
    assert len({secret.reveal() for secret in (first.pepper, first.salt, first.admin_token)}) == 3
    assert min(len(first.pepper), len(first.salt)) == 43


def test_the_environment_gives_values_or_files(tmp_path: Path) -> None:
    file = tmp_path / "given"
    file.write_text(f"\n{LONG}file \n")
    file.chmod(0o440)
    env = {
        "GATEWAY_PEPPER": LONG + "pepper",
        "GATEWAY_SALT_FILE": str(file),
        "GATEWAY_ADMIN_TOKEN": LONG + "token",
    }
    secrets = load_secrets(tmp_path / "state", env, RANDOM)
    assert secrets.pepper.reveal() == LONG + "pepper"
    assert secrets.salt.reveal() == LONG + "file"
    assert secrets.admin_token.reveal() == LONG + "token"
    assert not (tmp_path / "state").exists()


def test_every_version_of_the_pepper_is_found_and_the_highest_is_for_new_keys(tmp_path: Path) -> None:
    first = load_secrets(tmp_path, {}, RANDOM)
    assert (dict(first.peppers), first.pepper_version) == ({1: first.pepper}, 1)
    for name in ("pepper-3", "pepper-10", "pepper-1", "given"):
        (tmp_path / name).write_text(LONG + name)
        (tmp_path / name).chmod(0o600)
    env = {"GATEWAY_PEPPER_2": LONG + "two", "GATEWAY_PEPPER_9_FILE": str(tmp_path / "given")}
    held = load_secrets(tmp_path, env, RANDOM)
    expected = {1: first.pepper, 2: Secret(LONG + "two"), 3: Secret(LONG + "pepper-3"), 9: Secret(LONG + "given")}
    assert held.peppers == expected == find_peppers(tmp_path, env)
    assert (held.pepper, held.pepper_version) == (expected[9], 9)
    assert load_secrets(tmp_path, env | {"GATEWAY_PEPPER_3": LONG}, RANDOM).peppers[3] == Secret(LONG)


def test_a_first_pepper_is_made_only_where_there_is_none(tmp_path: Path) -> None:
    assert find_peppers(tmp_path, {}) == {}
    held = load_secrets(tmp_path, {"GATEWAY_PEPPER_2": LONG}, RANDOM)
    assert (dict(held.peppers), held.pepper_version) == ({2: Secret(LONG)}, 2)
    assert not (tmp_path / "pepper").exists()


def test_a_fault_of_a_further_pepper_is_named(tmp_path: Path) -> None:
    assert "GATEWAY_PEPPER_2 holds 5 characters" in fault({"GATEWAY_PEPPER_2": "shrt5"}, tmp_path)
    (tmp_path / "pepper-4").write_text(LONG)
    (tmp_path / "pepper-4").chmod(0o644)
    assert "mode 0644" in fault({}, tmp_path)


def fault(env: dict[str, str], folder: Path) -> str:
    with pytest.raises(SecretFault) as raised:
        load_secrets(folder, env, RANDOM)
    return str(raised.value)


def test_what_is_wrong_is_named_and_never_shown(tmp_path: Path) -> None:
    assert "GATEWAY_PEPPER holds 5 characters" in fault({"GATEWAY_PEPPER": "shrt5"}, tmp_path)
    assert "shrt5" not in fault({"GATEWAY_PEPPER": "shrt5"}, tmp_path)
    assert "both set" in fault({"GATEWAY_SALT": LONG, "GATEWAY_SALT_FILE": "/x"}, tmp_path)
    assert "printable" in fault({"GATEWAY_SALT": LONG + "é"}, tmp_path)
    assert "printable" in fault({"GATEWAY_SALT": LONG + " x"}, tmp_path)
    assert "cannot be read: No such file" in fault({"GATEWAY_SALT_FILE": str(tmp_path / "none")}, tmp_path)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o640])
def test_a_kept_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    load_secrets(tmp_path, {}, RANDOM)
    (tmp_path / "pepper").chmod(mode)
    assert f"mode {mode:04o}" in fault({}, tmp_path)


@pytest.mark.parametrize("mode", [0o644, 0o444])
def test_a_given_file_that_everybody_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "given"
    file.write_text(LONG)
    file.chmod(mode)
    assert f"mode {mode:04o}" in fault({"GATEWAY_PEPPER_FILE": str(file)}, tmp_path)


def test_an_emptied_secret_file_is_refused_and_not_made_anew(tmp_path: Path) -> None:
    load_secrets(tmp_path, {}, RANDOM)
    (tmp_path / "pepper").write_text("")
    assert "holds 0 characters" in fault({}, tmp_path)
    assert (tmp_path / "pepper").read_text() == ""


def test_a_binary_or_huge_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "given"
    for content in (bytes(range(256)), b"x" * 10_000):
        file.write_bytes(content)
        file.chmod(0o600)
        with pytest.raises(SecretFault, match="printable"):
            read_secret(file)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    assert "cannot be made" in fault({}, tmp_path / "plain" / "state")


def test_each_tenant_has_its_own_stable_salt() -> None:
    salt = Secret(LONG)
    assert tenant_salt(salt, "a") == tenant_salt(salt, "a")
    assert len({tenant_salt(salt, "a"), tenant_salt(salt, "b"), tenant_salt(Secret(LONG + "x"), "a")}) == 3
    assert len(tenant_salt(salt, "a")) == 64
