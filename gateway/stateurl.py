"""What a state URL says. Pure, apart from the look whether a CA file is there.

    sqlite:///PATH                                        a file, shared by the processes of one host
    redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]            a Redis, shared by any number of hosts
    rediss://...[?ca=FILE]                                the same by TLS; the system's CAs unless a file is named
    redis+sentinel://[[USER]:PASSWORD@]HOST[:PORT],.../SERVICE[/DB]

No fault quotes a URL: it may hold a password.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote

from gateway.configfile import Given
from gateway.configvalues import HOST, Report, sound_host
from gateway.secret import Secret

_REDIS_FORMS = "redis://HOST:PORT/DB, rediss://HOST:PORT/DB or redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB"
_REDIS = re.compile(
    r"(?P<scheme>redis|rediss|redis\+sentinel)://"
    r"(?:(?P<user>[^:@/?#]*):(?P<password>[^@/?#]*)@)?"
    r"(?P<hosts>[^@/?#]+)"
    r"(?P<path>(?:/[A-Za-z0-9_.-]+){0,2}/?)"
    r"(?:\?ca=(?P<ca>[^&#]+))?"
).fullmatch
_SERVER = re.compile(rf"(?P<host>{HOST})(?::(?P<port>[0-9]{{1,5}}))?").fullmatch
_DEFAULT_PORTS = MappingProxyType({"redis": 6379, "rediss": 6379, "redis+sentinel": 26379})
_MAX_DB = 65_535
_MAX_SENTINELS = 16


@dataclass(frozen=True, slots=True)
class RedisPlace:
    """Where a Redis is and who the gateway is there.

    ``servers`` are the server itself, or the sentinels that know where ``service`` is. ``user`` empty: the default one.
    ``str`` gives the place without user and password.
    """

    servers: tuple[tuple[str, int], ...]
    db: int = 0
    user: str = ""
    password: Secret | None = None
    tls: bool = False
    ca: Path | None = None
    service: str = ""

    def __str__(self) -> str:
        servers = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.servers)
        return f"{servers}/{self.service}/{self.db}" if self.service else f"{servers}/{self.db}"


def is_redis(url: str) -> bool:
    """Whether a URL means a Redis, well formed or not."""
    return url.startswith(("redis:", "rediss:", "redis+sentinel:"))


def sqlite_path(url: str) -> Path:
    """The absolute path in ``sqlite:///PATH``. Raises ``ValueError`` with what was expected."""
    path = url.removeprefix("sqlite://")
    if path == url or not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise ValueError(
            "expected sqlite:///PATH with an absolute path, such as sqlite:///var/lib/gateway/state.db, or "
            + _REDIS_FORMS
        )
    return Path(path)


def redis_place(url: str, password: Secret | None = None) -> RedisPlace:
    """What a Redis URL says; ``password`` is used when it holds none. Raises ``ValueError`` with what was expected."""
    match = _REDIS(url)
    if match is None or (match["ca"] and match["scheme"] != "rediss"):
        raise ValueError(f"expected {_REDIS_FORMS}, with USER:PASSWORD@ before the host if need be")
    sentinel = match["scheme"] == "redis+sentinel"
    names = [part for part in match["path"].split("/") if part]
    service = names.pop(0) if sentinel and names else ""
    if sentinel and not service:
        raise ValueError("expected the name of the service behind the sentinels, such as /mymaster/0")
    servers = tuple(_server(text, _DEFAULT_PORTS[match["scheme"]]) for text in match["hosts"].split(","))
    if len(servers) > (_MAX_SENTINELS if sentinel else 1):
        raise ValueError(f"expected one HOST:PORT, or at most {_MAX_SENTINELS} after redis+sentinel://")
    given = unquote(match["password"] or "")
    return RedisPlace(
        servers=servers,
        db=_database(names),
        user=unquote(match["user"] or ""),
        password=Secret(given) if given else password,
        tls=match["scheme"] == "rediss",
        ca=_ca_file(match["ca"]),
        service=service,
    )


def without_password(url: str) -> tuple[str, Secret | None]:
    """A well-formed Redis URL without its password, and the password. Any other URL comes back as it is."""
    match = _REDIS(url)
    if match is None or not match["password"]:
        return url, None
    start, end = match.span("password")
    kept = url[:start] + url[end:] if match["user"] else url[: match.start("user")] + url[end + 1 :]
    return kept, Secret(unquote(match["password"]))


def state(given: Given, report: Report) -> str | None:
    """A state URL, for the settings."""
    url = given.value if isinstance(given.value, str) else ""
    try:
        (redis_place if is_redis(url) else sqlite_path)(url)
    except ValueError as fault:
        report(given, str(fault).removeprefix("expected "))
        return None
    return url


def _server(text: str, default_port: int) -> tuple[str, int]:
    match = _SERVER(text)
    port = int(match["port"] or default_port) if match else 0
    if match is None or not sound_host(match["host"]) or not 0 < port <= 65_535:
        raise ValueError("expected HOST:PORT of a Redis, an IPv6 host in brackets, a port from 1 to 65535")
    return match["host"].strip("[]").lower(), port


def _database(names: list[str]) -> int:
    if not names:
        return 0
    if len(names) > 1 or re.fullmatch(r"[0-9]{1,5}", names[0]) is None or int(names[0]) > _MAX_DB:
        raise ValueError("expected the number of a Redis database, such as /0")
    return int(names[0])


def _ca_file(text: str | None) -> Path | None:
    if text is None:
        return None
    path = Path(unquote(text))
    if not path.is_absolute() or not path.is_file():
        raise ValueError("expected ca to be the absolute path of a file with CA certificates")
    return path
