"""The certificate of the listeners: made from two files, and made anew when they change."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gateway.wire.tls import server_tls

_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Shown:
    """A context and until when its certificate is valid (Unix seconds)."""

    context: ssl.SSLContext
    expires_at: float


def load(certificate: Path, key: Path) -> Shown:
    """Read both files. Raises ``OSError`` (also ``ssl.SSLError``) or ``ValueError``: they are no pair in PEM."""
    from cryptography import x509  # noqa: PLC0415 - a start without TLS need not wait for it

    context = server_tls(certificate, key)
    with certificate.open("rb") as file:
        leaf = x509.load_pem_x509_certificate(file.read(_MAX_BYTES))
    return Shown(context, leaf.not_valid_after_utc.timestamp())


class Certificate:
    """What the listeners show now. ``look`` follows the files; a pair that cannot be used leaves the one before."""

    def __init__(self, certificate: Path, key: Path, report: Callable[[str], None]) -> None:
        """Raises what ``load`` raises."""
        self._files = (certificate, key)
        self._report = report
        self._seen = _stamps(self._files)
        self._shown = load(certificate, key)

    def context(self) -> ssl.SSLContext:
        """For the next connection; one that stands keeps the context that it began with."""
        return self._shown.context

    @property
    def expires_at(self) -> float:
        """Unix seconds."""
        return self._shown.expires_at

    async def look(self) -> None:
        """Read the files again if they are others than at the last look."""
        seen = await asyncio.to_thread(_stamps, self._files)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._shown = await asyncio.to_thread(load, *self._files)
        except (OSError, ValueError) as error:
            self._report(
                f"the certificate in {self._files[0]} and the key in {self._files[1]} cannot be used together "
                f"({type(error).__name__}), the one before is shown: put a PEM chain and its key there"
            )
        else:
            self._report(f"the certificate in {self._files[0]} was read again")


def _stamps(files: tuple[Path, Path]) -> tuple[object, ...]:
    """What changes when a file does, also by a link that leads elsewhere; a file that is gone has a stamp as well."""
    return tuple(_stamp(path) for path in files)


def _stamp(path: Path) -> object:
    try:
        told = path.stat()
    except OSError as error:
        return error.errno
    return told.st_dev, told.st_ino, told.st_size, told.st_mtime_ns
