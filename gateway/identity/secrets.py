"""The three secrets of an installation: where they come from, and that nobody else can read them.

``pepper`` keys the hashes of API keys (without it no stored key works), ``salt`` separates the tenants' prefix caches,
the admin token opens the admin API. Each comes from ``GATEWAY_PEPPER``, or from the file that ``GATEWAY_PEPPER_FILE``
names, ``GATEWAY_SALT`` and ``GATEWAY_ADMIN_TOKEN`` likewise; what is not given is kept in the state folder.
"""

from __future__ import annotations

import hmac
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import MappingProxyType

from gateway.identity.keys import random_text
from gateway.secret import Secret

PEPPER, SALT, ADMIN_TOKEN = "pepper", "salt", "admin-token"
_VARIABLES = MappingProxyType({PEPPER: "GATEWAY_PEPPER", SALT: "GATEWAY_SALT", ADMIN_TOKEN: "GATEWAY_ADMIN_TOKEN"})
_PREFIXES = MappingProxyType({PEPPER: "", SALT: "", ADMIN_TOKEN: "gwadmin_"})
_MADE_LENGTH = 43  # 256 bits in base 62
_MIN_LENGTH = 32
_MAX_LENGTH = 4_096
_PRINTABLE = re.compile(r"[!-~]+").fullmatch


class SecretFault(Exception):
    """A secret is missing, too short or readable by others. The message names the place and never the secret."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """All three, ready to use."""

    pepper: Secret
    salt: Secret
    admin_token: Secret


def load_secrets(folder: Path, env: Mapping[str, str], random: Random) -> Secrets:
    """Every secret from the environment, else from ``folder``; what exists nowhere is made there (mode 0600).

    ``random`` is ``secrets.SystemRandom`` in production. Raises ``SecretFault``.
    """
    return Secrets(*(load_secret(name, folder, env, random) for name in (PEPPER, SALT, ADMIN_TOKEN)))


def load_secret(name: str, folder: Path, env: Mapping[str, str], random: Random) -> Secret:
    """One of the three, in the same way. Raises ``SecretFault``."""
    return given_secret(name, env) or _kept(folder, name, random)


def given_secret(name: str, env: Mapping[str, str]) -> Secret | None:
    """The secret that the environment gives, by value or by file; ``None``: none. Raises ``SecretFault``."""
    variable = _VARIABLES[name]
    value, file = env.get(variable), env.get(f"{variable}_FILE")
    if value and file:
        raise SecretFault(f"{variable} and {variable}_FILE are both set. Keep one of them.")
    if value:
        return _judged(value, variable)
    # Kubernetes mounts secrets for a group, hence only "others" are refused.
    return read_secret(Path(file), forbidden=0o007) if file else None


def read_secret(path: Path, *, forbidden: int = 0o077) -> Secret:
    """The secret in a file, surrounding white space aside. ``forbidden`` are permission bits that it may not have.

    Raises ``SecretFault``.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read(_MAX_LENGTH + 1)
    except OSError as error:
        raise SecretFault(f"secret file {path} cannot be read: {error.strerror}.") from None
    if mode & forbidden:
        raise SecretFault(f"secret file {path} has mode {mode:04o}: others can use it. Run: chmod 600 {path}")
    return _judged(data.decode("ascii", errors="replace").strip(), f"secret file {path}")


def tenant_salt(salt: Secret, tenant: str) -> str:
    """What goes with a tenant's requests so that the engine's prefix cache never shares a block between two tenants.

    Without it a tenant could find out by timing whether another one had sent a given prompt.
    """
    return hmac.digest(salt.reveal().encode(), tenant.encode(), "sha256").hex()


def _judged(text: str, place: str) -> Secret:
    if len(text) < _MIN_LENGTH:
        raise SecretFault(f"{place} holds {len(text)} characters: a secret needs at least {_MIN_LENGTH}.")
    if len(text) > _MAX_LENGTH or _PRINTABLE(text) is None:
        raise SecretFault(f"{place}: a secret is at most {_MAX_LENGTH} printable ASCII characters without spaces.")
    return Secret(text)


def _kept(folder: Path, name: str, random: Random) -> Secret:
    path = folder / name
    if not path.exists():
        _create(path, Secret(_PREFIXES[name] + random_text(random, _MADE_LENGTH)))
    return read_secret(path)


def _create(path: Path, secret: Secret) -> None:
    """Write a new file, whole or not at all; when another process was first, its file stands."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secret.reveal() + "\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(draft, path)
    except OSError as error:
        raise SecretFault(f"secret file {path} cannot be made: {error.strerror}.") from None
    finally:
        with suppress(OSError):
            draft.unlink()
