"""The secrets of an installation: where they come from, and that nobody else can read them.

``pepper`` keys the hashes of API keys (without it no stored key works), ``salt`` separates the tenants' prefix caches,
the admin token opens the admin API. Each comes from ``GATEWAY_PEPPER``, or from the file that ``GATEWAY_PEPPER_FILE``
names, ``GATEWAY_SALT`` and ``GATEWAY_ADMIN_TOKEN`` likewise; what is not given is kept in the state folder.

A pepper is replaced by giving a second one beside it, ``GATEWAY_PEPPER_2`` or a file ``pepper-2`` in the state folder:
new keys are made under the highest version, and a version may go when no key made under it is left.
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
PEPPERS: Mapping[int, str] = MappingProxyType(
    {1: PEPPER} | {version: f"{PEPPER}-{version}" for version in range(2, 10)}
)
"""The name of each version of the pepper that there may be."""
VARIABLES: Mapping[str, str] = MappingProxyType(
    {name: "GATEWAY_" + name.upper().replace("-", "_") for name in (*PEPPERS.values(), SALT, ADMIN_TOKEN)}
)
"""The environment variable of each secret; the same name with ``_FILE`` behind it gives a file."""

_PREFIXES = MappingProxyType({ADMIN_TOKEN: "gwadmin_"})
_MADE_LENGTH = 43  # 256 bits in base 62
_MIN_LENGTH = 32
_MAX_LENGTH = 4_096
_PRINTABLE = re.compile(r"[!-~]+").fullmatch


class SecretFault(Exception):
    """A secret is missing, too short or readable by others. The message names the place and never the secret."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """All of them, ready to use. ``peppers`` are by version; there is at least one."""

    peppers: Mapping[int, Secret]
    salt: Secret
    admin_token: Secret

    @property
    def pepper_version(self) -> int:
        """The version under which new keys are made."""
        return max(self.peppers)

    @property
    def pepper(self) -> Secret:
        """The pepper under which new keys are made."""
        return self.peppers[self.pepper_version]


def load_secrets(folder: Path, env: Mapping[str, str], random: Random) -> Secrets:
    """Every secret from the environment, else from ``folder``; what exists nowhere is made there (mode 0600).

    ``random`` is ``secrets.SystemRandom`` in production. Raises ``SecretFault``.
    """
    salt, token = (load_secret(name, folder, env, random) for name in (SALT, ADMIN_TOKEN))
    return Secrets(load_peppers(folder, env, random), salt, token)


def load_secret(name: str, folder: Path, env: Mapping[str, str], random: Random) -> Secret:
    """One of them, in the same way. Raises ``SecretFault``."""
    return given_secret(name, env) or _kept(folder, name, random)


def load_peppers(folder: Path, env: Mapping[str, str], random: Random) -> Mapping[int, Secret]:
    """Every version of the pepper that exists; where none does, version 1 is made. Raises ``SecretFault``."""
    return find_peppers(folder, env) or MappingProxyType({1: _kept(folder, PEPPER, random)})


def find_peppers(folder: Path, env: Mapping[str, str]) -> Mapping[int, Secret]:
    """Every version of the pepper that is given or kept; none is made. Raises ``SecretFault``."""
    found = {version: _found(folder, name, env) for version, name in PEPPERS.items()}
    return MappingProxyType({version: pepper for version, pepper in found.items() if pepper is not None})


def _found(folder: Path, name: str, env: Mapping[str, str]) -> Secret | None:
    given = given_secret(name, env)
    path = folder / name
    return given if given is not None or not path.exists() else read_secret(path)


def given_secret(name: str, env: Mapping[str, str]) -> Secret | None:
    """The secret that the environment gives, by value or by file; ``None``: none. Raises ``SecretFault``."""
    variable = VARIABLES[name]
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


def split_key(salt: Secret) -> bytes:
    """What decides, with a conversation, on which side of a split it is: 32 bytes that tell nothing of the salt."""
    return hmac.digest(salt.reveal().encode(), b"gateway split", "sha256")


def prefix_key(salt: Secret) -> bytes:
    """What prompts are hashed with to tell which of them begin alike: 32 bytes that tell nothing of the salt."""
    return hmac.digest(salt.reveal().encode(), b"gateway prefixes", "sha256")


def _judged(text: str, place: str) -> Secret:
    if len(text) < _MIN_LENGTH:
        raise SecretFault(f"{place} holds {len(text)} characters: a secret needs at least {_MIN_LENGTH}.")
    if len(text) > _MAX_LENGTH or _PRINTABLE(text) is None:
        raise SecretFault(f"{place}: a secret is at most {_MAX_LENGTH} printable ASCII characters without spaces.")
    return Secret(text)


def _kept(folder: Path, name: str, random: Random) -> Secret:
    path = folder / name
    if not path.exists():
        _create(path, Secret(_PREFIXES.get(name, "") + random_text(random, _MADE_LENGTH)))
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
