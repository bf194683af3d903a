"""Where secrets come from, and what is refused."""

from __future__ import annotations

import random
import stat
from pathlib import Path

import pytest

from gateway.identity.secrets import SecretFault, load_secrets, read_secret, tenant_salt
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
