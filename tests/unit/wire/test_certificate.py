"""The certificate that listeners show follows its files, and never becomes one that cannot be used."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from gateway.wire.certificate import Certificate, load
from tests.authority import Authority


def put(source: Path, target: Path) -> None:
    """Replace a file as a careful tool does: all at once."""
    draft = target.with_suffix(".draft")
    shutil.copy(source, draft)
    draft.replace(target)


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """The file that is shown, with a certificate and its key."""
    path = tmp_path / "shown.pem"
    put(Authority(tmp_path).pem("a.test"), path)
    return path


def locked(path: Path) -> Path:
    """A key that asks for a passphrase."""
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    target = path.with_suffix(".locked")
    secret = serialization.BestAvailableEncryption(b"word")
    target.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret)  # type: ignore[union-attr]
    )
    return target


def test_it_says_until_when_it_is_valid(shown: Path) -> None:
    until = x509.load_pem_x509_certificate(shown.read_bytes()).not_valid_after_utc
    assert load(shown, shown).expires_at == until.timestamp()


def test_the_same_files_are_not_read_again(shown: Path) -> None:
    reports: list[str] = []
    certificate = Certificate(shown, shown, reports.append)
    before = certificate.context()
    asyncio.run(certificate.look())
    assert (certificate.context(), reports) == (before, [])


def test_new_files_are_for_the_next_connection(tmp_path: Path, shown: Path) -> None:
    reports: list[str] = []
    certificate = Certificate(shown, shown, reports.append)
    before = certificate.context()
    put(Authority(tmp_path, "other").pem("b.test"), shown)
    asyncio.run(certificate.look())
    assert certificate.context() is not before
    assert len(reports) == 1


def test_a_link_that_leads_elsewhere_is_a_change(tmp_path: Path, shown: Path) -> None:
    link = tmp_path / "link.pem"
    link.symlink_to(shown)
    certificate = Certificate(link, link, lambda _: None)
    before = certificate.context()
    other = Authority(tmp_path, "other").pem("b.test")
    os.utime(other, ns=(shown.stat().st_mtime_ns, shown.stat().st_mtime_ns))
    link.unlink()
    link.symlink_to(other)
    asyncio.run(certificate.look())
    assert certificate.context() is not before


@pytest.mark.parametrize("fault", ["missing", "empty", "garbage", "another key", "a key with a passphrase", "a folder"])
def test_what_cannot_be_used_leaves_the_one_before_and_is_told_once(tmp_path: Path, shown: Path, fault: str) -> None:
    key = tmp_path / "key.pem"
    put(shown, key)
    reports: list[str] = []
    certificate = Certificate(shown, key, reports.append)
    before = certificate.context()
    if fault == "another key":
        put(Authority(tmp_path, "other").pem("b.test"), key)
    elif fault == "a key with a passphrase":
        put(locked(shown), key)
    else:
        key.unlink()
        if fault == "a folder":
            key.mkdir()
        elif fault != "missing":
            key.write_bytes(b"" if fault == "empty" else b"-----BEGIN PRIVATE KEY-----\nAAAA\n")
    for _ in range(3):
        asyncio.run(certificate.look())
    assert certificate.context() is before
    assert len(reports) == 1
    assert str(key) in reports[0]


def test_a_pair_that_comes_one_file_after_the_other_is_taken_when_it_is_whole(tmp_path: Path, shown: Path) -> None:
    key = tmp_path / "key.pem"
    put(shown, key)
    certificate = Certificate(shown, key, lambda _: None)
    before = certificate.context()
    fresh = Authority(tmp_path, "other").pem("b.test")
    put(fresh, shown)
    asyncio.run(certificate.look())
    assert certificate.context() is before
    put(fresh, key)
    asyncio.run(certificate.look())
    assert certificate.context() is not before


def test_nobody_is_asked_for_a_passphrase(shown: Path) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - an SSLError
        load(shown, locked(shown))
