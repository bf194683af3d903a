"""Where a command acts: the options that say so, and the rule when they do not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gateway.admin.presence import running_gateway
from gateway.cli.backend import Backend, CliFault, Misuse
from gateway.identity.secrets import ADMIN_TOKEN, given_secret, read_secret
from gateway.secret import Secret
from gateway.settings import default_state, is_redis, sqlite_path, state_folder_of
from gateway.stateurl import redis_place

_TOKEN = re.compile(r"[!-~]+").fullmatch
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True)
class Where:
    """The three options, each ``None`` when not given."""

    state: str | None = None
    admin_url: str | None = None
    admin_token: Secret | None = None


def choose(where: Where, env: Mapping[str, str]) -> Backend:
    """The backend of a command.

    ``--state`` is that store itself; ``--admin-url`` or ``GATEWAY_ADMIN_URL`` the gateway there. With neither: the
    gateway that runs on this host's state (``GATEWAY_STATE``, else the default), or that state itself when none does.
    An option that is given and empty is not one that is not given: a script's variable is not set, and what it meant
    for a gateway elsewhere must not be done here. Raises ``CliFault`` (``Misuse`` for an option) or ``SecretFault``.
    """
    if where.state is not None and where.admin_url is not None:
        raise Misuse("Give --state or --admin-url, not both: a change is made in one place.")
    if where.state is not None:
        return _local(_checked_state(where.state, "--state", Misuse), env)
    state = env.get("GATEWAY_STATE") or default_state(env)
    folder = _folder(state, env)
    url = where.admin_url
    if url is None:
        url = env.get("GATEWAY_ADMIN_URL") or (running_gateway(folder) if folder else None)
    if url is None:
        return _local(_checked_state(state, "GATEWAY_STATE", CliFault), env)
    host = _host(url, given=where.admin_url is not None)
    token = _checked_token(where.admin_token) or given_secret(ADMIN_TOKEN, env) or _kept_token(folder, host)
    if token is None:
        raise CliFault(
            f"The gateway at {url} needs its admin token. Set GATEWAY_ADMIN_TOKEN or GATEWAY_ADMIN_TOKEN_FILE; on the "
            "gateway's host it is the file admin-token in its state folder."
        )
    ca = env.get("GATEWAY_ADMIN_CA")
    return _remote(url, token, Path(ca) if ca else None)


def _checked_state(url: str, place: str, fault: type[CliFault]) -> str:
    try:
        (redis_place if is_redis(url) else sqlite_path)(url)
    except ValueError as error:
        raise fault(f"{place}: {error}.") from None
    return url


def _checked_token(token: Secret | None) -> Secret | None:
    """It goes into a header as it is."""
    if token is not None and _TOKEN(token.reveal()) is None:
        raise Misuse("--admin-token: expected printable ASCII characters without spaces, one at least.")
    return token


# Each is imported where it is chosen: a command uses one of them, and the other's stores or HTTP client would be waited
# for in vain.
def _local(state: str, env: Mapping[str, str]) -> Backend:
    from gateway.cli.local import LocalBackend  # noqa: PLC0415

    return LocalBackend(state, env)


def _remote(url: str, token: Secret, ca: Path | None) -> Backend:
    from gateway.cli.remote import RemoteBackend  # noqa: PLC0415

    return RemoteBackend(url, token, ca=ca)


def _folder(state: str, env: Mapping[str, str]) -> Path | None:
    try:
        return state_folder_of(state, env)
    except ValueError:
        return None


def _host(url: str, *, given: bool) -> str:
    try:
        parts = urlsplit(url)
        if parts.scheme in {"http", "https"} and parts.hostname and "@" not in parts.netloc and parts.port != 0:
            return parts.hostname
    except ValueError:
        pass
    expected = "expected http://HOST:PORT or https://HOST:PORT, without user and password."
    raise Misuse(f"--admin-url: {expected}") if given else CliFault(f"GATEWAY_ADMIN_URL: {expected}")


def _kept_token(folder: Path | None, host: str) -> Secret | None:
    """This host's own token: never for a gateway elsewhere, which has no business knowing it."""
    if folder is None or host not in _LOOPBACK or not (folder / ADMIN_TOKEN).exists():
        return None
    return read_secret(folder / ADMIN_TOKEN)
