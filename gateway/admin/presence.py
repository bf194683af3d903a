"""How the command line finds the gateway of its host: a file in the state folder, locked while the gateway runs.

The lock ends with the process, however it ends, so a file without one is stale. Asking the address instead would hand
the admin token to whatever listens there now.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

FILE = "admin-url"


class Presence:
    """A gateway's announcement of its admin address. Idempotent ``close`` withdraws it."""

    def __init__(self, folder: Path, url: str) -> None:
        """Announce. Raises ``OSError`` when the folder cannot be written."""
        self._path = folder / FILE
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = folder / f".{FILE}.{os.getpid()}"
        self._file = open(draft, "w", opener=_private)  # noqa: SIM115 - held, and locked, until close
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file.write(url + "\n")
            self._file.flush()
            draft.replace(self._path)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Remove the file, unless another gateway has put its own there, and release the lock."""
        if not self._file.closed:
            with suppress(OSError):
                if os.path.samestat(self._path.stat(), os.fstat(self._file.fileno())):
                    self._path.unlink()
            self._file.close()


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def running_gateway(folder: Path) -> str | None:
    """The admin URL of the gateway that runs on this folder's state, if one does."""
    try:
        with (folder / FILE).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.readline().strip() or None
    except OSError:
        pass
    return None
